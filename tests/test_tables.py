"""Tables: figures in the paper's places, best and second-best marked, empty cells empty, in all four styles."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import shutil
import subprocess
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from problems import finished_run

from dspt.config import config_for
from dspt.experiments.catalogue import EXPERIMENTS, NINE, on_data
from dspt.experiments.collect import TableRun, collect, find_runs
from dspt.experiments.grid import AVERAGE, SHOW, arrange, title
from dspt.experiments.tables import STYLES, render
from dspt.experiments.terminal import columns
from dspt.internal.errors import InputError
from dspt.runs import Result, Run

MAIN = EXPERIMENTS["main"]
TABLES = [name for name, experiment in EXPERIMENTS.items() if experiment.kind == "table"]


@pytest.fixture
def results(tmp_path):
    """Return a function that writes run folders of (dataset, noise, method, seed, accuracy) and collects them."""

    def make(runs, experiment=MAIN, zero_shot=50.0):
        for number, (dataset, noise, method, seed, accuracy) in enumerate(runs):
            folder = tmp_path / f"run{number}"
            result = {
                "data": dataset,
                "noise": noise,
                "method": method,
                "seed": seed,
                "accuracy": accuracy,
                "zero_shot": zero_shot,
            }
            settings = {"epochs": 5} | ({"learner": "network"} if experiment.from_scratch else {})
            finished_run(folder, result, settings)
        found = find_runs(tmp_path)
        # those that are not the paper's are asked for
        others = {run.dataset for run in found} - set(experiment.datasets)
        asked = on_data(experiment, sorted(others)).conditions
        return collect(replace(experiment, conditions=(*experiment.conditions, *asked)), found)

    return make


# By hand: DSPT (80 + 82) / 2 = 81 with deviation sqrt(2); the paper prints 95.07 for DSPT and 91.06 for CoOp.
RUNS = [
    ("caltech101", "sym:0.4", "dspt", 1, 80.0),
    ("caltech101", "sym:0.4", "dspt", 2, 82.0),
    ("caltech101", "sym:0.4", "coop", 1, 70.06),
    ("caltech101", "sym:0.4", "mae", 1, 60.0),
]


def line(text, *starts):
    """Return the first line in which these texts stand in this order."""
    pattern = re.compile(r".*".join(map(re.escape, starts)))
    return next(found for found in text.splitlines() if pattern.search(found))


def markdown_cells(text, label):
    return [cell.strip() for cell in line(text, f"| {label} |").split("|")[3:-1]]


def latex_cells(text, label):
    found = line(text, f"{label} &").removesuffix(r" \\")
    return [cell.strip() for cell in re.split(r"(?<!\\)&", found)[2:]]


def latex_names(text):
    """Return the headings of a row behind its first cell."""
    return [cell.strip() for cell in text.removesuffix(r" \\").split("&")[1:] if cell.strip()]


def latex_tabulars(text):
    """Return the form of each tabular and what is in it."""
    return re.findall(r"\\begin\{tabular\}\{([^\n]*)\}\n(.*?)\\end\{tabular\}", text, re.DOTALL)


def latex_width(row):
    """Return how many columns a row fills."""
    cells = re.split(r"(?<!\\)&", row)
    spans = [re.match(r"\s*\\multicolumn\{(\d+)\}", cell) for cell in cells]
    return sum(int(span[1]) if span else 1 for span in spans)


def wide(span):
    return span[1] - span[0]


def spans(pattern, text):
    """Return where the texts that fit a pattern begin and end."""
    return [found.span() for found in re.finditer(pattern, text)]


def complete(name, datasets=None):
    """Return the results of an experiment with two seeds in every cell, on some or all of its datasets."""
    experiment = EXPERIMENTS[name]
    settings = asdict(config_for("network" if experiment.from_scratch else "prompt")())
    runs = []
    for condition in experiment.conditions:
        for number, variant in enumerate(experiment.variants):
            for seed in (1, 2):
                where = {"data": condition.dataset, "noise": condition.noise, "method": variant.method, "seed": seed}
                result = Result(**where, epochs=50, accuracy=40.0 + 10 * seed + number, zero_shot=50.0)
                made = TableRun(
                    dataset=condition.dataset,
                    noise=condition.noise,
                    method=variant.method,
                    options=variant.options,
                    seed=seed,
                    settings=settings | {"model_fingerprint": "x"},
                    result=result,
                    class_names=(),
                    run=Run(Path("none")),
                    old_rule=False,
                    is_job=True,
                )
                if datasets is None or condition.dataset in datasets:
                    runs.append(made)
    return collect(experiment, runs)


class TestMarks:
    def test_markdown_has_the_best_in_bold_and_the_second_underlined(self, results):
        text = render(results(RUNS), "markdown", show="paper")
        assert markdown_cells(text, "DSPT")[0] == "**81.00 ± 1.41**<br><sub>95.07, −14.07</sub>"
        assert markdown_cells(text, "CoOp")[0] == "<u>70.06</u><br><sub>91.06, −21.00</sub>"
        assert markdown_cells(text, "MAE")[0] == "60.00"

    def test_latex_has_the_best_in_bold_and_the_second_underlined(self, results):
        text = render(results(RUNS), "latex", show="paper")
        assert latex_cells(text, "DSPT")[0] == r"\textbf{81.00}{\tiny$\pm$1.41}"
        assert latex_cells(text, "CoOp")[0] == r"\underline{70.06}"
        assert latex_cells(text, "MAE")[0] == "60.00"
        assert r"{\tiny 95.07, $-$14.07}" in text

    def test_a_cell_shows_the_mean_alone_unless_more_is_asked_for(self, results):
        found = results(RUNS)
        assert latex_cells(render(found, "latex"), "DSPT")[0] == r"\textbf{81.00}"
        assert latex_cells(render(found, "latex", show="std"), "DSPT")[0] == r"\textbf{81.00}{\tiny$\pm$1.41}"
        assert all("95.07" not in render(found, style, show="std") for style in ("terminal", "markdown", "latex"))
        with pytest.raises(InputError, match="show 'median': not known; a cell shows mean, std, paper"):
            render(found, "latex", show="median")

    def test_plain_text_marks_them_and_says_how(self, results):
        text = render(results(RUNS), "terminal", show="std")
        assert line(text, "  DSPT ").split("│")[0].split(maxsplit=1)[1].strip() == "81.00 ± 1.41*"
        assert line(text, "  CoOp ").split()[1] == "70.06_"
        assert line(text, "  MAE ").split()[1] == "60.00"
        assert "* best of a setting, _ second-best" in text
        assert "\x1b" not in text

    def test_the_paper_and_the_difference_stand_on_the_line_below_ours(self, results):
        lines = render(results(RUNS), "terminal", show="paper").splitlines()
        ours = next(i for i, text in enumerate(lines) if text.startswith("  DSPT "))
        assert lines[ours + 1].replace("│", "").split() == ["paper,", "diff.", "95.07", "-14.07"]

    def test_colour_is_bold_underline_and_dim_with_the_same_columns(self, results):
        found = results(RUNS)
        text = render(found, "terminal", show="std", colour=True)
        assert "\x1b[1m81.00 ± 1.41\x1b[0m" in text
        assert "\x1b[4m70.06\x1b[0m" in text
        assert "1.41*" not in text
        bare = re.sub(r"\x1b\[\d+m", "", text).splitlines()
        marked = render(found, "terminal", show="std").replace("1.41*", "1.41 ").replace("0.06_", "0.06 ")
        row = line(marked, "  DSPT ")
        assert row in bare

    def test_equal_figures_share_a_mark(self, results):
        runs = [("DTD", "sym:0.4", m, 1, a) for m, a in (("coop", 70), ("mae", 70), ("dspt", 60))]
        text = render(results(runs), "markdown")
        assert markdown_cells(text, "CoOp")[0].startswith("**70.00**")
        assert markdown_cells(text, "MAE")[0] == "**70.00**"
        assert markdown_cells(text, "DSPT")[0].startswith("<u>60.00</u>")

    def test_what_looks_equal_shares_a_mark_whatever_the_hidden_decimals(self, results):
        runs = [("DTD", "sym:0.4", m, 1, a) for m, a in (("coop", 70.004), ("mae", 69.996), ("dspt", 69.994))]
        text = render(results(runs), "markdown")
        assert markdown_cells(text, "CoOp")[0].startswith("**70.00**")
        assert markdown_cells(text, "MAE")[0] == "**70.00**"
        assert markdown_cells(text, "DSPT")[0].startswith("<u>69.99</u>")

    def test_a_half_is_shown_and_ranked_as_more(self, results):
        runs = [("DTD", "sym:0.4", m, 1, a) for m, a in (("coop", 79.335), ("mae", 79.34), ("dspt", 79.334))]
        text = render(results(runs), "markdown")
        assert markdown_cells(text, "CoOp")[0].startswith("**79.34**")
        assert markdown_cells(text, "MAE")[0] == "**79.34**"
        assert markdown_cells(text, "DSPT")[0].startswith("<u>79.33</u>")

    def test_a_difference_that_rounds_to_zero_has_no_sign(self, results):
        text = render(results([("Caltech101", "sym:0.4", "dspt", 1, 95.066)]), "markdown", show="paper")
        assert "95.07, 0.00<" in text

    def test_an_unknown_style_is_named(self, results):
        with pytest.raises(InputError, match=r"'papyrus'.*terminal, markdown, latex, csv"):
            render(results(RUNS), "papyrus")


class TestEmptyCells:
    def test_stay_empty_in_markdown_though_the_paper_has_them(self, results):
        assert markdown_cells(render(results(RUNS), "markdown"), "NLPrompt") == [""] * 6

    def test_stay_empty_in_latex(self, results):
        assert latex_cells(render(results(RUNS), "latex"), "NLPrompt") == [""] * 6

    def test_stay_empty_on_a_terminal(self, results):
        text = render(results(RUNS), "terminal")
        assert line(text, "  NLPrompt").replace("│", "").strip() == "NLPrompt"
        assert "95.36" not in text

    def test_stay_empty_in_csv(self, results):
        rows = csv.DictReader(io.StringIO(render(results(RUNS), "csv")))
        (row,) = (r for r in rows if r["method"] == "NLPrompt" and r["noise"] == "sym:0.4")
        assert [row[k] for k in ("seeds", "mean", "std", "difference", "rank")] == ["0"] + [""] * 4

    @pytest.mark.parametrize("style", STYLES)
    def test_no_run_at_all_is_no_figure_at_all(self, results, style):
        assert not re.search(r"\d\d\.\d", render(results([]), style))


class TestGrid:
    def test_main_has_a_block_for_each_dataset_with_methods_below_zero_shot(self, results):
        table = arrange(results(RUNS))
        assert [block.name for block in table.blocks] == ["Caltech101"]
        assert [row.label for row in table.rows] == ["zero-shot", *(e.label for e in MAIN.variants)]
        assert table.columns[0] == ("symmetric", "40 %")
        assert table.columns[-1] == ("pair-flip", "40 %")

    @pytest.mark.parametrize("name", ["extreme", "similar", "cifar10"])
    def test_the_smaller_tables_have_methods_side_by_side(self, results, name):
        experiment = EXPERIMENTS[name]
        first = experiment.conditions[0]
        run = (first.dataset, first.noise, experiment.variants[0].method, 1, 42.0)
        table = arrange(results([run], experiment))
        assert [heading for _, heading in table.columns] == [e.label for e in experiment.variants]
        assert [block.name for block in table.blocks] == [first.dataset]
        assert len(table.blocks[0].rows) == len(experiment.noises)
        assert table.blocks[0].rows[0].shown[0].cell.values == (42.0,)

    def test_unsupervised_has_datasets_side_by_side(self, results):
        runs = [(name, "none", "upl", 1, 60.0) for name in ("DTD", "UCF101")]
        table = arrange(results(runs, EXPERIMENTS["unsupervised"]))
        assert [heading for _, heading in table.columns] == ["DTD", "UCF101", AVERAGE]
        assert [row.label for row in table.rows] == ["zero-shot", "UPL", "Robust-UPL"]

    def test_a_network_from_scratch_has_no_zero_shot_even_with_one_noise(self, results):
        from dspt.experiments.catalogue import narrowed

        cifar10 = narrowed(EXPERIMENTS["cifar10"], "noise=sym:0.2")
        found = results([("CIFAR10", "sym:0.2", "coop", 1, 30.0)], cifar10)
        assert "ero-shot" not in render(found, "terminal")

    def test_a_wide_table_is_broken_so_that_it_fits(self, results):
        runs = [(name, "none", "upl", s, 60.0 + s) for name in NINE for s in (1, 2)]
        text = render(results(runs, EXPERIMENTS["unsupervised"]), "terminal")
        assert max(map(len, text.splitlines())) <= 120
        assert all(name in text for name in NINE)

    def test_a_table_that_cannot_fit_is_not_cut(self, results):
        text = render(results(RUNS), "terminal", show="std", width=10)
        assert line(text, "  DSPT ").split(maxsplit=1)[1] == "81.00 ± 1.41*"

    def test_columns_stand_below_each_other_though_a_name_has_wide_letters(self, results):
        runs = [(name, "none", "upl", 1, 60.0) for name in ("花の写真", "photos")]
        lines = render(results(runs, EXPERIMENTS["unsupervised"]), "terminal").splitlines()
        head, figures = (next(t for t in lines if word in t) for word in ("AVG", "  UPL"))
        # each of the four letters before it is two places wide
        assert head.index("AVG") + 4 == figures.rindex("60.00") + 1


class TestTerminal:
    """At 80 and at 120 columns: nothing is wider, no word is broken, headings stand above their figures."""

    @pytest.mark.parametrize("name", TABLES)
    def test_every_table_fits_with_all_its_words_whole(self, name):
        found = complete(name)
        for show in SHOW:
            whole = render(found, "terminal", show=show, width=10_000)
            words = set(re.findall(r"[^\W_]+", whole))
            for width in (80, 120):
                text = render(found, "terminal", show=show, width=width)
                assert max(map(len, text.splitlines())) <= width
                assert set(re.findall(r"[^\W_]+", text)) == words

    @pytest.mark.parametrize("name", TABLES)
    def test_every_heading_stands_above_its_figures(self, name):
        found = complete(name)
        for show, width in itertools.product(SHOW, (80, 120)):
            lines = render(found, "terminal", show=show, width=width).splitlines()
            for rule in (i for i, one in enumerate(lines) if one.startswith("──")):
                heads = spans(r"\S+( \S+)*", re.sub("[│║]", " ", lines[rule - 1]))
                ours = [one for one in lines[rule:] if not one.startswith(("  zero-shot", "  paper"))]
                row = next(filter(None, (spans(r"\d+\.\d\d( ± +\d+\.\d\d)?", one) for one in ours)))
                for first, last in row:
                    assert any(start < last and first < end for start, end in heads)
                if len(row) == len(heads):  # there is no empty cell
                    middle = [(sum(a) - sum(b)) / 2 for a, b in zip(heads, row, strict=True) if wide(b) == wide(row[0])]
                    assert max(map(abs, middle)) <= 1  # the average, without ±, is less wide

    def test_main_has_two_datasets_side_by_side_where_they_fit(self):
        found = complete("main", datasets=("Caltech101", "DTD"))
        wide, narrow = (render(found, "terminal", width=width).splitlines() for width in (120, 80))
        assert any("Caltech101" in one and "DTD" in one for one in wide)
        assert not any("Caltech101" in one and "DTD" in one for one in narrow)
        # zero-shot is the same for every noise, and stands once a dataset; here three of them with the average
        zero_shot = [one for one in wide if "zero-shot" in one]
        assert [one.count("50.00") for one in zero_shot] == [2, 1]

    def test_columns_go_on_below_beside_their_names(self):
        rows = [["", "one", "two", "three"], ["first", "1", "22", "333"], ["second", "4", "5", "6"]]
        assert columns(rows, 80) == [
            "        one  two  three",
            "───────────────────────",
            "first     1   22    333",
            "second    4    5      6",
        ]
        assert columns(rows, 18)[-3:] == ["─────────────", "first     333", "second      6"]
        assert columns(rows, 18, together=2)[-3:] == ["──────────────────", "first    22    333", "second    5      6"]


class TestAverage:
    def average(self, table, label, column=0):
        (block,) = (block for block in table.blocks if block.name == AVERAGE)
        (row,) = (row for row in block.rows if row.label == label)
        return row.shown[column]

    def test_is_the_mean_of_the_means_where_every_dataset_has_the_cell(self, results):
        table = arrange(
            results(
                [
                    ("Caltech101", "sym:0.4", "dspt", 1, 80.0),
                    ("Caltech101", "sym:0.4", "dspt", 2, 90.0),
                    ("DTD", "sym:0.4", "dspt", 1, 65.0),
                    ("DTD", "sym:0.4", "coop", 1, 99.0),
                ]
            )
        )
        assert self.average(table, "DSPT").cell.values == (75.0,)  # (85 + 65) / 2
        assert self.average(table, "DSPT").rank == 1
        assert self.average(table, "CoOp").cell.values == ()
        assert self.average(table, "DSPT", 1).cell.values == ()

    def test_there_is_none_of_one_dataset(self, results):
        assert AVERAGE not in [block.name for block in arrange(results(RUNS)).blocks]

    def test_of_some_of_the_nine_has_no_figure_of_the_paper(self, results):
        runs = [(name, "sym:0.4", "dspt", 1, 70.0) for name in NINE[:8]]
        assert self.average(arrange(results(runs)), "DSPT").cell.paper is None

    def test_of_the_nine_has_the_figure_the_paper_printed(self, results):
        table = arrange(results([(name, "sym:0.4", "dspt", 1, 70.0) for name in NINE]))
        assert self.average(table, "DSPT").cell.paper == 81.1
        assert self.average(table, "zero-shot").cell.paper == 62.5

    def test_of_the_nine_and_another_has_no_figure_of_the_paper(self, results):
        runs = [(name, "sym:0.4", "dspt", 1, 70.0) for name in (*NINE, "embedded")]
        assert self.average(arrange(results(runs)), "DSPT").cell.paper is None


class TestNotes:
    @pytest.mark.parametrize("style", ["terminal", "markdown", "latex"])
    def test_say_what_ours_and_the_paper_are_of(self, results, style):
        text = " ".join(render(results(RUNS), style, show="paper").split())
        assert "5 epochs" in text
        assert "ViT-B/16 with 50 epochs" in text

    def test_say_that_the_paper_trained_a_resnet_on_cifar10(self, results):
        run = ("CIFAR10", "sym:0.2", "coop", 1, 70.0)
        text = render(results([run], EXPERIMENTS["cifar10"]), "terminal", show="paper")
        assert "ResNet-34 trained for 200 epochs" in text
        assert "ViT" not in text

    def test_do_not_speak_of_the_paper_where_it_has_no_figure(self, results):
        text = render(results([("embedded", "sym:0.4", "dspt", 1, 90.0)], zero_shot=None), "terminal", show="paper")
        assert "ViT-B/16" not in text

    @pytest.mark.parametrize("style", ["terminal", "markdown", "latex"])
    def test_say_that_the_paper_has_no_figure_where_it_is_asked_for(self, results, style):
        found = results([("embedded", "sym:0.4", "dspt", 1, 90.0)], zero_shot=None)
        sentence = "The paper has no figures on these data, noises and methods"
        assert sentence in " ".join(render(found, style, show="paper").split())
        assert sentence not in " ".join(render(found, style).split())

    def test_say_over_how_many_epochs_the_accuracy_is_averaged(self, results, tmp_path):
        found = results(RUNS)
        assert "5 epochs, accuracy averaged over the last 5, model" in render(found, "terminal")
        file = tmp_path / "run0" / "result.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"epochs_averaged": 4}))
        assert "averaged over the last 4 or 5, model" in render(collect(MAIN, find_runs(tmp_path)), "terminal")
        for file in tmp_path.glob("*/result.json"):
            file.write_text(json.dumps(json.loads(file.read_text()) | {"epochs_averaged": 1}))
        assert "5 epochs, accuracy of the last, model" in render(collect(MAIN, find_runs(tmp_path)), "terminal")

    def test_tell_which_seeds_are_in_each_cell_where_cells_differ(self, results):
        runs = [("DTD", n, m, s, 60.0) for n in ("sym:0.4", "sym:0.6") for m in ("mae", "dspt") for s in (1, 2)]
        runs += [
            ("DTD", "sym:0.4", "coop", 1, 60.0),
            ("DTD", "sym:0.6", "coop", 1, 60.0),
            ("DTD", "sym:0.6", "coop", 2, 60),
        ]
        text = " ".join(render(results(runs), "terminal").split())
        assert "Seeds 1, 2; CoOp at sym 40 %: seed 1 only." in text

    def test_name_a_method_once_that_has_other_seeds_everywhere(self, results):
        runs = [("DTD", "sym:0.4", m, s, 60.0) for m in ("mae", "dspt", "gce") for s in (1, 2)]
        runs += [("UCF101", n, "coop", 3, 60.0) for n in ("sym:0.4", "sym:0.6")]
        text = " ".join(render(results(runs), "terminal").split())
        assert "Seeds 1, 2; CoOp at UCF101: seed 3 only." in text

    def test_name_more_seeds_without_calling_them_few(self, results):
        runs = [("DTD", "sym:0.4", m, 1, 60.0) for m in ("coop", "mae")]
        runs += [("DTD", "sym:0.4", "dspt", s, 60.0) for s in (1, 2, 3)]
        text = " ".join(render(results(runs), "terminal").split())
        assert "Seed 1; DSPT: seeds 1, 2, 3." in text

    def test_say_the_seeds_alone_where_all_cells_have_the_same(self, results):
        text = render(results([("DTD", "sym:0.4", m, s, 60.0) for m in ("mae", "dspt") for s in (1, 2)]), "terminal")
        assert "Seeds 1, 2." in text


class TestTitle:
    @pytest.mark.parametrize(
        ("datasets", "words"),
        [
            (("DTD",), "noise, on 1 of its 9 datasets"),
            (NINE, "noise, on all of its 9 datasets"),
            (("embedded",), "noise, on embedded instead of its 9 datasets"),
            (("DTD", "UCF101", "embedded"), "noise, on 2 of its 9 datasets and on embedded"),
            (("a", "b", "c", "d"), "noise, on 4 other datasets instead of its 9 datasets"),
        ],
    )
    def test_says_on_how_many_of_which_datasets_it_is(self, results, datasets, words):
        found = results([(name, "sym:0.4", "dspt", 1, 60.0) for name in datasets])
        assert title(found).endswith(words)
        assert f"**Accuracy (%) under symmetric and pair-flip {words}**\n" in render(found, "markdown")

    def test_of_an_experiment_on_one_dataset_names_it(self, results):
        run = ("CIFAR10", "sym:0.2", "coop", 1, 70.0)
        assert title(results([run], EXPERIMENTS["cifar10"])).endswith("from scratch, on CIFAR10")


class TestCsv:
    def test_parses_back_to_the_same_numbers_to_four_decimals(self, results):
        found = results(RUNS)
        rows = list(csv.DictReader(io.StringIO(render(found, "csv"))))
        assert len(rows) == 1 + len(MAIN.noises) * len(MAIN.variants)  # zero-shot, and the cells
        for condition in found.experiment.conditions:
            for variant in found.experiment.variants:
                cell = found.cell(condition, variant.label)
                (row,) = (r for r in rows if (r["noise"], r["method"]) == (condition.noise, variant.label))
                assert row["experiment"] == "main"
                assert row["dataset"] == "Caltech101"
                assert int(row["seeds"]) == len(cell.values)
                for name in ("mean", "std", "paper", "difference"):
                    assert (float(row[name]) if row[name] else None) == pytest.approx(getattr(cell, name), abs=5e-5)
                assert row["seed_numbers"] == " ".join(map(str, cell.seeds))
        ranks = {r["method"]: r["rank"] for r in rows if r["noise"] == "sym:0.4" and r["rank"]}
        assert ranks == {"DSPT": "1", "CoOp": "2"}


class TestLatex:
    def test_main_is_as_the_paper_prints_it(self):
        text = render(complete("main"), "latex")
        assert text.count(r"\begin{table*}") == 1
        assert r"\begin{tabular}{@{}l|c|ccc|ccc|c|ccc|ccc@{}}" in text
        assert line(text, "Method").count(r"\multicolumn{3}{c|}{Noise Type: sym}") == 2
        assert latex_names(line(text, r"40\%"))[:6] == [r"40\%", r"60\%", r"80\%", r"20\%", r"30\%", r"40\%"]
        names = re.findall(r"\\multirow\{9\}\{\*\}\{(?:\\shortstack\{)?(.+?)\}+ &", text)
        assert [name.replace(r"\\", "") for name in names] == [*NINE, AVERAGE]  # two of them on a line
        zero_shot = [one for one in text.splitlines() if one.startswith("Zero-shot")]
        assert len(zero_shot) == 5
        assert all(r"\multicolumn{6}{c|}{50.00}" in one and r"\multicolumn{6}{c}{50.00}" in one for one in zero_shot)

    def test_many_datasets_side_by_side_are_two_bands_of_five_as_in_the_paper(self):
        text = render(complete("unsupervised"), "latex")
        assert r"\begin{tabular}{@{}c|ccccc@{}}" in text
        heads = [latex_names(one) for one in text.splitlines() if one.startswith("Dataset")]
        assert [name for head in heads for name in head] == [*NINE, AVERAGE]

    @pytest.mark.parametrize("show", SHOW)
    @pytest.mark.parametrize("name", TABLES)
    def test_every_row_fills_the_columns_and_every_rule_lies_in_them(self, name, show):
        for form, body in latex_tabulars(render(complete(name), "latex", show=show)):
            count = form.count("l") + form.count("c")
            rows = [one for one in body.splitlines() if r"\\" in one]
            assert {latex_width(row) for row in rows} == {count}
            for first, last in re.findall(r"\\cline\{(\d+)-(\d+)\}", body):
                assert 1 <= int(first) <= int(last) <= count
            for height in map(int, re.findall(r"\\multirow\{(\d+)\}", body)):
                assert 1 < height <= len(rows)

    @pytest.mark.parametrize("show", SHOW)
    def test_every_table_compiles_and_fits_a_page_of_the_paper(self, tmp_path, show):
        said = compiled(tmp_path, [render(complete(name), "latex", show=show) for name in TABLES])
        assert "too large" not in said
        assert "Overfull" not in said
        assert "multiply" not in said

    def test_a_name_cannot_break_it(self, tmp_path, results):
        compiled(tmp_path, [render(results([*RUNS, (HOSTILE, "sym:0.4", "dspt", 1, 50.0)]), "latex")])


# What compiles a document, as far as it is installed, and prints what it has to say.
LATEX = {
    **{name: [name, "-interaction=nonstopmode", "-halt-on-error"] for name in ("pdflatex", "lualatex", "xelatex")},
    "tectonic": ["tectonic", "--print"],
}


@cache
def latex_command():
    """Return the first command that compiles a document with the packages of our tables; None if none does."""
    for name, command in LATEX.items():
        with TemporaryDirectory() as folder:
            if shutil.which(name) and run_latex(command, Path(folder), ["a word"]).returncode == 0:
                return command
    return None


def run_latex(command, folder, parts):
    """Return what became of a document with these parts, on ICML's page of 6.75 by 9 inches."""
    page = r"\usepackage[letterpaper,textwidth=6.75in,textheight=9in]{geometry}\usepackage{booktabs,multirow}"
    parts = [r"\documentclass[twocolumn]{article}", page, r"\begin{document}", *parts, r"\end{document}"]
    (folder / "all.tex").write_text("\n".join(parts), encoding="utf-8")
    return subprocess.run(
        [*command, "all.tex"], cwd=folder, capture_output=True, text=True, errors="replace", timeout=300
    )


