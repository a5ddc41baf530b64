"""The page in a browser: what is clicked and typed is in the database, and no name is obeyed.

Nothing here waits for a time: a step waits until the page says that it is done, however long that takes.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import numpy as np
import pytest
from audits import CLASSES, draw, make_audit, with_findings
from PIL import Image

from dspt.auditing import report
from dspt.auditing.report import write_page
from dspt.internal.errors import Fault
from dspt.review import server
from dspt.review.decisions import KEEP, RELABEL, REMOVE, Decision, Decisions

playwright = pytest.importorskip(
    "playwright.sync_api", reason="NOT TESTED: the page in a browser needs playwright (pip install 'dspt[dev]')"
)
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("NOT TESTED: the page in a browser needs chromium (apt install chromium)", allow_module_level=True)

ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
PATIENCE = 120_000


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=PATIENCE)
        yield browser
        browser.close()


@dataclass
class Heard:
    """What pages complained of, and what they asked for."""

    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def open_page(chromium, heard):
    """A function that opens an address as somebody with a browser of their own does; nothing may be complained of."""
    contexts = []

    def opened(address: str, context=None, width: int = 1280, colours: str = "light"):
        if context is None:
            context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=colours)
            context.set_default_timeout(PATIENCE)
            contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: heard.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: heard.complaints.append(str(error)))
        page.on("request", lambda request: heard.requests.append(request.url))
        page.on("dialog", lambda dialog: (heard.complaints.append(dialog.message), dialog.dismiss()))
        page.goto(address)
        page.wait_for_selector(".tabs [role=tab]")
        page.bring_to_front()  # keys go to the page in front
        return page

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def review(tmp_path) -> Iterator:
    """A function that serves an audit from this process, and tells its address and what is decided."""
    running = []

    def started(audit, **given):
        import uvicorn

        listener = server._listening(0)
        port = listener.getsockname()[1]
        app = server.make_app(tmp_path, "secret", port=port, audit=audit, **({"open_picture": draw} | given))
        one = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
        thread = threading.Thread(target=one.run, kwargs={"sockets": [listener]})
        thread.start()
        running.append((one, thread, app))
        current = app.state.review.decisions.current
        return SimpleNamespace(address=f"http://127.0.0.1:{port}/?token=secret", current=current)

    yield started
    for one, thread, app in running:
        one.should_exit = one.force_exit = True
        thread.join()
        app.state.review.decisions.close()


def saved(page) -> None:
    page.wait_for_selector("html[data-unsaved='0']", state="attached")


def rows(page) -> list[int]:
    return [int(row) for row in page.locator(".card").evaluate_all("cards => cards.map(card => card.dataset.row)")]


def card(page, row: int):
    return page.locator(f".card[data-row='{row}']")


def test_keys_and_clicks_end_in_the_database_and_are_there_after_a_reload(review, open_page, heard):
    audit = make_audit()
    served = review(audit)
    page = open_page(served.address)
    assert "token" not in page.url
    first = audit.ranked[0]
    for pressed in ("p", "k", "x", "Enter", "r"):
        page.keyboard.press(pressed)
    page.keyboard.press("c")
    page.keyboard.type(CLASSES[(audit.labels[5] + 2) % 4][:3])
    page.keyboard.press("Enter")
    card(page, 6).locator("[data-what=take]").click()
    card(page, 7).locator("[data-what=keep]").click()
    card(page, 8).locator("[data-what=remove]").click()
    saved(page)
    expected = {
        0: Decision(RELABEL, first[0]),
        1: Decision(KEEP, audit.labels[1]),
        2: Decision(REMOVE, -1),
        3: Decision(RELABEL, first[3]),
        4: Decision(REMOVE, -1),
        5: Decision(RELABEL, (audit.labels[5] + 2) % 4),
        6: Decision(RELABEL, first[6]),
        7: Decision(KEEP, audit.labels[7]),
        8: Decision(REMOVE, -1),
    }
    assert served.current() == expected
    page.reload()
    page.wait_for_selector(".card[data-decided]")
    shown = {row: card(page, row).get_attribute("data-decided") for row in rows(page)}
    assert shown == {row: expected[row].action if row in expected else None for row in range(12)}
    assert card(page, 9).get_attribute("aria-current") == "true", "it goes on with the first that is not decided"
    assert page.locator("#progress").evaluate("bar => [bar.value, bar.max]") == [9, 12]
    page.keyboard.press("u")
    page.wait_for_selector(".card[data-row='8']:not([data-decided])")
    saved(page)
    del expected[8]
    assert served.current() == expected
    assert heard.complaints == []


def test_a_selection_is_one_decision_and_one_undo(review, open_page, heard):
    audit = make_audit(samples=200, wrong=150)
    served = review(audit)
    page = open_page(served.address)
    page.keyboard.press("Space")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    assert page.locator("#selected-count").text_content() == "3 selected"
    page.locator("#actions [data-do=take]").click()
    saved(page)
    first = audit.ranked[0]
    assert served.current() == {row: Decision(RELABEL, first[row]) for row in range(3)}
    card(page, 10).locator(".path").click()
    card(page, 14).locator(".path").click(modifiers=["Shift"])
    card(page, 20).locator("input").click()
    assert page.locator("#selected-count").text_content() == "6 selected"
    page.keyboard.press("x")
    saved(page)
    assert {row for row, one in served.current().items() if one.action == REMOVE} == {*range(10, 15), 20}
    page.keyboard.press("u")
    page.wait_for_selector(".card[data-row='20']:not([data-decided])")
    assert set(served.current()) == {0, 1, 2}
    # All like this one, on whatever page they are, but what was decided stays.
    pair = audit.labels * 4 + first
    like = [row for row in range(150) if pair[row] == pair[0]]
    assert like[0] == 0
    assert like[-1] > 60
    card(page, like[1]).locator(".like").click()
    page.keyboard.press("k")
    saved(page)
    kept = {row for row, one in served.current().items() if one.action == KEEP}
    assert kept == set(like) - {0, 1, 2}
    assert served.current()[0].action == RELABEL
    assert heard.complaints == []


def test_after_several_the_next_key_is_for_the_next_that_is_not_decided(review, open_page, heard):
    audit = make_audit(samples=200, wrong=50)
    served = review(audit)
    page = open_page(served.address)
    first = audit.ranked[0]
    pair = audit.labels * 4 + first
    for pressed in ("Shift+ArrowRight", "Shift+ArrowRight", "p"):
        page.keyboard.press(pressed)
    assert card(page, 3).get_attribute("aria-current") == "true"
    page.keyboard.press("k")
    saved(page)
    expected = {row: Decision(RELABEL, first[row]) for row in range(3)} | {3: Decision(KEEP, audit.labels[3])}
    assert served.current() == expected
    # All like this one, also if it is decided itself.
    like = [row for row in range(4, 50) if pair[row] == pair[4]]
    assert len(like) > 3
    for pressed in ("l", "p"):
        page.keyboard.press(pressed)
    saved(page)
    expected |= {row: Decision(RELABEL, first[row]) for row in like}
    assert served.current() == expected
    card(page, 3).locator(".like").click()
    more = [row for row in range(4, 50) if pair[row] == pair[3]]
    page.keyboard.press("x")
    saved(page)
    expected |= dict.fromkeys(more, Decision(REMOVE, -1))
    assert served.current() == expected
    then = min(set(range(50)) - set(expected))
    assert card(page, then).get_attribute("aria-current") == "true"
    page.keyboard.press("Enter")
    saved(page)
    assert served.current() == expected | {then: Decision(RELABEL, first[then])}
    assert heard.complaints == []


def test_another_class_for_several_is_one_undo_also_if_some_have_it(review, open_page, heard):
    audit = make_audit()
    served = review(audit)
    page = open_page(served.address)
    page.keyboard.press("k")
    for pressed in (*["Shift+ArrowRight"] * 4, "c"):
        page.keyboard.press(pressed)
    chosen = int(audit.labels[2])
    page.keyboard.type(CLASSES[chosen])
    page.route("**/decide", lambda route: route.abort())
    page.keyboard.press("Enter")
    kept = {row for row in range(1, 6) if audit.labels[row] == chosen}
    assert 0 < len(kept) < 5
    page.wait_for_selector("#trouble:not([hidden])")

    def shown():
        return {row for row in range(1, 6) if card(page, row).get_attribute("data-decided") == "keep"}

    assert shown() == kept, "before the server has answered"
    page.unroute("**/decide")
    saved(page)
    assert shown() == kept
    expected = {row: Decision(KEEP if row in kept else RELABEL, chosen) for row in range(1, 6)}
    assert served.current() == expected | {0: Decision(KEEP, audit.labels[0])}
    page.keyboard.press("u")
    page.wait_for_selector(".card[data-row='1']:not([data-decided])")
    saved(page)
    assert served.current() == {0: Decision(KEEP, audit.labels[0])}


def test_two_tabs_see_each_other_and_lose_nothing(review, open_page, heard):
    served = review(make_audit())
    one = open_page(served.address)
    other = open_page(served.address, one.context)
    one.keyboard.press("k")
    card(other, 11).locator("[data-what=remove]").click()
    saved(one)
    saved(other)
    assert set(served.current()) == {0, 11}
    one.wait_for_selector(".card[data-row='11'][data-decided=remove]")
    other.wait_for_selector(".card[data-row='0'][data-decided=keep]")
    # The last word counts, in both.
    card(other, 0).locator("[data-what=remove]").click()
    one.wait_for_selector(".card[data-row='0'][data-decided=remove]")
    assert heard.complaints == []


def held(page):
    """Keep a page from hearing of others; what it asked meanwhile waits for the function that is returned."""
    waiting = []
    page.route("**/decisions?*", lambda route: waiting.append(route))
    page.wait_for_event("request", predicate=lambda request: "/decisions?" in request.url)

    def let_go():
        page.unroute("**/decisions?*")
        for route in waiting:
            route.continue_()

    return let_go


def test_what_was_decided_on_a_list_that_another_tab_made_again_is_saved(review, open_page):
    served = review(make_audit(), refit=lambda report, decided: make_audit(wrong=12 - len(decided)))
    one = open_page(served.address)
    other = open_page(served.address, one.context)
    one.keyboard.press("k")
    saved(one)
    let_go = held(other)
    other.route("**/decide", lambda route: route.abort())
    card(other, 5).locator("[data-what=remove]").click()
    card(other, 6).locator("[data-what=keep]").click()
    one.locator("#refit").click()
    one.wait_for_selector("#tab-suspects .number:text-is('11')")
    assert other.locator("#tab-suspects .number").text_content() == "12", "it does not know of the new list"
    let_go()
    other.unroute("**/decide")
    other.wait_for_selector("#tab-suspects .number:text-is('11')")
    saved(other)
    assert {row: made.action for row, made in served.current().items()} == {0: KEEP, 5: REMOVE, 6: KEEP}


def test_what_was_decided_about_another_report_is_told_and_not_saved_here(review, open_page, tmp_path):
    served = review(make_audit())
    page = open_page(served.address)
    held(page)
    page.route("**/decide", lambda route: route.fulfill(status=409, json={"error": "made again"}))
    page.unroute("**/decisions?*")
    page.route("**/decisions?*", lambda route: route.fulfill(json={"about": "other", "generation": 1, "changed": []}))
    page.keyboard.press("k")
    page.wait_for_selector(
        "#trouble:has-text('Another report is reviewed at this address now. Not saved yet: 1 decision')"
    )
    assert served.current() == {}


def test_a_decision_that_is_not_saved_is_told_and_saved_later(review, open_page):
    served = review(make_audit())
    page = open_page(served.address)
    page.route("**/decide", lambda route: route.abort())
    page.keyboard.press("k")
    page.wait_for_selector("#trouble:has-text('Not saved yet: 1 decision.')")
    page.keyboard.press("x")
    page.wait_for_selector("#trouble:has-text('Not saved yet: 2 decisions.')")
    assert served.current() == {}
    page.unroute("**/decide")
    saved(page)
    assert {row: one.action for row, one in served.current().items()} == {0: KEEP, 1: REMOVE}
    page.wait_for_selector("#trouble", state="hidden")


def test_an_answer_that_is_lost_is_no_second_decision(review, open_page):
    served = review(make_audit())
    page = open_page(served.address)
    lost = []

    def lose(route):
        if not lost:
            lost.append(route.fetch().status)
            route.abort()
        else:
            route.continue_()

    page.route("**/decide", lose)
    page.keyboard.press("k")
    saved(page)
    assert lost == [200]
    page.keyboard.press("u")
    page.wait_for_selector(".card[data-row='0']:not([data-decided])")
    saved(page)
    assert served.current() == {}


SERVE = """
import sys
from audits import draw, make_audit
from dspt.review import server
server.folder.load = lambda report: make_audit()
server.folder.load_paths = lambda report: [None] * 60
server.serve(sys.argv[1], port=int(sys.argv[2]), say=lambda line: print(line, flush=True))
"""


@contextmanager
def killed_after(report: Path, port: int = 0) -> Iterator[str]:
    """Yield the address of a review in a process of its own, which is killed in the end."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", SERVE, str(report), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def test_what_was_decided_while_the_server_was_away_is_saved_once_the_new_address_is_open(open_page, tmp_path):
    with killed_after(tmp_path) as address:
        page = open_page(address)
        page.keyboard.press("x")
        saved(page)
    page.keyboard.press("k")
    page.keyboard.press("p")
    page.wait_for_selector("#trouble:has-text('Not saved yet: 2 decisions.')")
    with killed_after(tmp_path, urlsplit(address).port) as anew:
        page.wait_for_selector("#trouble:has-text('open its new address in this browser')")
        assert "Not saved yet: 2 decisions." in page.locator("#trouble").text_content()
        with Decisions(tmp_path / "decisions.sqlite", make_audit().items, CLASSES) as made:
            assert set(made.current()) == {0}, "nothing without the new token"
        other = open_page(anew, page.context)
        other.wait_for_selector(".card[data-row='2'][data-decided]")
        saved(page)
        page.wait_for_selector("#trouble", state="hidden")
    with Decisions(tmp_path / "decisions.sqlite", make_audit().items, CLASSES) as made:
        assert {row: one.action for row, one in made.current().items()} == {0: REMOVE, 1: KEEP, 2: RELABEL}


