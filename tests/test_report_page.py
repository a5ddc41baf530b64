"""The page of an audit: what it says, what it needs, and that no name in it is obeyed."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audits import draw, make_audit, no_picture, with_findings
from PIL import Image

from dspt.auditing import report
from dspt.auditing.audit import Audit
from dspt.auditing.report import as_json, headline, page_data, page_file, sheet_places, write_page
from dspt.data.images import BadImage
from dspt.internal.errors import Fault

HOSTILE = ("<script>alert(1)</script>", "</script><b>", "a\u202eb", '"quo\'ted" & <!--')


class Parsed(HTMLParser):
    """The scripts and styles of a page, its attributes, and its policy."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.inside: list[tuple[str, dict[str, Any]]] = []
        self.texts: list[tuple[str, dict[str, Any], str]] = []
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside.append((tag, dict(attrs)))
            self.texts.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag):
        if self.inside and self.inside[-1][0] == tag:
            self.inside.pop()

    def handle_data(self, data):
        if self.inside:
            tag, attrs, text = self.texts[-1]
            self.texts[-1] = tag, attrs, text + data

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(next(text for tag, attrs, text in self.texts if attrs.get("type") == "application/json"))

    @property
    def policy(self) -> str:
        return next(attrs["content"] for tag, attrs in self.tags if attrs.get("http-equiv"))


def parsed(path: Path) -> Parsed:
    return Parsed(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({}, "About 12 of 60 labels are wrong (20 %, give or take 3)."),
        ({"noise_rate_error": 0.002}, "About 12 of 60 labels are wrong (20.0 %, give or take 0.4)."),
        ({"noise_rate_error": 0.0}, "About 12 of 60 labels are wrong (20.0 %, give or take 0.1)."),
        ({"noise_rate": 0.001}, "Hardly any of the 60 labels is wrong (0 %, at most 3 %)."),
        ({"noise_rate_error": 0.12}, "About 12 of 60 labels are wrong (20 %, at most 44 %)."),
        ({"can_tell": False}, "How many of the 60 labels are wrong cannot be told."),
        ({"noise_rate_error": 0.25}, "How many of the 60 labels are wrong cannot be told."),
        (
            {"noise_rate": float("nan"), "noise_rate_error": float("nan")},
            "How many of the 60 labels are wrong cannot be told.",
        ),
    ],
)
def test_the_headline_is_the_estimate_with_two_standard_errors(changed, sentence):
    assert headline(make_audit(**changed)) == sentence


@pytest.mark.parametrize(
    ("corrected", "kept", "removed", "changed", "sentence"),
    [
        (9, 0, 0, {}, "9 labels corrected; about 3 of 60 are still wrong (5 %, give or take 3)."),
        (1, 2, 3, {}, "1 label corrected, 2 kept, 3 removed; about 10 of 57 are still wrong (18 %, give or take 3)."),
        (0, 1, 0, {}, "1 label kept; about 12 of 60 are still wrong (20 %, give or take 3)."),
        (12, 8, 0, {}, "12 labels corrected, 8 kept; hardly any of 60 is still wrong (0 %, at most 3 %)."),
        (10, 50, 0, {}, "10 labels corrected, 50 kept; none is left to decide about."),
        (0, 0, 2, {"can_tell": False}, "2 labels removed; how many of the others are wrong cannot be told."),
    ],
)
def test_what_is_decided_is_told_apart_in_the_headline(corrected, kept, removed, changed, sentence):
    assert headline(some_decided(corrected, kept, removed, **changed)) == sentence


def some_decided(corrected: int, kept: int = 0, removed: int = 0, **changed: Any) -> Audit:
    """Return an audit in which the first labels were decided about, in this order."""
    audit = make_audit(**changed)
    number = np.arange(60)
    after = np.where(number < corrected, (audit.labels + 1) % 4, audit.labels)
    after[corrected + kept : corrected + kept + removed] = -1
    p = audit.probabilities.copy()
    seen = number < corrected + kept
    p[seen] = np.eye(4)[after[seen]]
    return make_audit(probabilities=p, decided=number < corrected + kept + removed, corrected=after, **changed)


