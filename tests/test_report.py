"""The report: one page that holds all, closes all its tags, and obeys nothing a run folder says."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser

import pytest
from problems import finished_run

from dspt.experiments.collect import find_runs
from dspt.experiments.report import make, write_report
from dspt.internal.errors import InputError

VOID = {"meta", "img", "br", "hr", "link", "input"}
# The smallest PNG: one grey pixel.
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg==")


class Page(HTMLParser):
    """Reads a page, insists that every tag is closed in its order, and keeps what it meets."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    def text(self, tag=None):
        return "\n".join(text for inside, text in self.texts if tag in (None, inside))


def add_run(folder, accuracy, data="caltech101", noise="sym:0.4", method="dspt", seed=1, **more):
    """Write a finished run; `more` are settings, or `zero_shot` and `environment`."""
    result = {
        "data": data,
        "noise": noise,
        "method": method,
        "seed": seed,
        "accuracy": accuracy,
        "zero_shot": more.pop("zero_shot", 60.0),
        "wrong_labels": 0.4,
        "seconds": 12.0,
    }
    environment = more.pop("environment", {"python": "3.99.1"})
    finished_run(folder, result, more, environment=environment)


@pytest.fixture
def report(tmp_path):
    """Return a function that writes the report of the runs in tmp_path/runs and reads it."""

    def make(figures=None):
        (tmp_path / "runs").mkdir(exist_ok=True)
        path = tmp_path / "report.html"
        write_report(find_runs(tmp_path / "runs"), path, figures or {})
        return Page(path.read_text(encoding="utf-8"))

    return make


def test_shows_the_best_in_bold_the_second_underlined_and_the_paper_in_small(tmp_path, report):
    add_run(tmp_path / "runs" / "a", 80.0)
    add_run(tmp_path / "runs" / "b", 70.0, method="mae")
    page = report()
    assert page.text("b") == "80.00"
    assert page.text("u") == "70.00"
    assert "95.07, −15.07" in page.text("small")  # 80 - 95.07


def test_without_a_figure_has_no_picture_and_no_heading_of_one(tmp_path, report):
    add_run(tmp_path / "runs" / "a", 80.0)
    page = report()
    assert page.all("img") == []
    assert "Figures" not in page.text()


def test_without_runs_says_so(report):
    page = report()
    assert "no finished runs" in page.text()
    assert page.all("table") == []


def test_holds_figures_in_itself_with_words_for_those_who_do_not_see_them(tmp_path, report):
    (tmp_path / "f.png").write_bytes(PNG)
    page = report({"Mean loss": tmp_path / "f.png"})
    (image,) = page.all("img")
    assert base64.b64decode(image["src"].removeprefix("data:image/png;base64,")) == PNG
    assert image["alt"] == "Figure: Mean loss"


def test_a_figure_that_is_no_png_or_not_there_is_named(tmp_path, report):
    (tmp_path / "f.pdf").write_bytes(b"%PDF-1.4")
    with pytest.raises(InputError, match=r"loss-curves: .*f\.pdf is not a PNG"):
        report({"loss-curves": tmp_path / "f.pdf"})
    with pytest.raises(InputError, match=r"loss-curves: .*none\.png cannot be read"):
        report({"loss-curves": tmp_path / "none.png"})


def test_asks_nothing_of_the_network(tmp_path, report):
    (tmp_path / "f.png").write_bytes(PNG)
    add_run(tmp_path / "runs" / "a", 80.0)
    page = report({"loss-curves": tmp_path / "f.png"})
    links = [a.get(name, "") for _, a in page.tags for name in ("src", "href")]
    assert all(link.startswith(("data:", "#")) for link in links if link)
    assert page.all("link") == []
    assert not re.search(r"https?://|@import|url\(", (tmp_path / "report.html").read_text())


def test_escapes_everything_that_comes_from_run_folders(tmp_path, report):
    evil = "<script>alert('x')</script>\"&$title"
    add_run(tmp_path / "runs" / "<b>&folder", 80.0, environment={"<i>key": evil})
    add_run(tmp_path / "runs" / "c", 80.0, template=evil + "{}")
    add_run(tmp_path / "runs" / "d", 80.0, data=evil, method=evil, noise=evil, option=[evil + "=1"])
    page = report()
    assert len(page.all("script")) == 1
    assert page.all("i") == []
    assert evil in page.text("td")
    assert evil in page.text("h3")  # the settings in which the runs differ
    assert "<b>&folder" in page.text("td")


def test_runs_of_other_settings_have_a_table_of_their_own_that_says_so(tmp_path, report):
    add_run(tmp_path / "runs" / "a", 80.0, epochs=5)
    add_run(tmp_path / "runs" / "b", 90.0, epochs=7, lr=0.1)
    page = report()
    assert page.text("h3").splitlines() == ["epochs 5, lr 0.002", "epochs 7, lr 0.1"]
    assert page.text("b").splitlines() == ["80.00", "90.00"]


def test_runs_of_the_same_settings_have_one_table_without_such_a_heading(tmp_path, report):
    add_run(tmp_path / "runs" / "a", 80.0, workers=1)
    add_run(tmp_path / "runs" / "b", 90.0, workers=2, seed=2)
    page = report()
    assert page.all("h3") == []
    assert page.text("b") == "85.00"


def test_runs_of_clip_are_not_shown_as_trained_from_scratch(tmp_path, report):
    add_run(tmp_path / "runs" / "a", 80.0, data="cifar10", noise="sym:0.2", method="coop")
    assert "from scratch" not in report().text()


def test_runs_of_a_figure_with_settings_of_its_own_are_in_no_table(tmp_path, report):
    add_run(tmp_path / "runs" / "a", 80.0, noise="sym:0.6", epochs=1, lr=0.0, warmup_lr=0.0)
    page = report()
    assert [a["class"] for a in page.all("table")] == ["list sortable", "list"]