def test_a_kill_of_the_server_loses_nothing_that_was_acknowledged(open_page, tmp_path):
    with killed_after(tmp_path) as address:
        page = open_page(address)
        for _ in range(4):
            page.keyboard.press("x")
        saved(page)
    page.keyboard.press("x")
    page.wait_for_selector("#trouble:not([hidden])")
    assert "is it still running?" in page.locator("#trouble").text_content()
    with Decisions(tmp_path / "decisions.sqlite", make_audit().items, CLASSES) as made:
        assert made.current() == {row: Decision(REMOVE, -1) for row in range(4)}


def test_refit_brings_a_new_list(review, open_page, heard):
    served = review(make_audit(), refit=lambda report, decided: make_audit(wrong=12 - len(decided)))
    page = open_page(served.address)
    page.keyboard.press("k")
    page.keyboard.press("k")
    saved(page)
    page.locator("#refit").click()
    page.wait_for_selector("#tab-suspects .number:text-is('10')")
    assert len(rows(page)) == 10
    assert "you agreed with 0 of 2" in page.locator("#progress-words").text_content(), "of what the old list proposed"
    assert heard.complaints == []


def test_what_is_removed_by_mistake_is_as_it_was_and_not_judged(review, open_page, heard):
    served = review(with_findings())
    page = open_page(served.address)
    page.locator("#tab-duplicates").click()

    def tile(row):
        return page.locator(f".tile[data-row='{row}']")

    for row in (20, 24):
        tile(row).locator("[data-what=remove]").click()
        page.wait_for_selector(f".tile[data-row='{row}'][data-decided=remove]")
    saved(page)
    assert served.current() == {20: Decision(REMOVE, -1), 24: Decision(REMOVE, -1)}
    tile(20).locator("[data-what=remove]").click()
    page.wait_for_selector(".tile[data-row='20']:not([data-decided])")
    saved(page)
    assert served.current() == {24: Decision(REMOVE, -1)}
    assert "agreed" not in page.locator("#progress-words").text_content()
    page.keyboard.press("u")
    page.wait_for_selector(".tile[data-row='20'][data-decided=remove]")
    saved(page)
    assert set(served.current()) == {20, 24}
    assert heard.complaints == []


