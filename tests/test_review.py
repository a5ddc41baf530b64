"""Decisions last, and the page on which they are made answers nobody else."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from audits import CLASSES, draw, make_audit, no_picture, with_findings
from PIL import Image
from starlette.testclient import TestClient

from dspt.auditing.report import write_page
from dspt.data.images import BadImage
from dspt.internal.errors import FileError, InputError
from dspt.review import server
from dspt.review.decisions import KEEP, RELABEL, REMOVE, Decision, Decisions
from dspt.review.server import make_app

ITEMS = ("a.png", "b.png", "c.png", "d.png")
NAMES = ("cat", "dog", "fox")


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "decisions.sqlite"


@pytest.fixture
def decisions(path):
    with Decisions(path, ITEMS, NAMES) as made:
        yield made


# Decisions


def test_the_last_decision_stands(decisions):
    decisions.decide([0, 1], RELABEL, 2)
    decisions.decide([1], KEEP, 0)
    decisions.decide([3], REMOVE)
    assert decisions.current() == {0: Decision(RELABEL, 2), 1: Decision(KEEP, 0), 3: Decision(REMOVE, -1)}


def test_several_may_have_a_label_each(decisions):
    decisions.decide([0, 2], RELABEL, [1, 2])
    assert decisions.current() == {0: Decision(RELABEL, 1), 2: Decision(RELABEL, 2)}


def test_undo_takes_back_one_batch_after_the_other(decisions):
    first = decisions.decide([0, 1], RELABEL, 2)
    second = decisions.decide([1, 2], REMOVE)
    assert decisions.undo() == second
    assert decisions.current() == {0: Decision(RELABEL, 2), 1: Decision(RELABEL, 2)}
    assert decisions.undo() == first
    assert decisions.current() == {}
    assert decisions.undo() is None
    third = decisions.decide([0], KEEP, 1)
    assert third not in (first, second)
    assert decisions.undo() == third


def test_a_decision_and_an_undo_are_there_when_the_file_is_opened_again(path):
    with Decisions(path, ITEMS, NAMES) as made:
        made.decide([0], KEEP, 0)
        made.decide([1], REMOVE)
        made.undo()
    with Decisions(path, ITEMS, NAMES) as made:
        assert made.current() == {0: Decision(KEEP, 0)}


def test_nothing_is_ever_taken_out_of_the_file(decisions, path):
    decisions.decide([0], KEEP, 0)
    decisions.undo()
    decisions.decide([0], REMOVE)
    with sqlite3.connect(path) as connection:
        events = connection.execute("SELECT id, batch, row, item, action, label FROM events").fetchall()
    assert events == [
        (1, 1, 0, "a.png", "keep", "cat"),
        (2, 1, -1, "", "undo", None),
        (3, 3, 0, "a.png", "remove", None),
    ]


def test_since_tells_what_changed(decisions):
    decisions.decide([0], KEEP, 0)
    last, changed = decisions.since(0)
    assert changed == {0: Decision(KEEP, 0)}
    assert decisions.since(last) == (last, {})
    decisions.decide([0, 1], REMOVE)
    decisions.undo()
    assert decisions.since(last)[1] == {0: Decision(KEEP, 0), 1: None}


def test_a_call_that_is_made_again_changes_nothing(decisions):
    batch = decisions.decide([0], REMOVE, request="x")
    decisions.decide([0], KEEP, 1)
    assert decisions.decide([0], REMOVE, request="x") == batch
    assert decisions.current() == {0: Decision(KEEP, 1)}
    undone = decisions.undo(request="y")
    assert decisions.undo(request="y") == undone
    assert decisions.current() == {0: Decision(REMOVE, -1)}


def test_decisions_follow_the_names_of_samples_and_classes(path):
    with Decisions(path, ITEMS, NAMES) as made:
        made.decide([0, 2], RELABEL, [1, 2])
    with Decisions(path, ("c.png", "new.png", "a.png"), ("fox", "dog")) as made:
        assert made.current() == {2: Decision(RELABEL, 1), 0: Decision(RELABEL, 0)}
        assert made.faults() == []


def test_whether_it_was_the_likeliest_class_is_kept(path):
    def agreed():
        with Decisions(path, ITEMS, NAMES) as made:
            return [made.current()[row].agreed for row in range(4)]

    with Decisions(path, ITEMS, NAMES) as made:
        made.decide([0, 1], RELABEL, [2, 2], likeliest=[2, 1])
        made.decide([2, 3], KEEP, [1, 1], likeliest=[1, 0])
    assert agreed() == [True, False, True, False]
    with Decisions(path, ITEMS, NAMES) as made:
        made.decide([0, 1], REMOVE, likeliest=[2, 1])
        made.decide([2], KEEP, 1)
    assert agreed() == [None, None, None, False]


def test_many_decisions_of_different_kinds_are_one_batch(decisions, path):
    decisions.decide([0], KEEP, 0)
    taken = {0: Decision(RELABEL, 2), 3: Decision(REMOVE, -1), 1: Decision(KEEP, 1, agreed=True)}
    batch = decisions.take(taken)
    assert decisions.current() == taken
    assert decisions.current()[1].agreed is True
    assert decisions.current()[0].agreed is None
    assert sorted(decisions.rows(batch)) == [0, 1, 3]
    assert decisions.undo() == batch
    assert decisions.current() == {0: Decision(KEEP, 0)}


@pytest.mark.parametrize(
    "wrong", [{4: Decision(KEEP, 0)}, {1: Decision(RELABEL, 3)}, {1: Decision("burn", 0)}, {1: Decision(KEEP, -1)}]
)
def test_many_decisions_are_taken_whole_or_not_at_all(decisions, wrong):
    with pytest.raises(InputError):
        decisions.take({0: Decision(REMOVE, -1), **wrong})
    assert decisions.current() == {}
    assert decisions.undo() is None


def test_taking_no_decisions_leaves_nothing_to_undo(decisions):
    batch = decisions.decide([0], REMOVE)
    assert decisions.take({}) == 0
    assert decisions.undo() == batch


def test_what_is_not_there_any_more_is_told_and_not_lost(path):
    with Decisions(path, ITEMS, NAMES) as made:
        made.decide([0, 1], RELABEL, [2, 1])
        made.decide([2], REMOVE)
    with Decisions(path, ("a.png", "b.png"), ("cat", "dog")) as made:
        assert made.current() == {1: Decision(RELABEL, 1)}
        told = {fault.name: fault.reason for fault in made.faults()}
        assert "'fox'" in told["a.png"]
        assert "no longer among the samples" in told["c.png"]
    with Decisions(path, ITEMS, NAMES) as made:
        assert len(made.current()) == 3


def test_a_file_that_is_listed_twice_is_two_samples(path):
    with Decisions(path, ("a.png", "b.png", "a.png"), NAMES) as made:
        made.decide([0], REMOVE)
        assert made.current() == {0: Decision(REMOVE, -1)}
    with Decisions(path, ("b.png", "a.png", "a.png"), NAMES) as made:
        assert made.current() == {1: Decision(REMOVE, -1)}


def test_names_that_are_no_text(path):
    items, names = ("\udcff.png", "a\x00b", "'; DROP TABLE events; --"), ("\ud800", "x\ny")
    with Decisions(path, items, names) as made:
        made.decide([0, 1, 2], RELABEL, [0, 1, 0])
    with Decisions(path, items, names) as made:
        assert made.current() == {0: Decision(RELABEL, 0), 1: Decision(RELABEL, 1), 2: Decision(RELABEL, 0)}


def test_many_rows_at_once(path):
    items = [f"{i}.png" for i in range(3000)]
    with Decisions(path, items, NAMES) as made:
        made.decide(range(3000), RELABEL, [i % 3 for i in range(3000)])
        assert made.of(range(3000)) == made.current()
        assert made.of([7, 5]) == {7: Decision(RELABEL, 1), 5: Decision(RELABEL, 2)}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([0], "burn", 0), "keep, relabel, remove"),
        (([], KEEP, 0), "rows"),
        (([4], KEEP, 0), "row 4: expected 0..3"),
        (([-1], KEEP, 0), "row -1"),
        (([0], RELABEL, 3), "label 3: expected 0..2"),
        (([0], RELABEL, None), "label: none is given"),
        (([0, 1], RELABEL, [0]), "1 for 2 rows"),
    ],
)
def test_what_cannot_be_decided_is_refused_whole(decisions, arguments, words):
    with pytest.raises(InputError, match=words.replace(".", r"\.")):
        decisions.decide(*arguments)
    assert decisions.current() == {}


def _damaged(path: Path, kind: str) -> None:
    if kind == "text":
        path.write_text("no database at all, and longer than the head of one would be" * 20)
    elif kind == "other":
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE t (x)")
    elif kind == "newer":
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA application_id = 0x64737074")
            connection.execute("PRAGMA user_version = 99")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with Decisions(path, [f"{i}.png" for i in range(2000)], NAMES) as made:
            made.decide(range(2000), REMOVE)
        content = bytearray(path.read_bytes())
        if kind == "cut":
            path.write_bytes(content[: len(content) // 2])
        else:
            content[4096 : len(content) - 4096] = b"\xaa" * (len(content) - 8192)
            path.write_bytes(content)


@pytest.mark.parametrize("kind", ["text", "other", "newer", "folder", "pipe", "cut", "scratched"])
def test_a_damaged_file_is_one_sentence(path, kind):
    _damaged(path, kind)
    with pytest.raises(InputError) as error:
        Decisions(path, ITEMS, NAMES)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_what_was_decided_before_a_removal_can_stand_again(path):
    with Decisions(path, ITEMS, NAMES) as made:
        made.decide([0], RELABEL, 2, likeliest=[2])
        made.decide([1], KEEP, 1)
        made.decide([0, 1, 2, 3], REMOVE)
        batch = made.restore([0, 1, 2], request="again")
        assert made.restore([0, 1, 2], request="again") == batch
        expected = {0: Decision(RELABEL, 2), 1: Decision(KEEP, 1), 3: Decision(REMOVE, -1)}
        assert made.current() == expected, "nobody has decided about row 2"
        assert made.current()[0].agreed is True
        assert made.of([2]) == {2: None}
        assert made.since(0)[1] == {**expected, 2: None}
        assert made.faults() == []
    with Decisions(path, ("b.png", "x.png"), NAMES) as made:
        assert {fault.name for fault in made.faults()} == {"a.png", "d.png"}
    with Decisions(path, ITEMS, NAMES) as made:
        assert made.undo() == batch
        assert made.current() == {row: Decision(REMOVE, -1) for row in range(4)}
        made.restore([2])
        made.restore([2])
        assert 2 not in made.current()
        with pytest.raises(InputError, match="row 9"):
            made.restore([9])


@pytest.mark.parametrize("what", ["moved", "deleted", "replaced"])
def test_a_list_that_is_taken_away_under_a_review_takes_no_decision(tmp_path, what):
    report, elsewhere = tmp_path / "report", tmp_path / "elsewhere"
    report.mkdir()
    with Decisions(report / "decisions.sqlite", ITEMS, NAMES) as made:
        made.decide([0], KEEP, 1)
        if what == "deleted":
            shutil.rmtree(report)
        else:
            report.rename(elsewhere)
        if what == "replaced":
            shutil.copytree(elsewhere, report)
        for attempt in (lambda: made.decide([1], REMOVE), made.undo, lambda: made.since(0)):
            with pytest.raises(FileError, match="moved or deleted"):
                attempt()
        if what == "moved":
            elsewhere.rename(report)
            made.decide([2], REMOVE)
            assert set(made.current()) == {0, 2}


def test_an_empty_file_is_a_beginning(path):
    path.touch()
    with Decisions(path, ITEMS, NAMES) as made:
        made.decide([0], REMOVE)
        assert len(made.current()) == 1


def test_a_place_that_cannot_be_written_to_is_one_sentence(tmp_path):
    with pytest.raises(FileError, match="cannot be read or saved"):
        Decisions(tmp_path / "none" / "decisions.sqlite", ITEMS, NAMES)


def _decide_many(path: Path, start, which: int) -> None:
    start.wait()
    with Decisions(path, [f"{i}.png" for i in range(200)], NAMES) as made:
        for row in range(which * 50, which * 50 + 50):
            made.decide([row], RELABEL, row % 3)


def test_processes_lose_nothing_of_each_other(path):
    context = multiprocessing.get_context("spawn")
    start = context.Event()
    processes = [context.Process(target=_decide_many, args=(path, start, which)) for which in range(4)]
    for process in processes:
        process.start()
    start.set()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    with Decisions(path, [f"{i}.png" for i in range(200)], NAMES) as made:
        assert made.current() == {row: Decision(RELABEL, row % 3) for row in range(200)}


def test_threads_lose_nothing_of_each_other(path):
    with Decisions(path, [f"{i}.png" for i in range(80)], NAMES) as made:
        threads = [
            threading.Thread(target=lambda k=k: [made.decide([row], REMOVE) for row in range(k, 80, 4)])
            for k in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made.current()) == 80
        assert len({batch for batch in map(made.undo, [None] * 80) if batch}) == 80


def test_a_kill_loses_nothing_that_was_acknowledged(path):
    code = (
        "import sys; from dspt.review.decisions import Decisions\n"
        f"made = Decisions(sys.argv[1], [f'{{i}}.png' for i in range(10**4)], {NAMES!r})\n"
        "for row in range(10**4): made.decide([row], 'keep', row % 3); print(row, flush=True)\n"
    )
    victim = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    acknowledged = [int(victim.stdout.readline()) for _ in range(25)]
    victim.send_signal(signal.SIGKILL)
    acknowledged += [int(line) for line in victim.stdout if line.strip()]
    victim.wait()
    with Decisions(path, [f"{i}.png" for i in range(10**4)], NAMES) as made:
        assert made.current().keys() >= set(acknowledged)


# The server

PORT = 8765
TOKEN = "the-token"
HOST = {"host": f"127.0.0.1:{PORT}"}
ORIGIN = {"origin": f"http://127.0.0.1:{PORT}"}


@pytest.fixture
def served(tmp_path):
    """A review with everything that was asked of it to make again, and a client that knows the token."""
    audit = with_findings()
    asked = []

    def refit(report, decided):
        asked.append((report, decided))
        return make_audit(wrong=6, splits=audit.splits)

    app = make_app(tmp_path, TOKEN, port=PORT, audit=audit, open_picture=draw, refit=refit)
    with TestClient(app, base_url=f"http://127.0.0.1:{PORT}", raise_server_exceptions=False) as client:
        assert client.get("/", params={"token": TOKEN}).status_code == 200
        data = client.get("/data.json").json()

        def post(path, headers=ORIGIN, **body):
            return client.post(path, json={"generation": data["generation"]} | body, headers=headers)

        yield SimpleNamespace(client=client, data=data, post=post, asked=asked, folder=tmp_path, audit=audit)
    app.state.review.decisions.close()


def stranger(served) -> TestClient:
    return TestClient(served.client.app, base_url=f"http://127.0.0.1:{PORT}")


PATHS = ["/", "/page.js", "/page.css", "/data.json", "/decisions", "/image/0", "/thumb/0", "/thumbs/0", "/favicon.ico"]


@pytest.mark.parametrize("path", [*PATHS, "/nothing"])
def test_nothing_is_served_without_the_token(served, path):
    for asked in (path, f"{path}?token=", f"{path}?token={TOKEN}x", f"{path}?token={TOKEN[:-1]}"):
        answer = stranger(served).get(asked)
        assert answer.status_code == 403
        assert "token" in answer.text
        assert TOKEN not in answer.text
    if path != "/":
        assert stranger(served).get(f"{path}?token={TOKEN}").status_code == 403, "the token is for the page alone"


def test_the_token_becomes_a_cookie_that_no_script_and_no_other_site_gets(served):
    answer = stranger(served).get("/", params={"token": TOKEN})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"dspt-{PORT}={TOKEN};")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert "set-cookie" not in served.client.get("/data.json").headers


def test_decisions_need_the_token(served):
    body = {"generation": served.data["generation"], "rows": [0], "labels": [-1], "action": "remove"}
    assert stranger(served).post("/decide", json=body, headers=ORIGIN).status_code == 403
    assert stranger(served).post(f"/decide?token={TOKEN}", json=body, headers=ORIGIN).status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", f"127.0.0.1:{PORT}.evil.example", ""]
)
def test_another_host_is_refused(served, host):
    assert served.client.get("/data.json", headers={"host": host}).status_code == 403


def test_localhost_is_this_machine_too(served):
    assert served.client.get("/data.json", headers={"host": f"localhost:{PORT}"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {"origin": f"https://127.0.0.1:{PORT}"},
        {"origin": "http://127.0.0.1:1"},
        ORIGIN | {"sec-fetch-site": "cross-site"},
        ORIGIN | {"sec-fetch-site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", ["/decide", "/undo", "/refit"])
def test_changes_come_from_the_page_alone(served, headers, path):
    served.post("/decide", rows=[0], labels=[-1], action="remove")
    assert served.post(path, headers=headers, rows=[1], labels=[-1], action="remove").status_code == 403
    assert set(served.client.app.state.review.decisions.current()) == {0}
    assert served.asked == []


def test_another_site_cannot_read_either(served):
    assert served.client.get("/data.json", headers={"origin": "http://evil.example"}).status_code == 403


@pytest.mark.parametrize("path", [*PATHS, "/nothing", "/image/100000", "/decisions?since=x"])
def test_every_answer_is_guarded(served, path):
    for client in (served.client, stranger(served)):
        headers = client.get(path).headers
        assert headers["content-security-policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers


def test_a_failure_is_guarded_and_tells_nothing(served, monkeypatch):
    monkeypatch.setattr(served.client.app.state.review.decisions, "since", lambda event: 1 / 0)
    answer = served.client.get("/decisions")
    assert answer.status_code == 500
    assert "zero" not in answer.text
    assert answer.headers["cache-control"] == "no-store"


def test_the_served_page_has_no_script_or_style_of_its_own(served):
    text = served.client.get("/").text
    assert "<style" not in text
    assert " style=" not in text
    assert text.count("<script") == 1
    assert '<script src="/page.js"></script>' in text
    assert "About 12 of 60 labels are wrong" in text


def test_the_data_are_those_of_the_audit(served):
    assert [served.data["images"]["row"][i] for i in served.data["suspects"]["image"]] == list(range(12))
    assert served.data["refit"] is True
    assert served.data["pictures"] is True


def test_decide_undo_and_since(served):
    answer = served.post("/decide", rows=[0, 1], labels=[2, 3], action="relabel")
    agreed = [int(first) == label for first, label in zip(served.audit.ranked[0], (2, 3), strict=False)]
    assert answer.json() == {"changed": [[0, "relabel", 2, agreed[0]], [1, "relabel", 3, agreed[1]]]}
    served.post("/decide", rows=[1], labels=[-1], action="remove")
    since = served.client.get("/decisions?since=0").json()
    assert since["changed"] == [[0, "relabel", 2, agreed[0]], [1, "remove", -1, None]]
    assert served.post("/undo").json()["changed"] == [[1, "relabel", 3, agreed[1]]]
    later = served.client.get(f"/decisions?since={since['last']}").json()
    assert later["changed"] == [[1, "relabel", 3, agreed[1]]]
    with Decisions(served.folder / "decisions.sqlite", served.audit.items, CLASSES) as made:
        assert made.current() == {0: Decision(RELABEL, 2), 1: Decision(RELABEL, 3)}


def test_a_label_that_becomes_what_it_was_is_kept_and_undone_with_the_others(served):
    given = served.audit.labels.tolist()
    rows, label = [0, 1, 4], given[0]
    answer = served.post("/decide", rows=rows, labels=[label] * 3, action="relabel", request="once")
    assert [one[1] for one in answer.json()["changed"]] == [
        "keep" if given[row] == label else "relabel" for row in rows
    ]
    assert {one[1] for one in answer.json()["changed"]} == {"keep", "relabel"}
    again = served.post("/decide", rows=rows, labels=[label] * 3, action="relabel", request="once")
    assert again.json() == answer.json()
    assert [one[:2] for one in served.post("/undo").json()["changed"]] == [[row, None] for row in rows]
    assert served.post("/undo").json()["batch"] is None


def test_nothing_to_undo(served):
    assert served.post("/undo").json() == {"batch": None, "changed": []}


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"rows": [0], "labels": [0], "action": "burn"}, 400, "keep, relabel, remove"),
        ({"rows": [60], "labels": [0], "action": "keep"}, 400, "row 60"),
        ({"rows": [-1], "labels": [0], "action": "keep"}, 400, "row -1"),
        ({"rows": [0], "labels": [4], "action": "keep"}, 400, "label 4"),
        ({"rows": [0], "labels": [4], "action": "relabel"}, 400, "label 4: expected 0..3"),
        ({"rows": [4, 1], "labels": [0, 2], "action": "keep"}, 400, "label 2: expected 1, which is given, to keep"),
        ({"rows": [0], "labels": [-1], "action": "keep"}, 400, "label -1: expected 0, which is given, to keep"),
        ({"rows": [0], "labels": [], "action": "keep"}, 400, "0 for 1 rows"),
        ({"rows": "0", "labels": [0], "action": "keep"}, 400, "rows: expected a list"),
        ({"rows": [0.5], "labels": [0], "action": "keep"}, 400, "rows: expected a list"),
        ({"rows": [True], "labels": [0], "action": "keep"}, 400, "rows: expected a list"),
        ({"rows": [0], "labels": [10**30], "action": "keep"}, 400, "labels: expected a list"),
        ({"rows": [0], "labels": [0], "action": "keep", "request": "x" * 65}, 400, "request"),
        ({"rows": [0], "labels": [0], "action": "keep", "generation": 1}, 409, "loaded again"),
        ({"rows": [0], "labels": [0], "action": ["keep"]}, 400, "decision"),
    ],
)
def test_a_decision_that_makes_no_sense_is_a_sentence(served, body, status, words):
    answer = served.post("/decide", **body)
    assert answer.status_code == status
    assert words in answer.json()["error"]
    assert served.client.get("/decisions").json()["changed"] == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 10_000, b"null", b'"x"'])
def test_what_is_no_json_object_is_a_sentence(served, content):
    headers = ORIGIN | {"content-type": "application/json"}
    answer = served.client.post("/decide", content=content, headers=headers)
    assert answer.status_code == 400
    assert "JSON" in answer.json()["error"]


def test_a_form_of_another_site_is_no_decision(served):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        answer = served.client.post("/decide", content=b"{}", headers=ORIGIN | {"content-type": kind})
        assert answer.status_code == 415


def test_a_body_has_a_limit(served, monkeypatch):
    monkeypatch.setattr(server, "MOST_BYTES", 1000)
    content = json.dumps({"generation": served.data["generation"], "rows": [0] * 1000})
    answer = served.client.post("/decide", content=content, headers=ORIGIN | {"content-type": "application/json"})
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "path",
    [
        "/thumbs/../decisions.sqlite",
        "/thumbs/..%2fdecisions.sqlite",
        "/thumbs/index.json",
        "/thumbs/-1",
        "/thumbs/0/../../decisions.sqlite",
        "/decisions.sqlite",
        "/image/-1",
        "/image/60",
        "/image/99999999999999999999999999",
        "/image/..%2f..%2fetc%2fpasswd",
        "/image//etc/passwd",
        "//etc/passwd",
        "/page.html",
        "/index.html",
    ],
)
def test_nothing_else_is_served(served, path):
    write_page(served.audit, served.folder, draw)
    assert served.client.get(path).status_code == 404


def test_pictures(served):
    answer = served.client.get("/image/5")
    assert answer.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(answer.content)).size == (64, 48)
    thumb = Image.open(io.BytesIO(served.client.get("/thumb/5").content))
    assert thumb.width == thumb.height


def test_a_large_picture_is_made_smaller(tmp_path):
    app = make_app(
        tmp_path, TOKEN, port=PORT, audit=make_audit(), open_picture=lambda row: Image.new("RGB", (3000, 1500))
    )
    client = TestClient(app, base_url=f"http://127.0.0.1:{PORT}", cookies={f"dspt-{PORT}": TOKEN})
    assert Image.open(io.BytesIO(client.get("/image/0").content)).size == (1024, 512)


def test_where_there_is_no_picture_there_is_none(tmp_path):
    def gone(row):
        raise BadImage("x.png", "no such file")

    for opener, has in ((no_picture, False), (gone, True)):
        app = make_app(tmp_path, TOKEN, port=PORT, audit=make_audit(), open_picture=opener)
        client = TestClient(app, base_url=f"http://127.0.0.1:{PORT}", cookies={f"dspt-{PORT}": TOKEN})
        assert client.get("/data.json").json()["pictures"] is has
        for path in ("/image/0", "/thumb/0"):
            assert client.get(path).status_code == 404


def test_the_thumbnails_of_the_report_are_served(tmp_path):
    audit = make_audit()
    write_page(audit, tmp_path, draw)
    app = make_app(tmp_path, TOKEN, port=PORT, audit=audit, open_picture=draw)
    client = TestClient(app, base_url=f"http://127.0.0.1:{PORT}", cookies={f"dspt-{PORT}": TOKEN})
    data = client.get("/data.json").json()
    assert data["sheets"] == ["/thumbs/0"]
    assert min(data["images"]["place"]) == 0
    answer = client.get("/thumbs/0")
    assert answer.headers["content-type"].startswith("image/")
    assert answer.content == next((tmp_path / "thumbs").glob("0000-*")).read_bytes()


def test_refit_makes_the_list_again_from_what_was_decided(served):
    served.post("/decide", rows=[0], labels=[-1], action="remove")
    answer = served.post("/refit")
    assert answer.status_code == 200
    assert served.asked == [(served.folder, {0: Decision(REMOVE, -1)})]
    data = served.client.get("/data.json").json()
    assert len(data["suspects"]["image"]) == 6
    assert data["generation"] == answer.json()["generation"] != served.data["generation"]
    assert served.client.get("/decisions").json()["changed"] == [[0, "remove", -1, None]]
    late = served.post("/decide", rows=[1], labels=[-1], action="remove")
    assert late.status_code == 409, "the page shows an old list, and is to know it"


def test_a_refit_that_fails_is_a_sentence_and_leaves_the_list(tmp_path):
    def refit(report, decided):
        raise InputError("too few labels are left to learn from")

    app = make_app(tmp_path, TOKEN, port=PORT, audit=make_audit(), open_picture=draw, refit=refit)
    client = TestClient(app, base_url=f"http://127.0.0.1:{PORT}", cookies={f"dspt-{PORT}": TOKEN})
    generation = client.get("/data.json").json()["generation"]
    for _ in range(2):
        answer = client.post("/refit", json={"generation": generation}, headers=ORIGIN)
        assert answer.status_code == 400
        assert answer.json()["error"] == "too few labels are left to learn from"


def _client(folder, **given) -> TestClient:
    app = make_app(folder, TOKEN, port=PORT, **({"audit": make_audit(), "open_picture": draw} | given))
    return TestClient(app, base_url=f"http://127.0.0.1:{PORT}", cookies={f"dspt-{PORT}": TOKEN})


def _rows(data) -> list[int]:
    return [data["images"]["row"][image] for image in data["suspects"]["image"]]


def test_a_review_that_is_started_again_goes_on_from_what_was_decided(tmp_path):
    audit, asked = make_audit(), []

    def refit(report, decided):
        asked.append(decided)
        return make_audit(wrong=6)

    with Decisions(tmp_path / "decisions.sqlite", audit.items, CLASSES) as made:
        made.decide([0], REMOVE)
    client = _client(tmp_path, refit=refit)
    assert "About 6 of 60 labels" in client.get("/").text
    assert client.get("/data.json").json()["summary"]["listed"] == 6
    assert asked == [{0: Decision(REMOVE, -1)}]


def test_what_was_taken_back_since_the_report_was_made_is_judged_again(tmp_path):
    settled = make_audit(decided=np.arange(60) == 3)
    client = _client(tmp_path, audit=settled, refit=lambda report, decided: make_audit(wrong=7))
    assert client.get("/data.json").json()["summary"]["listed"] == 7


def test_a_review_is_not_kept_from_starting_by_a_refit_that_fails(tmp_path):
    def refit(report, decided):
        raise InputError("too few labels are left to learn from")

    with Decisions(tmp_path / "decisions.sqlite", make_audit().items, CLASSES) as made:
        made.decide([0], REMOVE)
    client = _client(tmp_path, refit=refit)
    data = client.get("/data.json").json()
    assert data["summary"]["listed"] == 12
    answer = client.post("/refit", json={"generation": data["generation"]}, headers=ORIGIN)
    assert answer.json()["error"] == "too few labels are left to learn from"


def test_what_was_decided_can_be_found_again_after_a_refit(tmp_path):
    client = _client(tmp_path, refit=lambda report, decided: make_audit(wrong=6))
    generation = client.get("/data.json").json()["generation"]
    body = {"generation": generation, "rows": [8, 3], "labels": [0, 3], "action": "keep"}
    assert client.post("/decide", json=body, headers=ORIGIN).status_code == 200
    client.post("/refit", json={"generation": generation}, headers=ORIGIN)
    data = client.get("/data.json").json()
    assert data["summary"]["listed"] == 6
    assert _rows(data) == [*range(6), 8]


def test_where_nothing_is_proposed_nobody_agrees_or_disagrees(tmp_path):
    client = _client(tmp_path, audit=make_audit(can_tell=False), budget=5)
    generation = client.get("/data.json").json()["generation"]
    body = {"generation": generation, "rows": [0], "labels": [1], "action": "relabel"}
    answer = client.post("/decide", json=body, headers=ORIGIN)
    assert answer.json() == {"changed": [[0, "relabel", 1, None]]}


def test_a_label_that_is_likely_right_is_agreed_with_by_keeping_it(tmp_path):
    audit = make_audit()
    client = _client(tmp_path, audit=audit, budget=20)
    generation = client.get("/data.json").json()["generation"]
    sure, wrong = 30, 0
    for row, agreed in ((sure, True), (wrong, False)):
        body = {"generation": generation, "rows": [row], "labels": [int(audit.labels[row])], "action": "keep"}
        answer = client.post("/decide", json=body, headers=ORIGIN)
        assert answer.json() == {"changed": [[row, "keep", int(audit.labels[row]), agreed]]}


def test_without_refit_there_is_none(tmp_path):
    app = make_app(tmp_path, TOKEN, port=PORT, audit=make_audit(), open_picture=draw)
    client = TestClient(app, base_url=f"http://127.0.0.1:{PORT}", cookies={f"dspt-{PORT}": TOKEN})
    data = client.get("/data.json").json()
    assert data["refit"] is False
    assert client.post("/refit", json={"generation": data["generation"]}, headers=ORIGIN).status_code == 404


def test_a_port_that_is_taken_is_one_sentence(tmp_path):
    with server._listening(0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(FileError, match=f"port {port}: cannot be used"):
            server.serve(tmp_path, port=port)
    with pytest.raises(FileError, match="port 70000"):
        server.serve(tmp_path, port=70000)