def test_once_some_are_decided_figures_are_of_those_that_are_not():
    audit = some_decided(9)
    data = page_data(audit, decided=range(9))
    assert data["summary"]["decided"] == 9
    assert "3 undecided labels are more likely wrong than right" in data["summary"]["explanation"]
    assert data["summary"]["expected_everywhere"] == pytest.approx(3, abs=0.01)
    assert sum(rate * count for _, rate, count in data["worst"]) <= 3.01
    assert sum(map(sum, data["confusion"]["counts"])) == pytest.approx(3, abs=0.05)
    doubt = dict(zip(data["images"]["row"], data["images"]["doubt"], strict=True))
    assert all(doubt[row] == 0 for row in range(9))
    shown = [data["images"]["row"][image] for image in data["suspects"]["image"]]
    assert sorted(shown) == list(range(12)), "whoever decided finds it again"
    alone = page_data(audit)
    assert [alone["images"]["row"][image] for image in alone["suspects"]["image"]] == [9, 10, 11]


def test_no_label_that_nobody_decided_is_surely_anything():
    p = np.eye(4, dtype=np.float32)[make_audit().probabilities.argmax(1)]
    p[0] = p[0] * np.float32(0.99997) + np.float32(0.00001)
    data = page_data(make_audit(probabilities=p))["suspects"]
    assert all(0 < chance < 1 for name in ("p", "q", "quality") for chance in data[name])
    decided = page_data(some_decided(2), decided=[0, 1])["suspects"]
    assert (decided["p"][0], decided["quality"][0]) == (1, 0)


def test_the_best_class_that_is_neither_given_nor_proposed_is_there():
    random = np.random.default_rng(0)
    p = random.dirichlet(np.ones(4), 60).astype(np.float32)
    audit = make_audit(probabilities=p)
    for budget in (None, 60):
        data = page_data(audit, budget)
        rows = [data["images"]["row"][image] for image in data["suspects"]["image"]]
        for row, proposed, other in zip(rows, data["suspects"]["proposed"], data["suspects"]["other"], strict=True):
            rest = set(range(4)) - {int(audit.labels[row]), proposed}
            assert other == max(rest, key=lambda c, row=row: p[row, c])
    two = make_audit(class_names=("cat", "dog"))
    assert page_data(two)["suspects"]["other"] == [None] * 12


def test_an_empty_folder_is_no_unusable_file():
    faults = (Fault("cat/broken.png", "not a whole image"), Fault("photos/unicorn", "no images in it"))
    found = page_data(make_audit(unusable=faults))["findings"]
    assert [row[0] for row in found["unusable"]] == ["cat/broken.png"]
    assert found["empty"] == ["photos/unicorn"]


def test_large_numbers_have_three_digits():
    audit = make_audit(samples=50_000, wrong=10, noise_rate=0.16047)
    assert headline(audit).startswith("About 8,020 of 50,000 labels")


def test_suspects_are_the_labels_called_wrong_the_surest_first():
    audit = make_audit()
    data = page_data(audit)
    suspects, images = data["suspects"], data["images"]
    assert [images["row"][image] for image in suspects["image"]] == list(range(12))
    first = audit.probabilities[:12].argmax(1)
    assert suspects["proposed"] == first.tolist()
    np.testing.assert_allclose(suspects["p"], np.linspace(0.95, 0.6, 12), atol=1e-4)
    np.testing.assert_allclose(suspects["quality"], audit.label_quality[:12], atol=1e-4)
    assert all(r not in (g, p) or g == r for r, g, p in zip(suspects["runner"], audit.labels, first, strict=False))
    for row, both in enumerate(suspects["examples"]):
        for side, some in enumerate(both):
            assert [images["row"][one] for one in some] == audit.examples[row, side].tolist()


def test_a_budget_shows_so_many_and_how_many_of_them_should_be_wrong():
    audit = make_audit()
    data = page_data(audit, budget=20)
    rows = [data["images"]["row"][image] for image in data["suspects"]["image"]]
    assert rows == audit.looks(20).tolist()
    expected = audit.doubts[rows].sum()
    assert data["summary"]["expected"] == pytest.approx(expected, abs=0.01)
    everything = page_data(audit, budget=60)["summary"]
    assert everything["expected"] == everything["expected_everywhere"] == pytest.approx(12, abs=0.01)
    assert "About 12 of 60" in everything["headline"], "two figures for the same are one"
    assert "about 12 of them" in everything["explanation"]
    assert f"about {round(expected)} of them should be wrong" in data["summary"]["explanation"]
    # The last eight are most likely right: another class is shown all the same, with its own examples.
    given, proposed = audit.labels[rows], np.array(data["suspects"]["proposed"])
    assert all(proposed != given)
    for position, both in enumerate(data["suspects"]["examples"]):
        for some, c in zip(both, (given[position], proposed[position]), strict=True):
            assert some != []
            assert all(data["images"]["label"][one] == c for one in some)