def test_every_image_that_is_shown_can_have_another_class(review, open_page, heard):
    audit = with_findings()
    served = review(audit)
    page = open_page(served.address)

    def tile(row):
        return page.locator(f".tile[data-row='{row}']")

    page.locator("#tab-outliers").click()
    tile(50).locator("[data-what=other]").click()
    now, other = int(audit.labels[50]), (int(audit.labels[50]) + 2) % 4
    assert page.locator("#chooser-list [aria-selected=true]").text_content() != CLASSES[now]
    page.keyboard.type(CLASSES[other])
    page.keyboard.press("Enter")
    page.wait_for_selector(".tile[data-row='50'][data-decided=relabel]")
    saved(page)
    assert tile(50).locator(".verdict").text_content() == f"Now {CLASSES[other]}"
    # Keys are for the image whose button has the focus, which stays where it is.
    tile(51).locator("[data-what=other]").focus()
    page.keyboard.press("k")
    page.wait_for_selector(".tile[data-row='51'][data-decided=keep]")
    page.keyboard.press("x")
    page.wait_for_selector(".tile[data-row='51'][data-decided=remove]")
    page.keyboard.press("u")
    page.wait_for_selector(".tile[data-row='51'][data-decided=keep]")
    saved(page)
    assert served.current() == {50: Decision(RELABEL, other), 51: Decision(KEEP, audit.labels[51])}
    assert heard.complaints == []