def test_leaves_out_methods_without_runs_and_names_them(tmp_path, report):
    add_run(tmp_path / "runs" / "a", 80.0)
    page = report()
    assert "NLPrompt" not in page.text("th")
    assert "NLPrompt" in page.text("li")


def test_lists_every_run_and_the_machines(tmp_path, report):
    add_run(tmp_path / "runs" / "first", 81.234, noise="instance:0.4")
    add_run(tmp_path / "runs" / "second", 70.0, environment="broken")
    (tmp_path / "runs" / "second" / "environment.json").write_text("{")
    text = report().text("td").splitlines()
    assert {"first", "second", "instance:0.4", "81.23", "60.00", "40.0", "12", "3.99.1"} <= set(text)


def test_every_table_has_a_caption_and_every_heading_a_scope(tmp_path, report):
    add_run(tmp_path / "runs" / "a", 80.0)
    page = report()
    assert len(page.all("caption")) == len(page.all("table")) == 3
    assert all("scope" in attributes for attributes in page.all("th"))
    assert page.text("title") == "dspt report: 1 run"
    assert page.all("html")[0]["lang"] == "en"


def test_is_the_same_page_for_the_same_runs(tmp_path, report):
    add_run(tmp_path / "runs" / "a", 80.0, epochs=5)
    add_run(tmp_path / "runs" / "b", 90.0, epochs=7)
    report()
    first = (tmp_path / "report.html").read_bytes()
    report()
    assert (tmp_path / "report.html").read_bytes() == first


def test_networks_from_scratch_of_different_sizes_have_tables_of_their_own(tmp_path, report):
    for model in ("small", "resnet34"):
        where = {"data": "CIFAR10", "noise": "sym:0.5", "learner": "network", "model": model}
        add_run(tmp_path / "runs" / model, 20.0, method="coop", **where)
    headings = report().text("h3")
    assert "model resnet34" in headings
    assert "model small" in headings


def test_what_cannot_be_shown_is_named_and_the_rest_is_there(tmp_path):
    add_run(tmp_path / "runs" / "a", 80.0)
    add_run(tmp_path / "runs" / "b", 81.0)  # the same run, another accuracy
    add_run(tmp_path / "runs" / "c", 20.0, data="dtd", method="upl", noise="none")
    shown = make(tmp_path / "runs", tmp_path / "report.html")
    assert "not of the same accuracy" in str(shown.contents["main"])
    text = Page((tmp_path / "report.html").read_text()).text()
    assert "not of the same accuracy" in text
    assert "Table unsupervised, from 1 run" in text


def test_rows_and_columns_without_runs_are_named_apart(tmp_path):
    """A comma belongs to a name: "Bootstrap, hard" is one method."""
    for method in ("dspt", "bootstrap"):
        add_run(tmp_path / "runs" / method, 80.0, noise="sym:0.6", method=method)
    make(tmp_path / "runs", tmp_path / "report.html")
    text = Page((tmp_path / "report.html").read_text()).text()
    (methods,) = re.findall("Methods without runs, and so left out: (.*Bootstrap, hard.*)", text)
    assert {"CoOp", "Bootstrap, hard"} <= {*methods.removesuffix(".").split("; ")}
    assert "Columns without runs, and so left out: clean; pair-flip 40 %." in text


def test_a_page_with_the_suffix_of_something_else_is_refused(tmp_path):
    from typer.testing import CliRunner

    from dspt.cli import app

    add_run(tmp_path / "runs" / "a", 80.0)
    shown = CliRunner().invoke(app, ["report", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "a.pdf")])
    assert isinstance(shown.exception, InputError)
    assert "a.pdf: expected an .html file for the page" in str(shown.exception)
    assert not (tmp_path / "a.pdf").exists()


def test_why_a_figure_is_left_out_names_no_option_of_another_command(tmp_path):
    from typer.testing import CliRunner

    from dspt.cli import app

    add_run(tmp_path / "runs" / "a", 80.0, epochs=5)
    add_run(tmp_path / "runs" / "b", 90.0, epochs=7)
    asked = ["report", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "report.html")]
    shown = CliRunner().invoke(app, asked)
    assert "figure accuracy-vs-noise: left out, its runs differ in epochs" in shown.stderr
    assert "where" not in shown.stderr


def test_every_table_and_figure_is_named_in_order_with_why_it_is_left_out(tmp_path):
    from typer.testing import CliRunner

    from dspt.cli import app
    from dspt.experiments.catalogue import EXPERIMENTS

    add_run(tmp_path / "runs" / "a", 80.0)
    asked = ["report", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "report.html")]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0, shown.output
    said = dict(line.split(": ", 1) for line in shown.stderr.splitlines())
    assert list(said) == [*(f"{one.kind} {name}" for name, one in EXPERIMENTS.items()), "figure loss-landscape"]
    assert said["table main"] == "shown"
    assert said["figure accuracy-vs-noise"] == "drawn"
    # the only run of sym 40 is of another figure's noise, but not recorded epoch by epoch
    assert said["figure loss-curves"].startswith("left out, run folder")
    assert said["figure early-accuracy"] == (
        "left out, there are no runs of it; 'dspt reproduce early-accuracy' makes them"
    )
    assert said["figure loss-landscape"] == (
        "left out, it is drawn from formulas and shows no runs; 'dspt figure loss-landscape' draws it"
    )
    assert "loss-landscape" in json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)["left_out"]
    page = Page((tmp_path / "report.html").read_text()).text("li").splitlines()
    assert [line for line in page if line.startswith(("table ", "figure "))] == [f"{n}: {w}" for n, w in said.items()]