def test_examples_of_a_class_that_is_not_shown_are_left_out():
    audit = make_audit()
    audit.examples[:, 1] = audit.examples[:, 0]  # as older reports have them where the label is likely right
    assert all(given and not other for given, other in page_data(audit, budget=20)["suspects"]["examples"])


def test_where_nothing_can_be_told_nothing_is_said_to_be_wrong():
    data = page_data(make_audit(can_tell=False))
    assert data["suspects"]["image"] == data["worst"] == data["confusion"]["classes"] == []
    assert data["summary"]["expected"] is data["summary"]["expected_everywhere"] is None
    assert data["summary"]["can_tell"] is False


def test_where_nothing_can_be_told_a_budget_claims_nothing_about_those_it_shows():
    data = page_data(make_audit(can_tell=False), budget=20)
    assert len(data["suspects"]["image"]) == data["summary"]["listed"] == 20
    for name in ("proposed", "p", "runner", "q", "quality"):
        assert data["suspects"][name] == [None] * 20
    assert data["suspects"]["examples"] == []
    assert data["summary"]["explanation"] == (
        "Neither the images nor the class names tell enough about the labels. None is called wrong."
    )


@pytest.mark.parametrize("budget", [None, 20])
def test_an_estimate_that_is_worth_nothing_is_in_no_figure(budget):
    audit = make_audit(noise_rate_error=0.3)
    data = page_data(audit, budget)
    assert data["worst"] == data["confusion"]["classes"] == data["confusion"]["counts"] == []
    assert data["summary"]["expected"] is data["summary"]["expected_everywhere"] is None
    assert "should be wrong" not in data["summary"]["explanation"]
    assert data["suspects"]["p"][0] == pytest.approx(0.95), "what is known of a single label is shown"


@pytest.mark.parametrize("budget", [None, 5])
def test_labels_that_are_decided_follow_after_those_listed(budget):
    audit = make_audit()
    plain, data = page_data(audit, budget), page_data(audit, budget, decided=[40, 2, 30])
    rows = [data["images"]["row"][image] for image in data["suspects"]["image"]]
    listed = 12 if budget is None else 5
    assert rows == [*range(listed), 30, 40]
    assert data["summary"]["listed"] == plain["summary"]["listed"] == listed
    for name in ("expected", "explanation"):
        assert data["summary"][name] == plain["summary"][name]
    assert len(data["suspects"]["p"]) == len(data["suspects"]["examples"]) == listed + 2


def test_a_page_does_not_tell_where_the_data_lie():
    data = page_data(make_audit(made_with={"model": "embedded", "path": "/home/somebody/photos"}))
    assert data["made_with"] == {"model": "embedded"}


def test_the_worst_classes_and_the_confusion():
    audit = make_audit(noise_rate=float((1 - make_audit().label_quality).mean()))
    data = page_data(audit)
    rates = [rate for _, rate, _ in data["worst"]]
    assert rates == sorted(rates, reverse=True)
    for label, rate, count in data["worst"]:
        assert rate == pytest.approx(audit.class_noise_rates[label], abs=1e-4)
        assert count == (audit.labels == label).sum()
    for i, given in enumerate(data["confusion"]["classes"]):
        for j, true in enumerate(data["confusion"]["classes"]):
            expected = audit.probabilities[audit.labels == given, true].sum() if i != j else 0
            assert data["confusion"]["counts"][i][j] == pytest.approx(expected, abs=0.01)


def test_a_heat_map_has_the_twenty_classes_most_often_confused():
    audit = make_audit(samples=900, wrong=30, class_names=[f"c{i}" for i in range(30)])
    shown = page_data(audit)["confusion"]["classes"]
    counts = audit.confusion()
    np.fill_diagonal(counts, 0)
    involved = counts.sum(0) + counts.sum(1)
    assert len(shown) == 20
    assert involved[shown].min() >= np.delete(involved, shown).max()