def test_a_label_is_for_all_copies_of_an_image_that_are_not_removed(review, open_page, heard):
    audit = with_findings(duplicate_groups=((20, 25, 26), (30, 34)), identical_groups=2)
    served = review(audit)
    page = open_page(served.address)
    page.locator("#tab-duplicates").click()
    assert page.locator(".group .for-all").count() == 1, "copies with the same label need none"
    page.locator("#tab-conflicts").click()
    label = int(audit.labels[25])
    button = page.locator(f".for-all [data-what='all-{label}']")
    page.locator(".tile[data-row='26'] [data-what=remove]").click()
    button.click()
    saved(page)
    expected = {20: Decision(RELABEL, label), 25: Decision(KEEP, label), 26: Decision(REMOVE, -1)}
    assert served.current() == expected
    assert button.get_attribute("aria-pressed") == "true"
    third = next(c for c in range(4) if c not in audit.labels[[20, 25]])
    page.locator(".for-all [data-what=all]").click()
    page.keyboard.type(CLASSES[third])
    page.keyboard.press("Enter")
    page.wait_for_selector(".for-all button[aria-pressed=false] >> nth=0")
    saved(page)
    assert served.current() == expected | dict.fromkeys([20, 25], Decision(RELABEL, third))
    page.keyboard.press("u")
    page.wait_for_selector(f".for-all [data-what='all-{label}'][aria-pressed=true]")
    saved(page)
    assert served.current() == expected
    assert heard.complaints == []


def test_who_asks_for_another_class_is_shown_neither_the_given_nor_the_proposed_one_first(review, open_page):
    probabilities = np.full((60, 4), 0.01)
    labels = np.arange(60) % 4
    rows = np.arange(60)
    probabilities[rows, labels] = 0.3  # the second, which is the given one
    probabilities[rows, (labels + 1) % 4] = 0.6
    probabilities[rows, (labels + 2) % 4] = 0.02
    probabilities[rows, (labels + 3) % 4] = 0.08
    served = review(make_audit(probabilities=probabilities.astype(np.float32), examples=None))
    page = open_page(served.address)
    row = int(page.locator(".card").first.get_attribute("data-row"))
    page.keyboard.press("c")
    page.keyboard.press("Enter")
    saved(page)
    assert served.current() == {row: Decision(RELABEL, (labels[row] + 3) % 4)}


def test_what_is_not_saved_yet_says_so(review, open_page):
    served = review(with_findings())
    page = open_page(served.address)
    page.route("**/decide", lambda route: route.abort())
    page.keyboard.press("k")
    page.wait_for_selector(".card[data-row='0'][data-saving]")
    assert card(page, 0).locator(".verdict").text_content().endswith(" · saving …")
    page.locator("#tab-outliers").click()
    page.locator(".tile[data-row='50'] [data-what=remove]").click()
    page.wait_for_selector(".tile[data-row='50'][data-saving] .verdict:text-is('Removed · saving …')")
    assert served.current() == {}
    page.unroute("**/decide")
    saved(page)
    assert page.locator(".tile[data-row='50'] .verdict").text_content() == "Removed"
    page.locator("#tab-suspects").click()
    assert page.locator("[data-saving]").count() == 0
    assert card(page, 0).locator(".verdict").text_content() == f"Kept as {CLASSES[0]}"