def compiled(folder, tables):
    """Return what LaTeX says about a document with these tables."""
    if latex_command() is None:
        pytest.skip(f"needs one of {', '.join(LATEX)}, with booktabs and multirow")
    made = run_latex(latex_command(), folder, tables)
    assert made.returncode == 0, made.stdout[-2000:]
    return made.stdout + made.stderr


HOSTILE = r"50%_of & $x^2 {a}~\b #1 <i>|`*" + "\x1b[2J\n"


class TestSpecialSigns:
    def test_latex_is_balanced_and_escaped(self, results):
        text = render(results([*RUNS, (HOSTILE, "sym:0.4", "dspt", 1, 50.0)]), "latex")
        bare = re.sub(r"\\[{}]", "", text)
        depth = 0
        for sign in bare:
            depth += (sign == "{") - (sign == "}")
            assert depth >= 0
        assert depth == 0
        begun = re.findall(r"\\begin\{(\w+\*?)\}", text)
        assert begun == re.findall(r"\\end\{(\w+\*?)\}", text)[::-1]
        assert r"Accuracy (\%)" in text
        assert r"50\%\_of \& \$x\textasciicircum{}2 \{a\}\textasciitilde{}\textbackslash{}b \#1" in text
        ((_, body),) = latex_tabulars(text)
        assert {latex_width(row) for row in body.splitlines() if r"\\" in row} == {1 + 2 * (1 + len(MAIN.noises))}

    def test_latex_uses_no_other_package(self, results):
        text = render(results(RUNS), "latex")
        known = {
            *(
                "begin",
                "end",
                "centering",
                "caption",
                "label",
                "small",
                "scshape",
                "setlength",
                "tabcolsep",
                "belowcaptionskip",
                "renewcommand",
                "arraystretch",
            ),
            *("toprule", "bottomrule", "aboverulesep", "belowrulesep", "hline", "cline", "multicolumn", "multirow"),
            *("shortstack", "textbf", "underline", "usepackage"),
        }
        assert set(re.findall(r"\\([A-Za-z]+)", text)) <= known

    def test_a_long_latex_table_goes_on_in_another_float(self, results):
        runs = [(name, "sym:0.4", e.method, 1, 50.0) for name in NINE for e in MAIN.variants]
        text = render(results(runs), "latex", show="paper")
        floats = text.split(r"\begin{table*}")[1:]
        assert len(floats) > 1
        assert all(part.count(r" \\") <= 60 for part in floats)
        labels = re.findall(r"\\label\{(.*?)\}", text)
        assert len(set(labels)) == len(floats)
        names = re.findall(r"\{\*\}\{(?:\\shortstack\{)?(.+?)\}+ &", text)
        assert [n.replace(r"\\", "") for n in names if n not in ("Method", "Dataset")] == [*NINE, AVERAGE]

    def test_markdown_keeps_its_columns(self, results):
        text = render(results([(HOSTILE, "sym:0.4", "dspt", 1, 50.0)]), "markdown")
        rows = [row for row in text.splitlines() if row.startswith("|")]
        assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {2 + 2 + len(MAIN.noises)}
        assert "<i>" not in text

    @pytest.mark.parametrize("style", ["terminal", "markdown", "latex"])
    def test_a_name_cannot_command_the_terminal(self, results, style):
        assert "\x1b" not in render(results([(HOSTILE, "sym:0.4", "dspt", 1, 50.0)]), style)