def test_every_other_finding_is_there():
    audit = with_findings()
    data = page_data(audit)
    row, found = data["images"]["row"], data["findings"]
    groups = [([row[i] for i in g["images"]], g["identical"], g["differ"], g["leak"]) for g in found["groups"]]
    assert groups == [([20, 24], True, False, False), ([30, 31], False, True, False), ([32, 56], False, False, True)]
    assert {row[i] for i in found["outliers"]} == {50, 51}
    assert {issue: [row[i] for i in some] for issue, some in found["issues"].items()} == {
        "tiny": [41],
        "dark": [40],
        "blurry": [40],
    }
    assert found["unusable"] == [["cat/broken.png", "not a whole image", "train"]]
    assert found["inseparable"] == [[0, 3, 0.7, True]]
    assert data["images"]["split"][row.index(56)] == "test"


def test_the_page_needs_nothing_but_itself(tmp_path):
    path = write_page(with_findings(), tmp_path / "report", draw)
    page = parsed(path)
    assert path == tmp_path / "report" / "index.html"
    for _, attrs in page.tags:
        assert not {"src", "style"} & attrs.keys()
        assert "href" not in attrs or attrs["href"].startswith("#")
        assert not [name for name in attrs if name.startswith("on")]
    assert all(sheet.startswith("data:image/") for sheet in page.data["sheets"])
    assert not re.search(r"https?://", page_file("page.js") + page_file("page.css") + page_file("page.html"))


def test_the_policy_allows_its_own_script_and_style_alone(tmp_path):
    page = parsed(write_page(make_audit(), tmp_path, draw))
    code = [(tag, text) for tag, attrs, text in page.texts if not attrs.get("type")]
    assert [tag for tag, _ in code] == ["style", "script"]
    for tag, text in code:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in page.policy
    assert page.policy.startswith("default-src 'none'; ")
    assert "unsafe" not in page.policy
    assert "img-src data: 'self';" in page.policy