@pytest.mark.parametrize("budget", [None, 20])
def test_the_page_and_the_dock_name_one_estimate_of_what_is_still_wrong(review, open_page, budget):
    def refit(report, decided):
        after = make_audit().labels.copy()
        probabilities = make_audit().probabilities.copy()
        for row, made in decided.items():
            after[row], probabilities[row] = made.label, np.eye(4)[made.label]
        seen = np.isin(np.arange(60), list(decided))
        return make_audit(probabilities=probabilities, decided=seen, corrected=after)

    page = open_page(review(make_audit(), refit=refit, budget=budget).address)
    assert "About 12 of 60" in page.locator("#headline").text_content()
    assert "12 in the whole set" in page.locator("#progress-words").text_content()
    for row in range(9):
        card(page, row).locator("[data-what=take]").click()
    saved(page)
    page.locator("#refit").click()
    page.wait_for_selector("#headline:has-text('9 labels corrected; about 3 of 60 are still wrong')")
    page.wait_for_selector("#progress-words:has-text('3 in the whole set')")
    assert "3 undecided labels" in page.locator(".lead").text_content() or budget
    page.locator(".heat button").first.click()
    assert page.locator("#state").input_value() == "open"
    assert page.locator(".card[data-decided]").count() == 0


def test_classes_that_are_one_word_are_not_said_to_look_alike(open_page, tmp_path):
    path = write_page(make_audit(inseparable=((0, 1, 0.7), (2, 3, 0.0))), tmp_path, draw)
    page = open_page(path.as_uri())
    page.locator("#tab-alike").click()
    told = [row.locator("td").all_text_contents() for row in page.locator(".facts tbody tr").all()]
    assert told[0][3].startswith("70")
    assert "do not tell them apart" in told[0][2]
    assert told[1] == [CLASSES[2], CLASSES[3], "Their names are one word", ""]
    assert "apart" not in page.locator("#other-hint").text_content()


def test_a_set_without_splits_has_no_part_and_an_empty_folder_is_no_file(open_page, tmp_path):
    faults = (Fault("cat/a.png", "not an image", "train"), Fault("photos/unicorn", "no images in it"))
    page = open_page(write_page(make_audit(unusable=faults[:1]), tmp_path / "one", draw).as_uri())
    page.locator("#tab-unusable").click()
    assert page.locator(".facts th").all_text_contents() == ["File", "Reason"]
    page = open_page(write_page(make_audit(unusable=faults), tmp_path / "both", draw).as_uri())
    assert page.locator("#tab-unusable .number").text_content() == "1"
    page.locator("#tab-empty").click()
    assert page.locator(".facts td").all_text_contents() == ["photos/unicorn"]


def test_what_is_decided_comes_last_in_a_list_that_is_made_again(review, open_page):
    served = review(make_audit(), refit=lambda report, decided: make_audit())
    page = open_page(served.address)
    for row in (0, 1, 4):
        card(page, row).locator("[data-what=take]").click()
    saved(page)
    assert rows(page) == list(range(12)), "nothing moves under one's hands"
    page.reload()
    page.wait_for_selector(".card[data-decided]")
    last = [2, 3, *range(5, 12), 0, 1, 4]
    assert rows(page) == last
    assert card(page, 2).get_attribute("aria-current") == "true"
    page.locator("#order").select_option("close")
    page.wait_for_selector(".card[data-place='0'][data-row='11']")
    assert rows(page) == [*last[:9][::-1], 4, 1, 0]
    page.locator("#order").select_option("name")
    named = sorted(range(12), key=lambda row: make_audit().items[row])
    page.wait_for_selector(f".card[data-place='0'][data-row='{named[0]}']")
    assert rows(page) == named


def test_all_like_this_are_those_that_are_not_decided(review, open_page):
    audit = make_audit(samples=200, wrong=50)
    served = review(audit)
    page = open_page(served.address)
    pair = audit.labels * 4 + audit.ranked[0]
    like = [row for row in range(50) if pair[row] == pair[0]]
    assert len(like) > 3
    button = card(page, like[-1]).locator(".like")
    assert button.text_content().startswith(f"Select {len(like)} like this")
    card(page, like[0]).locator("[data-what=keep]").click()
    saved(page)
    assert button.text_content().startswith(f"Select {len(like) - 1} like this")
    for row in like[1:-1]:
        card(page, row).locator("[data-what=keep]").click()
    saved(page)
    assert button.is_hidden(), "there is none but itself"
    card(page, like[0]).locator(".like").click()
    assert page.locator("#selected-count").text_content() == "1 selected"


def test_who_keeps_what_is_likely_right_agrees_and_who_removes_says_nothing(review, open_page):
    audit = make_audit()
    served = review(audit, budget=20)
    page = open_page(served.address)
    card(page, 0).locator("[data-what=take]").click()  # likely wrong, all but the last eight
    card(page, 1).locator("[data-what=keep]").click()
    card(page, 2).locator("[data-what=remove]").click()
    right = audit.looks(20)[12:14].tolist()
    card(page, right[0]).locator("[data-what=keep]").click()
    # Before and after the server has answered.
    page.route("**/decide", lambda route: route.abort())
    card(page, right[1]).locator("[data-what=take]").click()
    page.wait_for_selector("#trouble:not([hidden])")
    assert "you agreed with 2 of 4" in page.locator("#progress-words").text_content()
    page.unroute("**/decide")
    saved(page)
    assert "you agreed with 2 of 4" in page.locator("#progress-words").text_content()
    agreed = {row: made.agreed for row, made in served.current().items()}
    assert agreed == {0: True, 1: False, 2: None, right[0]: True, right[1]: False}
    page.locator("#state").select_option("against")
    page.wait_for_selector("#count:has-text('2 of')")
    assert set(rows(page)) == {1, right[1]}


def test_a_label_that_was_kept_is_found_among_the_decided_after_a_refit(review, open_page, heard):
    def refit(report, decided):
        # what was kept is right, and no longer among those called wrong
        return make_audit(wrong=12 - len(decided)) if decided else make_audit()

    served = review(make_audit(), refit=refit)
    page = open_page(served.address)
    kept = int(page.locator(".card").last.get_attribute("data-row"))
    card(page, kept).locator("[data-what=keep]").click()
    saved(page)
    page.locator("#refit").click()
    page.wait_for_selector("#tab-suspects .number:text-is('11')")
    assert rows(page) == list(range(11))
    assert "0 of 11 decided" in page.locator("#progress-words").text_content()
    page.locator("#state").select_option("done")
    page.wait_for_selector(f".card[data-row='{kept}']")
    assert rows(page) == [kept]
    assert page.locator("#count").text_content() == "1 of 12 labels"
    card(page, kept).locator("[data-what=remove]").click()
    saved(page)
    assert served.current() == {kept: Decision(REMOVE, -1)}
    assert heard.complaints == []


def test_where_nothing_can_be_told_the_page_claims_nothing(review, open_page, heard, tmp_path):
    audit = make_audit(can_tell=False)
    served = review(audit, budget=5)
    for address in (served.address, write_page(audit, tmp_path / "page", draw, budget=5).as_uri()):
        page = open_page(address)
        assert len(rows(page)) == 5
        text = page.locator("body").inner_text()
        assert "%" not in text
        assert "proposed" not in text.lower()
        assert "should be wrong" not in text
        assert page.locator("[data-what=take], #worst:visible, #confusion:visible").count() == 0
    page = open_page(served.address)
    page.keyboard.press("p")
    page.keyboard.press("k")
    page.keyboard.press("c")
    page.keyboard.type("fox")
    page.keyboard.press("Enter")
    saved(page)
    assert set(served.current().values()) <= {Decision(KEEP, audit.labels[0]), Decision(RELABEL, 3)}
    assert len(served.current()) == 2
    words = page.locator("#progress-words").text_content()
    assert "wrong" not in words
    assert "agreed" not in words
    assert heard.complaints == []


def test_where_the_label_is_likely_right_the_other_class_is_not_called_proposed(open_page, tmp_path):
    audit = make_audit()
    page = open_page(write_page(audit, tmp_path / "page", draw, budget=20).as_uri())
    words = {row: card(page, row).locator(".what").all_text_contents() for row in rows(page)}
    assert words == {
        row: ["given", "proposed" if audit.is_label_issue[row] else "or else"] for row in audit.looks(20).tolist()
    }
    assert page.locator(".side.proposed .strip").count() == 20, "examples of both classes are beside every one"


def test_bars_are_as_long_as_the_share_they_stand_for(open_page, tmp_path):
    audit = make_audit(class_noise_rates=np.array([0.5, 0.21, 0.1, 0.04]))
    page = open_page(write_page(audit, tmp_path / "page", draw).as_uri())
    parts = page.locator(".bar").evaluate_all("all => all.map(b => b.firstChild.clientWidth / b.clientWidth)")
    assert parts == pytest.approx([0.5, 0.21, 0.1, 0.04], abs=0.02)


HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    "a\u202eb\u200b",
    '"quo\'ted" &amp; {{7*7}}',
)


def test_hostile_names_stay_text(review, open_page, heard, tmp_path):
    audit = with_findings(
        class_names=HOSTILE,
        items=[f"{HOSTILE[row % 4]}/{row}</textarea>.png" for row in range(60)],
        source="</h1><script>alert(3)</script>",
        unusable=(Fault("</td><script>alert(4)</script>", "<svg onload=alert(5)>"),),
        made_with={"model": "<script>alert(6)</script>"},
    )
    served = review(audit)
    for address in (served.address, write_page(audit, tmp_path / "page", draw).as_uri()):
        page = open_page(address)
        assert page.locator(".source b").text_content() == "</h1><script>alert(3)</script>"
        shown = page.locator(".card .path").first.text_content()
        assert shown == "<script>alert(1)</script>/0</textarea>.png"
        names = {*HOSTILE[:2], "a\\u202eb\\u200b", HOSTILE[3]}
        assert set(page.locator(".side .class").all_text_contents()) <= names
        options = page.locator("#given option").all_text_contents()
        assert {option.rpartition(" (")[0] for option in options[1:]} == names
        page.locator("#search").fill("<script>alert(1)")
        assert rows(page) == [0, 4, 8]
        for tab in page.locator("[role=tab]").all():
            tab.click()
        assert page.locator("main img, main svg, main script, dialog script").count() == 0
        page.locator("#tab-unusable").click()
        assert page.locator(".facts td").first.text_content() == "</td><script>alert(4)</script>"
    page = open_page(served.address)
    page.keyboard.press("c")
    assert set(page.locator("#chooser-list li span").all_text_contents()) == names
    page.keyboard.press("Enter")
    page.keyboard.press("k")
    saved(page)
    assert len(served.current()) == 2
    assert heard.complaints == []