def test_a_thumbnail_is_where_the_page_looks_for_it(tmp_path):
    page = parsed(write_page(make_audit(samples=200, wrong=150), tmp_path, draw)).data
    sheets = [
        Image.open(io.BytesIO(base64.b64decode(sheet.partition(",")[2]))).convert("RGBA") for sheet in page["sheets"]
    ]
    assert len(sheets) == 2
    for row, place in list(zip(page["images"]["row"], page["images"]["place"], strict=True))[::17]:
        left, top = (place % 100 % 10) * report.CELL + report.MARGIN, (place % 100 // 10) * report.CELL + report.MARGIN
        found = np.asarray(sheets[place // 100].crop((left, top, left + report.SIDE, top + report.SIDE)))
        # A picture of 64 x 48 leaves an eighth free above and below.
        assert (found[: report.SIDE // 8 - 4, :, 3] == 0).all()
        inside = slice(report.SIDE // 8 + 4, -report.SIDE // 8 - 4)
        wide = np.asarray(draw(row).resize((report.SIDE, report.SIDE * 3 // 4)), dtype=float)[4:-4]
        assert np.abs(found[inside, :, :3].astype(float) - wide).mean() < 8


def test_what_is_too_much_for_the_page_lies_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "EMBEDDED_BYTES", 0)
    audit = make_audit()
    page = parsed(write_page(audit, tmp_path, draw)).data
    assert page["sheets"]
    assert all((tmp_path / sheet).is_file() for sheet in page["sheets"])
    names, places = sheet_places(tmp_path / "thumbs", audit)
    assert [f"thumbs/{name}" for name in names] == page["sheets"]
    assert [places[row] for row in page["images"]["row"]] == page["images"]["place"]


def test_a_page_that_is_made_again_leaves_no_old_thumbnails(tmp_path):
    write_page(make_audit(), tmp_path, draw)
    write_page(make_audit(), tmp_path, lambda row: draw(row + 100))
    names, _ = sheet_places(tmp_path / "thumbs", make_audit())
    assert {path.name for path in (tmp_path / "thumbs").iterdir()} == {*names, "index.json"}
    assert {path.name for path in tmp_path.iterdir()} == {"index.html", "thumbs"}


def test_thumbnails_of_another_audit_are_not_taken(tmp_path):
    write_page(make_audit(), tmp_path, draw)
    other = make_audit(items=[f"other/{row}.png" for row in range(60)])
    assert sheet_places(tmp_path / "thumbs", other) == ([], {})


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"sheets": ["../x"], "rows": [], "laid_out": [124, 2, 10], "items": ""}', "null"]
)
def test_a_damaged_list_of_thumbnails_is_no_list(tmp_path, text):
    (tmp_path / "index.json").write_text(text)
    assert sheet_places(tmp_path, make_audit()) == ([], {})


def test_images_that_cannot_be_shown_are_named(tmp_path):
    def picture(row: int) -> Image.Image | None:
        if row == 0:
            raise BadImage("0.png", "no such file")
        return None if row == 1 else draw(row)

    page = parsed(write_page(make_audit(), tmp_path, picture)).data
    place = dict(zip(page["images"]["row"], page["images"]["place"], strict=True))
    assert place[0] == place[1] == -1
    assert sorted(one for one in place.values() if one >= 0) == list(range(len(place) - 2))


def test_the_script_knows_how_thumbnails_lie_on_a_sheet():
    numbers = dict(re.findall(r"\b([A-Z]+) = (\d+)", page_file("page.js")))
    assert {name: int(numbers[name]) for name in ("SIDE", "MARGIN", "ACROSS")} == {
        name: getattr(report, name) for name in ("SIDE", "MARGIN", "ACROSS")
    }
    assert page_file("page.css").count(f"100% * {report.ACROSS * report.CELL} / {report.SIDE}") == 2
    assert page_file("page.css").count(f"100% * {report.CELL} / {report.SIDE}") == 2


def test_pictures_have_a_limit_and_other_findings_keep_their_share(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "MOST_PICTURES", 5)
    monkeypatch.setattr(report, "MOST_OTHERS", 3)
    monkeypatch.setattr(report, "MOST_EXAMPLES", 2)
    page = parsed(write_page(with_findings(), tmp_path, draw)).data
    own, place = page["summary"]["images_of_suspects"], page["images"]["place"]
    assert place[:5] == [0, 1, 2, 3, 4]
    assert set(place[5:own]) == {-1}
    assert place[own : own + 3] == [5, 6, 7]
    assert set(place[own + 3 :]) == {-1}
    assert len(page["suspects"]["examples"]) == 2


def test_sets_of_features_have_names_alone(tmp_path):
    page = parsed(write_page(make_audit(examples=None), tmp_path, no_picture)).data
    assert page["sheets"] == []
    assert set(page["images"]["place"]) == {-1}
    assert page["suspects"]["examples"] == []


def test_hostile_names_end_no_script_and_begin_no_tag(tmp_path):
    audit = make_audit(
        class_names=HOSTILE,
        items=[f"{HOSTILE[row % 4]}/{row}.png" for row in range(60)],
        source="</title><script>x",
        unusable=(Fault("</script>", "<img src=x onerror=alert(1)>"),),
        made_with={"<b>": "</dd><script>"},
    )
    path = write_page(audit, tmp_path, draw)
    page, plain = parsed(path), parsed(write_page(make_audit(), tmp_path / "plain", draw))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert page.data["classes"] == ["<script>alert(1)</script>", "</script><b>", "a\\u202eb", '"quo\'ted" & <!--']
    assert page.data["findings"]["unusable"][0][0] == "</script>"


def test_json_inside_a_page_has_no_letter_that_html_or_a_script_obeys():
    value = {"<>&\u2028\u2029": "</script>"}
    text = as_json(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == value


@pytest.mark.parametrize("theme", [0, 1, 2])
def test_text_can_be_read_in_both_colours(theme):
    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    block = re.findall(r":root[^{]*\{([^}]*)\}", page_file("page.css"))[theme]
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
    heat = [int(one) for one in re.search(r"--heat: (\d+) (\d+) (\d+)", block).groups()]
    colours["heat"] = "#" + "".join(f"{one:02x}" for one in heat)
    pairs = [("ink", on) for on in ("page", "card", "raised", "tint", "heat")]
    pairs += [(soft, on) for soft in ("soft", "accent") for on in ("page", "card", "raised", "tint")]
    pairs += [("given", "card"), ("proposed", "card"), ("given", "tint"), ("proposed", "tint"), ("bad", "bad-tint")]
    pairs += [("on-accent", "accent"), ("page", "ink"), ("bad", "card")]
    for ink, ground in pairs:
        a, b = sorted((light(colours[ink]), light(colours[ground])))
        assert (b + 0.05) / (a + 0.05) >= 4.5, (ink, ground)


def test_the_two_lists_of_dark_colours_are_one():
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", page_file("page.css"))
    assert blocks[1].split() == blocks[2].split()


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to read the script of the page")
def test_the_script_is_whole():
    subprocess.run(["node", "--check", "-"], input=page_file("page.js"), text=True, check=True)