def test_the_file_works_alone_and_asks_for_nothing(open_page, heard, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "EMBEDDED_BYTES", 90_000)
    audit = with_findings(
        samples=400,
        wrong=330,
        splits=("train",) * 395 + ("test",) * 5,
        is_outlier=np.arange(400) < 3,
        image_issues=("blurry", *[""] * 399),
        duplicate_groups=((20, 24), (30, 31), (3, 399)),
    )
    path = write_page(audit, tmp_path, draw)
    page = open_page(path.as_uri())
    assert page.locator("#headline").text_content().startswith("About 330 of 400 labels")
    assert len(rows(page)) == 60
    assert page.locator(".card .buttons").count() == 0
    for _ in range(5):
        page.keyboard.press("]")
    assert rows(page) == list(range(300, 330))
    # Every picture is there, in the page or beside it: what could not be loaded would have been complained of.
    here = tmp_path.as_uri()
    assert any(url.endswith(".webp") for url in heard.requests)
    assert all(url.startswith((here, "data:")) for url in heard.requests)
    for row in (300, 313, 329):
        small = Image.open(io.BytesIO(card(page, row).locator(".picture .thumb").screenshot())).convert("RGB")
        # The picture is 64 x 48: what lies above and below it is the page's own.
        seen = np.asarray(small.resize((64, 64)), dtype=float)[10:-10, 2:-2]
        assert np.abs(seen - np.asarray(draw(row), dtype=float)[2:-2, 2:-2]).mean() < 12, row
    page.locator(".heat button").first.click()
    given, proposed = page.locator("#given").input_value(), page.locator("#proposed").input_value()
    first = audit.ranked[0]
    like = [row for row in range(330) if (str(audit.labels[row]), str(first[row])) == (given, proposed)]
    assert rows(page) == like[:60] != []
    page.locator("#clear-filters").click()
    page.locator("#order").select_option("name")
    ordered = sorted(range(330), key=lambda row: audit.items[row])
    page.wait_for_selector(f".card[data-place='0'][data-row='{ordered[0]}']")
    assert rows(page) == ordered[:60]
    page.keyboard.press("Escape")
    page.keyboard.press("a")
    assert page.locator("#selected-count").text_content() == "330 selected"
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#help").is_hidden()
    for name, tiles in (("conflicts", 2), ("leaks", 2), ("duplicates", 6), ("outliers", 3), ("issues", 1)):
        page.locator(f"#tab-{name}").click()
        assert page.locator("#other-list .tile").count() == tiles, name
    assert heard.complaints == []


def test_features_have_names_and_no_pictures(open_page, heard, tmp_path):
    page = open_page(write_page(make_audit(examples=None), tmp_path, lambda row: None).as_uri())
    assert len(rows(page)) == 12
    assert page.locator(".thumb").count() == 0
    assert heard.complaints == []


def test_a_hundred_thousand_suspects(open_page, heard, tmp_path):
    audit = make_audit(samples=120_000, wrong=100_000, examples=None)
    page = open_page(write_page(audit, tmp_path, lambda row: None).as_uri())
    assert page.locator(".card").count() == 60
    assert "Page 1 of 1,667" in page.locator("#pager-top").text_content()
    page.locator("#search").fill("/0999")
    # 0999 as it is, and 09990 to 09999 of which two are longer names: four digits are the least a name has.
    expected = [row for row in range(100_000) if "/0999" in audit.items[row]]
    assert rows(page) == expected
    page.locator("#search").fill("")
    page.locator("#given").select_option("1")
    total = int((audit.labels[:100_000] == 1).sum())
    assert page.locator("#count").text_content() == f"{total:,} of 100,000 labels"
    page.locator("#order").select_option("close")
    assert rows(page)[0] == 99_997
    page.locator("#given").select_option("")
    page.locator("#order").select_option("sure")
    page.locator(".card").first.click()
    page.keyboard.press("End")
    page.wait_for_selector(".card[data-row='99999'][aria-current=true]")
    assert page.locator(".card").count() == 40
    assert card(page, 99_999).evaluate("e => e.getBoundingClientRect().bottom <= innerHeight")
    page.keyboard.press("a")
    assert page.locator("#selected-count").text_content() == "100,000 selected"
    assert page.locator("#cards *").count() < 2000, "only what is shown is built"
    assert heard.complaints == []


@pytest.mark.parametrize("width", [360, 390])
def test_a_phone_needs_no_scrolling_sideways(review, open_page, heard, tmp_path, width):
    long = "a_very_long_class_name_without_any_blank_in_it_" * 2
    audit = with_findings(class_names=(long, *CLASSES[1:]), items=[f"{long}/{row}.png" for row in range(60)])
    served = review(audit)
    for address in (served.address, write_page(audit, tmp_path / "page", draw).as_uri()):
        page = open_page(address, width=width)
        page.locator(".card input").first.click()
        for tab in page.locator("[role=tab]").all():
            tab.click()
            wide = page.evaluate("() => document.documentElement.scrollWidth")
            assert wide <= width, tab.text_content()
    assert heard.complaints == []


def test_a_phone_keeps_short_words_whole_and_room_for_the_list(review, open_page):
    audit = with_findings(unusable=(Fault("cat/" + "a_long_name_" * 9 + ".png", "not a whole image", "train"),))
    page = open_page(review(audit, refit=lambda report, decided: audit).address, width=390)
    page.locator(".card [data-what=take]").first.click()
    saved(page)
    height = "() => document.getElementById('dock').offsetHeight"
    assert page.evaluate(height) <= 60
    page.locator(".card input").first.click()
    assert page.evaluate(height) <= 90, "also with buttons for what is selected"
    assert page.locator("#progress-words .less").inner_text() == "about 11 wrong left"
    assert page.locator("#progress-words .more:visible").count() == 0
    page.locator("#tab-unusable").click()
    cells = page.locator(".facts td")
    width = cells.first.evaluate("cell => cell.parentElement.offsetWidth")
    assert width > 300
    assert cells.evaluate_all("cells => cells.map(cell => cell.offsetWidth)") == [width] * 3, "one below the other"
    before = "cells => cells.map(cell => getComputedStyle(cell, '::before').content)"
    assert cells.evaluate_all(before) == ["none", '"Reason: "', '"Part: "']


def test_a_phone_breaks_no_class_name_in_two_and_shows_that_there_are_more_columns(open_page, tmp_path):
    names = [f"trousers {number}" for number in range(20)]
    random = np.random.default_rng(0)
    p = random.dirichlet(np.full(20, 0.3), 400).astype(np.float32)
    audit = make_audit(samples=400, class_names=names, probabilities=p, noise_rate=0.6, examples=None)
    for width, more in ((390, True), (1280, False)):
        page = open_page(write_page(audit, tmp_path, draw).as_uri(), width=width)
        page.locator("#heat tbody th").first.wait_for()
        lines = """cells => Math.max(...cells.map(cell => {
            const range = document.createRange();
            range.selectNodeContents(cell);
            return new Set([...range.getClientRects()].map(one => Math.round(one.top))).size;
        }))"""
        assert page.locator("#heat tbody th span").evaluate_all(lines) <= 2, "word by word"
        assert page.locator(".scroll[data-more]").count() == more
    page = open_page(write_page(audit, tmp_path, draw).as_uri(), width=390)
    page.wait_for_selector(".scroll[data-more]")
    page.locator(".scroll").evaluate("e => e.scrollTo(e.scrollWidth, 0)")
    page.wait_for_selector(".scroll:not([data-more])")


def test_names_of_classes_are_shown_whole(open_page, tmp_path):
    names = ("American Staffordshire Terrier", "Staffordshire Bull Terrier or what looks like it", "dog", "fox")
    page = open_page(write_page(make_audit(class_names=names), tmp_path, draw).as_uri())
    cut = page.locator(".side .line, .bars .name").evaluate_all(
        "all => all.filter(e => e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight + 1).length"
    )
    assert cut == 0
    assert page.locator(".side .class").first.evaluate("e => getComputedStyle(e).textOverflow") == "clip"


def test_small_numbers_have_a_colour_beside_large_ones(open_page, tmp_path):
    probabilities = np.eye(4)[np.arange(400) % 4]
    probabilities[:, 1][np.arange(400) % 4 == 0] = 1  # a hundred of the first class are the second
    probabilities[np.arange(400) % 4 == 0, 0] = 0
    probabilities[1] = [0, 0, 1, 0]  # and one of the second is the third
    facts = {"probabilities": probabilities.astype(np.float32), "noise_rate": 101 / 400}
    audit = make_audit(samples=400, examples=None, **facts)
    page = open_page(write_page(audit, tmp_path, draw).as_uri())
    part = "cell => +cell.style.getPropertyValue('--part')"
    assert page.locator(".heat button[data-pair='0-1']").evaluate(part) == 1
    assert page.locator(".heat button[data-pair='1-2']").evaluate(part) == pytest.approx(0.1)


def test_dark_follows_the_system_until_somebody_chooses(open_page, tmp_path):
    path = write_page(make_audit(), tmp_path, draw).as_uri()

    def ground(page) -> int:
        colour = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))

    assert ground(open_page(path)) > 600
    page = open_page(path, colours="dark")
    assert ground(page) < 150
    page.locator("#theme").click()
    assert ground(page) > 600
    page.reload()
    page.wait_for_selector(".card")
    assert ground(page) > 600, "what was chosen is kept"


def test_it_can_be_used_by_name_and_by_role(review, open_page):
    page = open_page(review(with_findings()).address)
    for role in ("main", "banner", "contentinfo", "tablist", "search", "complementary"):
        assert page.get_by_role(role).count() >= 1, role
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, [role=img], [role=tab]")]
        .filter(e => !(e.textContent.trim() || e.getAttribute("aria-label") || e.closest("label")))
        .map(e => e.outerHTML)"""
    )
    assert unnamed == []
    page.locator("[role=tab]").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("[role=tab]").nth(1).get_attribute("aria-selected") == "true"
    assert page.locator("#status").get_attribute("aria-live") == "polite"
