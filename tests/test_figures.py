"""Figures: what is drawn is what the run folders say, and the same runs give the same file."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from math import e, log

import numpy as np
import pytest
from matplotlib.text import Text
from numpy.testing import assert_allclose
from problems import finished_run
from typer.testing import CliRunner

from dspt import plots
from dspt.cli import app
from dspt.experiments import figures
from dspt.experiments.catalogue import EXPERIMENTS, get, on_data
from dspt.experiments.collect import collect, find_runs
from dspt.internal.errors import InputError
from dspt.methods import METHODS
from dspt.runs.description import identity

FIGURES = [name for name, experiment in EXPERIMENTS.items() if experiment.kind == "figure"]
STILL = {"epochs": 1, "lr": 0.0, "warmup_lr": 0.0}  # one epoch without updates
EDGES = [round(0.05 * i, 2) for i in range(41)]


def write(folder, dataset, noise, method, seed=1, accuracy=80.0, records=(), classes=3, **settings):
    """Write a finished run as `dspt train` leaves it, as far as figures look at it."""
    option = settings.get("option", [])
    folder = folder / f"{dataset}-{noise}-{method}{''.join(option)}-{seed}".replace(":", "")
    result = {"data": dataset, "noise": noise, "method": method, "seed": seed}
    result |= {"accuracy": accuracy, "zero_shot": 60.0}
    settings |= {"method": method, "seed": seed}
    return finished_run(folder, result, settings, [f"class {c}" for c in range(classes)], records)


def epochs(count, scale=1.0):
    """Records whose curves are known: accuracy 50 + epoch, losses and gradients by epoch."""
    return [
        {
            "epoch": n,
            "accuracy": scale * (50 + n),
            "loss_right": scale / n,
            "loss_wrong": scale * (1 + 1 / n),
            "gradient_right": scale * 0.5 / n,
            "gradient_wrong": scale * 2 / n,
            "loss_correct": scale * 0.3 / n,
            "loss_incorrect": scale * (2 + 1 / n),
        }
        for n in range(1, count + 1)
    ]


def histogram(right, wrong):
    """The record of a first epoch: so many samples in these bins."""
    counts = {"right": [0] * 40, "wrong": [0] * 40}
    for kind, bins in (("right", right), ("wrong", wrong)):
        for place, count in bins.items():
            counts[kind][place] = count
    record = {"gradient_right": 0.4, "gradient_wrong": 1.8 if wrong else None}
    record["gradient_histogram"] = {"edges": EDGES, **counts}
    return [epochs(1)[0] | record]


def results(name, folder):
    """Return the results of all runs there; those on data that are not the paper's are asked for."""
    found, experiment = find_runs(folder), get(name)
    others = {run.dataset for run in found} - set(experiment.datasets)
    asked = on_data(experiment, sorted(others)).conditions
    return collect(replace(experiment, conditions=(*experiment.conditions, *asked)), found)


def write_all(name, folder):
    """Write a few runs of every kind the figure shows."""
    folder.mkdir()
    if name == "accuracy-vs-noise":
        for noise in ("none", "sym:0.4", "sym:0.8", "pair:0.2"):
            for method in ("coop", "mae", "dspt"):
                for seed, accuracy in ((1, 70.0), (2, 74.0)):
                    write(folder, "caltech101", noise, method, seed, accuracy)
    elif name == "gradient-distribution":
        for method in ("coop", "dspt"):
            records = histogram({4: 30, 5: 10}, {39: 60})
            write(folder, "caltech101", "sym:0.6", method, records=records, **STILL)
    elif name == "logitclip-tau":
        for tau, accuracy in (("0.1", 50.0), ("1", 70.0), ("10", 65.0)):
            write(folder, "DTD", "sym:0.4", "logitclip", 1, accuracy, option=[f"tau={tau}"])
        for seed, accuracy in ((1, 71.0), (2, 73.0)):
            write(folder, "DTD", "sym:0.4", "dspt", seed, accuracy)
        records = [one | {"longest_logits": length} for one, length in zip(epochs(2), (150.0, 200.0), strict=True)]
        write(folder, "DTD", "sym:0.4", "coop", 1, 40.0, records)
    else:
        noises = get(name).noises
        datasets = get(name).datasets
        for dataset in datasets:
            for noise in noises:
                for method in ("coop", "mae", "dspt"):
                    write(folder, dataset, noise, method, records=epochs(30))
    return folder


def line(axis, label):
    """The points of the line with this label."""
    (found,) = (one for one in axis.lines if one.get_label() == label)
    return found.get_xydata()


def titles(figure):
    return [axis.get_title() for axis in figure.axes]


class TestDraw:
    @pytest.mark.parametrize("name", FIGURES)
    def test_writes_a_pdf_with_truetype_fonts_and_a_png(self, name, tmp_path):
        found = results(name, write_all(name, tmp_path / "runs"))
        files = figures.draw(found, tmp_path / "new" / "fig.1")
        assert [file.name for file in files] == ["fig.1.pdf", "fig.1.png"]
        pdf, png = (file.read_bytes() for file in files)
        assert pdf.startswith(b"%PDF")
        assert b"/CIDFontType2" in pdf or b"/TrueType" in pdf
        assert b"/Type3" not in pdf
        assert png.startswith(b"\x89PNG")

    @pytest.mark.parametrize("suffix", [".pdf", ".PNG", ".svg"])
    def test_a_name_with_the_suffix_of_a_picture_is_that_file_alone(self, suffix, tmp_path):
        write_all("early-accuracy", tmp_path / "runs")
        out = tmp_path / f"new/early{suffix}"
        asked = ["figure", "early-accuracy", "--runs", str(tmp_path / "runs"), "--out", str(out), "--json"]
        shown = CliRunner().invoke(app, asked)
        assert shown.exit_code == 0, shown.output
        assert json.loads(shown.stdout)["files"] == [str(out)]
        assert [path.name for path in out.parent.iterdir()] == [out.name]
        assert out.read_bytes()[:5] in (b"%PDF-", b"\x89PNG\r", b"<?xml")

    @pytest.mark.parametrize("name", ["early-accuracy", "loss-landscape"])
    def test_a_name_with_another_suffix_is_no_folder_unless_there_is_one(self, name, tmp_path):
        write_all("early-accuracy", tmp_path / "runs")
        asked = ["figure", name, *(["--runs", str(tmp_path / "runs")] if name == "early-accuracy" else [])]
        refused = CliRunner().invoke(app, [*asked, "--out", str(tmp_path / "early.jpg")])
        assert isinstance(refused.exception, InputError)
        assert "early.jpg: expected a folder or a .png, .pdf, .svg file" in str(refused.exception)
        assert not (tmp_path / "early.jpg").exists()
        (tmp_path / "to.print").mkdir()
        for out in ("to.print", "version-1.2"):
            shown = CliRunner().invoke(app, [*asked, "--out", str(tmp_path / out)])
            assert shown.exit_code == 0, shown.output
            assert (tmp_path / out / f"{name}.png").exists()

    def test_gives_the_same_bytes_for_the_same_runs_in_another_process(self, tmp_path):
        runs = write_all("accuracy-vs-noise", tmp_path / "runs")
        here = figures.draw(results("accuracy-vs-noise", runs), tmp_path / "here")
        program = (
            "import sys; from pathlib import Path; from dspt.experiments import figures;"
            "from dspt.experiments.catalogue import get;"
            "from dspt.experiments.collect import collect, find_runs;"
            "found = collect(get('accuracy-vs-noise'), find_runs(sys.argv[1]));"
            "figures.draw(found, Path(sys.argv[2]))"
        )
        there = tmp_path / "there"
        subprocess.run(
            [sys.executable, "-c", program, str(runs), str(there)],
            check=True,
            env={**os.environ, "PYTHONHASHSEED": "7"},
        )
        for file, suffix in zip(here, (".pdf", ".png"), strict=True):
            assert file.read_bytes() == there.with_suffix(suffix).read_bytes()
        assert b"CreationDate" not in here[0].read_bytes()

    @pytest.mark.parametrize("name", FIGURES)
    def test_fits_the_width_of_a_page_with_letters_of_8_points_or_more(self, name, tmp_path):
        from matplotlib.text import Text

        found = results(name, write_all(name, tmp_path / "runs"))
        with plots.look():
            figure = figures.FIGURES[name](found)
            figure.draw_without_rendering()
        assert figure.get_figwidth() <= 6.75
        assert all(t.get_fontsize() >= 8 for t in figure.findobj(Text) if t.get_text())
        box = figure.get_tightbbox()  # in inches, of everything that is drawn
        assert -0.02 <= box.x0 <= box.x1 <= figure.get_figwidth() + 0.02
        assert -0.02 <= box.y0 <= box.y1 <= figure.get_figheight() + 0.02

    @pytest.mark.parametrize("name", FIGURES)
    def test_lines_are_named_where_they_end_and_no_name_meets_another(self, name, tmp_path):
        from matplotlib.text import Annotation, Text

        found = results(name, write_all(name, tmp_path / "runs"))
        with plots.look():
            figure = figures.FIGURES[name](found)
            figure.draw_without_rendering()
        assert not figure.legends
        names = [text for axis in figure.axes for text in axis.texts if isinstance(text, Annotation)]
        assert names
        boxes = [Text.get_window_extent(text) for text in names]
        for i, one in enumerate(boxes):
            for other in boxes[:i]:
                assert min(one.x1, other.x1) <= max(one.x0, other.x0) or (
                    min(one.y1, other.y1) - max(one.y0, other.y0) <= 0.3 * min(one.height, other.height)
                )

    @pytest.mark.parametrize("name", FIGURES)
    def test_says_what_the_text_tower_was(self, name, tmp_path):
        found = results(name, write_all(name, tmp_path / "runs"))
        assert figures.FIGURES[name](found).get_supxlabel().startswith("Text tower: ")

    def test_says_the_size_of_the_tower_and_the_name_of_one_from_the_hub(self, tmp_path):
        for number, (model, tower, said) in enumerate(
            (
                ("openai/clip-vit-base-patch16", "12 layers of width 512", "{model}, 12 layers of width 512"),
                ("/somewhere/text_tower", "4 layers of width 256", "4 layers of width 256"),
                ("embedded", None, "embedded"),  # of an earlier version, which did not write the size
                ("/somewhere/text_tower", None, "the one in a folder text_tower"),
            )
        ):
            folder = tmp_path / str(number)
            run = write(folder, "caltech101", "sym:0.8", "dspt", records=epochs(3), model=model)
            described = json.loads((run / "config.json").read_text())
            if tower:
                (run / "config.json").write_text(json.dumps(described | {"text_tower": tower}))
            note = figures.early_accuracy(results("early-accuracy", folder)).get_supxlabel().replace("\n", " ")
            assert note.startswith(f"Text tower: {said.format(model=model)}; learnt: prompt; 5 epochs")

    def test_a_run_writes_the_size_of_its_tower_and_goes_on_without_it(self, tmp_path):
        from checkpoints import tiny_clip

        from dspt.backbone.checkpoint import open_checkpoint
        from dspt.config import Config
        from dspt.runs.description import Description

        tower = open_checkpoint(str(tiny_clip(tmp_path / "clip", text_only=True)))
        size = tower.text_config
        assert tower.text_tower == f"{size['num_hidden_layers']} layers of width {size['hidden_size']}"
        new = Description(Config(), ("a", "b"), text_tower=tower.text_tower)
        old = replace(new, text_tower=None)
        assert old.difference(new) == new.difference(old) == ""
        assert identity(old.as_dict()) == identity(new.as_dict())

    @pytest.mark.parametrize("name", FIGURES)
    def test_panels_of_a_row_are_equally_wide(self, name, tmp_path):
        found = results(name, write_all(name, tmp_path / "runs"))
        with plots.look():
            figure = figures.FIGURES[name](found)
            figure.draw_without_rendering()
        widths: dict[int, list[float]] = {}
        for axis in figure.axes:
            place = axis.get_subplotspec().get_topmost_subplotspec()
            if len(place.colspan) == 1:
                widths.setdefault(place.rowspan.start, []).append(axis.get_window_extent().width)
        for row in widths.values():
            assert_allclose(row, row[0], rtol=0.01)

    def test_leaves_the_look_of_other_pictures_alone(self, tmp_path):
        import matplotlib

        before = dict(matplotlib.rcParams)
        write_all("early-accuracy", tmp_path / "runs")
        figures.draw(results("early-accuracy", tmp_path / "runs"), tmp_path / "figure")
        assert dict(matplotlib.rcParams) == before

    @pytest.mark.parametrize("name", ["main", "extreme", "similar", "unsupervised", "cifar10"])
    def test_refuses_a_table_and_names_the_figures(self, name, tmp_path):
        with pytest.raises(InputError, match=f"'{name}': it is no figure") as error:
            figures.draw(results(name, tmp_path), tmp_path / "figure")
        assert all(figure in str(error.value) for figure in FIGURES)

    @pytest.mark.parametrize("name", FIGURES)
    def test_says_how_to_make_the_runs_if_there_are_none(self, name, tmp_path):
        with pytest.raises(InputError, match=f"'dspt reproduce {name}' makes them"):
            figures.draw(results(name, tmp_path), tmp_path / "figure")
        assert list(tmp_path.iterdir()) == []

    def test_says_so_if_the_file_cannot_be_written(self, tmp_path):
        found = results("early-accuracy", write_all("early-accuracy", tmp_path / "runs"))
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="cannot be written"):
            figures.draw(found, tmp_path / "file" / "figure")

    def test_every_method_of_a_figure_differs_in_line_and_marker(self):
        for name in FIGURES:
            methods = {variant.method for variant in get(name).variants}
            styles = [plots.style(method) for method in methods]
            for key in ("color", "linestyle", "marker"):
                assert len({style[key] for style in styles}) == len(methods)


class TestStyle:
    @pytest.mark.parametrize("name", [*METHODS, "my-own-loss", "", "名前", "\udcff"])
    def test_any_name_has_one_and_it_can_be_drawn(self, name):
        axis = plots.blank(3, 2).subplots()
        axis.plot([1, 2], [3, 4], **plots.style(name))
        assert plots.style(name) == plots.style(name)
        assert plots.style(name, "Mine")["label"] == "Mine"

    def test_methods_differ_in_it(self):
        keys = ("color", "linestyle", "marker", "markerfacecolor")
        styles = {tuple(plots.style(name).get(key) for key in keys) for name in METHODS}
        assert len(styles) == len(METHODS)

    def test_that_of_the_papers_methods_was_chosen(self):
        chosen = {"coop": ("#D55E00", "-.", "s"), "mae": ("#0072B2", "--", "^")}
        chosen |= {"dspt": ("#009E73", "-", "o"), "gce": ("#CC79A7", (0, (1, 1)), "D")}
        for name, expected in chosen.items():
            style = plots.style(name)
            assert tuple(style[key] for key in ("color", "linestyle", "marker")) == expected

    def test_a_method_that_is_not_ours_is_drawn(self, tmp_path):
        curves = {"noise": {"dspt": [1.0, 2.0], "my-own-loss": [3.0, 4.0]}}
        plots.accuracy_over_epochs(tmp_path / "a.png", curves, 1.5)
        assert (tmp_path / "a.png").exists()


class TestAccuracyVsNoise:
    name = "accuracy-vs-noise"

    def test_draws_the_mean_over_seeds_with_clean_labels_at_zero_of_both_kinds(self, tmp_path):
        for noise, values in {
            "none": (90.0, 92.0),
            "sym:0.8": (40.0, 60.0),
            "sym:0.4": (80.0,),
            "pair:0.4": (70.0, 72.0),
        }.items():
            for seed, accuracy in enumerate(values):
                write(tmp_path, "oxford_pets", noise, "dspt", seed, accuracy)
        symmetric, pair = (figure := figures.accuracy_vs_noise(results(self.name, tmp_path))).axes
        assert titles(figure) == ["OxfordPets\nsymmetric", "OxfordPets\npair-flip"]
        assert_allclose(line(symmetric, "DSPT"), [(0, 91), (40, 80), (80, 50)])
        assert_allclose(line(pair, "DSPT"), [(0, 91), (40, 71)])
        assert_allclose(line(pair, "zero-shot")[:, 1], 60)

    def test_draws_bands_from_the_lowest_to_the_highest_seed(self, tmp_path):
        for seed, accuracy in enumerate((40.0, 45.0, 65.0)):
            for noise in ("none", "sym:0.4"):
                write(tmp_path, "caltech101", noise, "coop", seed, accuracy)
        (axis,) = figures.accuracy_vs_noise(results(self.name, tmp_path)).axes
        band = axis.collections[0].get_paths()[0].vertices
        assert_allclose((band[:, 1].min(), band[:, 1].max()), (40, 65))

    def test_one_method_far_below_breaks_the_axis_and_nobody_else_is_pressed(self, tmp_path):
        for noise, fallen in {"none": 90.0, "sym:0.2": 80.0, "sym:0.4": 60.0, "sym:0.8": 10.0}.items():
            for method, accuracy in (("coop", fallen), ("mae", 88.0), ("dspt", 89.0), ("dspt-auto", 91.0)):
                write(tmp_path, "caltech101", noise, method, accuracy=accuracy)
        upper, lower = figures.accuracy_vs_noise(results(self.name, tmp_path)).axes
        assert lower.get_ylim()[0] < 10 < lower.get_ylim()[1] == upper.get_ylim()[0] < 88 < 91 < upper.get_ylim()[1]
        assert [text.get_text() for text in upper.texts] == ["MAE", "DSPT", "DSPT-auto"]
        assert sorted(text.get_text() for text in lower.texts) == ["CoOp", "zero-shot"]

    def test_broken_panels_are_equally_wide_and_the_note_says_what_differs(self, tmp_path):
        noises = {"none": 90.0, "sym:0.2": 80.0, "sym:0.4": 60.0, "sym:0.8": 10.0, "pair:0.2": 80.0, "pair:0.4": 55.0}
        for noise, fallen in noises.items():
            for method, accuracy in (("coop", fallen), ("mae", 88.0), ("dspt", 89.0), ("dspt-auto", 91.0)):
                write(tmp_path, "caltech101", noise, method, accuracy=accuracy)
        with plots.look():
            figure = figures.accuracy_vs_noise(results(self.name, tmp_path))
            figure.draw_without_rendering()
        assert len(figure.axes) == 4
        widths = [axis.get_window_extent().width for axis in figure.axes]
        assert_allclose(widths, widths[0], rtol=0.01)
        note = figure.get_supxlabel().replace("\n", " ")
        assert "The x-axes differ: to 80 % symmetric, to 40 % pair-flip." in note
        assert plots.BROKEN in note
        upper, lower = figure.axes[:2]
        cut = lower.get_ylim()[1]
        for axis in (upper, lower):
            low, high = axis.get_ylim()
            assert len(axis.get_yticks()) > 1
            assert all(abs(tick - cut) > 0.05 * (high - low) for tick in axis.get_yticks())

    def test_leaves_out_panels_and_lines_without_runs(self, tmp_path):
        write(tmp_path, "caltech101", "none", "coop")
        write(tmp_path, "embedded", "pair:0.2", "mae")
        (axis,) = (figure := figures.accuracy_vs_noise(results(self.name, tmp_path))).axes
        assert titles(figure) == ["embedded\npair-flip"]
        assert axis.get_legend_handles_labels()[1] == ["MAE", "zero-shot"]

    def test_clean_runs_alone_are_no_figure(self, tmp_path):
        write(tmp_path, "caltech101", "none", "coop")
        with pytest.raises(InputError, match="no runs to draw"):
            figures.draw(results(self.name, tmp_path), tmp_path / "figure")

    def test_the_two_panels_of_a_dataset_share_a_scale_on_which_both_fit(self, tmp_path):
        write(tmp_path, "caltech101", "sym:0.4", "coop", accuracy=80.0)
        write(tmp_path, "caltech101", "pair:0.4", "coop", accuracy=20.0)
        write(tmp_path, "embedded", "sym:0.4", "coop", accuracy=99.0)
        first, second, other = figures.accuracy_vs_noise(results(self.name, tmp_path)).axes
        assert first.get_ylim() == second.get_ylim() != other.get_ylim()
        assert first.get_ylim()[0] < 20 < 80 < first.get_ylim()[1]


class TestGradientDistribution:
    name = "gradient-distribution"

    def write(self, folder, method, right, wrong, seed=1):
        records = histogram(right, wrong)
        write(folder, "embedded", "sym:0.6", method, seed, records=records, **STILL)

    def test_draws_the_share_of_right_and_of_wrong_labels_in_each_bin(self, tmp_path):
        self.write(tmp_path, "coop", {4: 30, 5: 10}, {38: 20, 39: 60})
        (axis,) = (figure := figures.gradient_distribution(results(self.name, tmp_path))).axes
        assert titles(figure) == ["CoOp: single softmax"]
        right, _, wrong, _ = (patch.get_data() for patch in axis.patches)
        assert_allclose(right.edges, EDGES)
        assert_allclose(np.flatnonzero(right.values), [4, 5])
        assert_allclose(right.values[4:6], [75, 25])
        assert_allclose(wrong.values[38:], [25, 75])
        assert_allclose(line(axis, "mean, correctly labelled")[:, 0], 0.4)
        assert_allclose(line(axis, "mean, mislabelled")[:, 0], 1.8)

    def test_wrong_labels_are_hatched(self, tmp_path):
        self.write(tmp_path, "dspt", {4: 1}, {5: 1})
        (axis,) = figures.gradient_distribution(results(self.name, tmp_path)).axes
        hatches = [bool(patch.get_hatch()) for patch in axis.patches]
        assert hatches == [False, False, True, False]

    def test_says_that_nothing_is_learnt_and_names_no_epochs(self, tmp_path):
        self.write(tmp_path, "dspt", {4: 1}, {5: 1})
        note = figures.gradient_distribution(results(self.name, tmp_path)).get_supxlabel().replace("\n", " ")
        assert "prompt as it starts, nothing learnt: one pass over the training samples; seed 1." in note
        assert "epoch" not in note

    def test_adds_up_the_samples_of_several_seeds(self, tmp_path):
        self.write(tmp_path, "dspt", {0: 30}, {}, seed=1)
        self.write(tmp_path, "dspt", {1: 10}, {}, seed=2)
        (axis,) = figures.gradient_distribution(results(self.name, tmp_path)).axes
        assert_allclose(axis.patches[0].get_data().values[:2], [75, 25])
        assert len(axis.patches) == 2  # no wrong labels, nothing drawn for them

    def test_panels_share_a_scale_on_which_all_bars_fit(self, tmp_path):
        self.write(tmp_path, "coop", dict.fromkeys(range(40), 1), {})
        self.write(tmp_path, "dspt", {0: 9, 1: 1}, {})
        first, second = figures.gradient_distribution(results(self.name, tmp_path)).axes
        assert first.get_ylim() == second.get_ylim()
        assert first.get_ylim()[0] == 0
        assert first.get_ylim()[1] > 90


class TestCurves:
    def test_losses_of_right_and_wrong_labels_over_the_first_20_epochs(self, tmp_path):
        write(tmp_path, "caltech101", "sym:0.4", "coop", records=epochs(30))
        (axis,) = figures.loss_curves(results("loss-curves", tmp_path)).axes
        n = np.arange(1, 21)
        assert_allclose(line(axis, "correctly\nlabelled"), np.c_[n, 1 / n])
        assert_allclose(line(axis, "mislabelled"), np.c_[n, 1 + 1 / n])

    def test_gradients_of_right_and_wrong_labels_over_the_first_20_epochs(self, tmp_path):
        write(tmp_path, "DTD", "sym:0.6", "mae", records=epochs(30))
        (axis,) = figures.gradient_curves(results("gradient-curves", tmp_path)).axes
        n = np.arange(1, 21)
        assert_allclose(line(axis, "correctly\nlabelled"), np.c_[n, 0.5 / n])
        assert_allclose(line(axis, "mislabelled"), np.c_[n, 2 / n])

    def test_several_seeds_are_a_mean_and_a_band_from_the_lowest_to_the_highest(self, tmp_path):
        for seed, scale in ((1, 1.0), (2, 2.0), (3, 6.0)):
            write(tmp_path, "DTD", "sym:0.6", "mae", seed, records=epochs(4, scale))
        (axis,) = figures.gradient_curves(results("gradient-curves", tmp_path)).axes
        n = np.arange(1, 5)
        assert_allclose(line(axis, "mislabelled"), np.c_[n, 6 / n])
        band = axis.collections[1].get_paths()[0].vertices
        assert_allclose((band[:, 1].min(), band[:, 1].max()), (0.5, 12))  # 1 * 2/4, 6 * 2

    def test_the_note_says_which_lines_have_other_seeds_and_names_bands_where_there_are_some(self, tmp_path):
        for method in ("coop", "mae", "dspt"):
            write(tmp_path, "embedded", "sym:0.4", method, records=epochs(3))
        note = figures.loss_curves(results("loss-curves", tmp_path)).get_supxlabel().replace("\n", " ")
        assert "seed 1." in note
        assert "Bands" not in note
        for seed in (2, 3):
            write(tmp_path, "embedded", "sym:0.4", "dspt", seed, records=epochs(3))
        note = figures.loss_curves(results("loss-curves", tmp_path)).get_supxlabel().replace("\n", " ")
        assert "seed 1; DSPT: seeds 1, 2, 3. Bands: from the lowest to the highest seed." in note

    def test_rows_are_noises_and_columns_are_variants(self, tmp_path):
        for noise in ("sym:0.4", "pair:0.4"):
            for method in ("coop", "dspt"):
                write(tmp_path, "caltech101", noise, method, records=epochs(3))
        figure = figures.loss_curves(results("loss-curves", tmp_path))
        assert titles(figure) == ["CoOp", "DSPT", "", ""]
        assert figure.get_suptitle() == "Caltech101"
        labels = [axis.get_ylabel() for axis in figure.axes]
        assert labels == ["40 % symmetric\nmean loss", "", "40 % pair-flip\nmean loss", ""]

    def test_a_panel_without_runs_is_left_out_of_its_row(self, tmp_path):
        write(tmp_path, "caltech101", "sym:0.4", "coop", records=epochs(3))
        write(tmp_path, "caltech101", "pair:0.4", "dspt", records=epochs(3))
        figure = figures.loss_curves(results("loss-curves", tmp_path))
        assert titles(figure) == ["CoOp", "DSPT"]
        places = [axis.get_subplotspec() for axis in figure.axes]
        assert [(p.rowspan.start, p.colspan.start) for p in places] == [(0, 0), (1, 1)]
        assert all(axis.get_ylabel() and axis.get_xlabel() for axis in figure.axes)

    def test_bounds_of_the_double_softmax_are_marked_for_dspt_alone(self, tmp_path):
        for method in ("coop", "dspt"):
            write(tmp_path, "embedded", "sym:0.4", method, records=epochs(3), classes=10)
        coop, dspt = figures.loss_curves(results("loss-curves", tmp_path)).axes
        bounds = [one.get_ydata()[0] for one in dspt.lines if one.get_label().endswith("bound")]
        assert_allclose(bounds, [log(1 + 9 / e), log(e + 9)])
        assert len(coop.lines) == 2

    def test_one_loss_has_one_scale_under_both_noises_and_each_loss_its_own(self, tmp_path):
        for noise, scale in (("sym:0.4", 1.0), ("pair:0.4", 5.0)):
            write(tmp_path, "embedded", noise, "coop", records=epochs(3, scale))
            write(tmp_path, "embedded", noise, "mae", records=epochs(3, 0.1))
        coop, mae, other_coop, _ = figures.loss_curves(results("loss-curves", tmp_path)).axes
        assert coop.get_ylim() == other_coop.get_ylim() != mae.get_ylim()
        assert coop.get_ylim()[1] > 10

    def test_gradients_of_a_dataset_have_one_scale(self, tmp_path):
        for dataset, method, scale in (
            ("caltech101", "coop", 1.0),
            ("caltech101", "dspt", 4.0),
            ("DTD", "coop", 0.1),
        ):
            write(tmp_path, dataset, "sym:0.6", method, records=epochs(3, scale))
        first, second, other = figures.gradient_curves(results("gradient-curves", tmp_path)).axes
        assert first.get_ylim() == second.get_ylim() != other.get_ylim()
        assert first.get_ylim()[1] > 8

    def test_a_curve_that_is_null_is_not_drawn(self, tmp_path):
        records = [record | {"loss_wrong": None} for record in epochs(3)]
        write(tmp_path, "embedded", "sym:0.4", "coop", records=records)
        (axis,) = figures.loss_curves(results("loss-curves", tmp_path)).axes
        assert [one.get_label() for one in axis.lines] == ["correctly\nlabelled"]

    @pytest.mark.parametrize("name", ["gradient-curves", "gradient-distribution"])
    def test_runs_without_gradients_were_made_by_an_older_version(self, name, tmp_path):
        old = {key: value for key, value in epochs(1)[0].items() if "gradient" not in key}
        write(tmp_path, "embedded", "sym:0.6", "dspt", records=[old], **get(name).config)
        with pytest.raises(InputError, match="older version") as error:
            figures.draw(results(name, tmp_path), tmp_path / "figure")
        assert f"'dspt reproduce {name}'" in str(error.value)

    def test_runs_without_true_labels_are_refused(self, tmp_path):
        record = {"epoch": 1, "loss": 1.0, "accuracy": 50.0}
        write(tmp_path, "embedded", "sym:0.4", "dspt", records=[record])
        with pytest.raises(InputError, match="does not tell right from wrong labels"):
            figures.draw(results("loss-curves", tmp_path), tmp_path / "figure")

    @pytest.mark.parametrize("text", ["", "{"])
    def test_a_damaged_record_is_named(self, text, tmp_path):
        folder = write(tmp_path, "embedded", "sym:0.4", "dspt")
        (folder / "metrics.jsonl").write_text(text)
        with pytest.raises(InputError, match=r"metrics\.jsonl is missing, empty or damaged"):
            figures.draw(results("loss-curves", tmp_path), tmp_path / "figure")


class TestLogitClipTau:
    def test_draws_accuracy_over_tau_against_dspt_and_zero_shot(self, tmp_path):
        runs = write_all("logitclip-tau", tmp_path / "runs")
        (axis,) = (figure := figures.logitclip_tau(results("logitclip-tau", runs))).axes
        assert titles(figure) == ["DTD\n40 % symmetric"]
        assert axis.get_xscale() == "log"
        assert_allclose(line(axis, "LogitClip"), [(0.1, 50), (1, 70), (10, 65)])
        assert_allclose(line(axis, "DSPT")[:, 1], 72)
        assert_allclose(line(axis, "zero-shot")[:, 1], 60)
        assert_allclose(line(axis, "CoOp")[:, 1], 40)
        band, nothing = axis.patches
        # Logits of length 200 at most are not cut to 1 / tau where tau is 1 / 200 or less.
        assert any("nothing is cut" in text.get_text() for text in figure.texts)
        assert_allclose(nothing.get_x() + nothing.get_width(), 1 / 200)
        assert axis.get_xlim()[0] < 1 / 200
        assert_allclose((band.get_y(), band.get_height()), (71, 2))  # its seeds have 71 and 73

    def test_marks_nothing_where_an_earlier_version_did_not_record_how_long_logits_are(self, tmp_path):
        write(tmp_path, "DTD", "sym:0.4", "logitclip", option=["tau=2"])
        write(tmp_path, "DTD", "sym:0.4", "coop", records=epochs(2))
        (axis,) = figures.logitclip_tau(results("logitclip-tau", tmp_path)).axes
        assert not axis.patches

    def test_says_below_what_is_shaded_in_letters_that_can_be_read(self, tmp_path):
        write(tmp_path, "DTD", "sym:0.4", "logitclip", option=["tau=2"])
        write(tmp_path, "DTD", "sym:0.4", "coop", records=[one | {"longest_logits": 50.0} for one in epochs(2)])
        (said,) = (text.get_text() for text in figures.logitclip_tau(results("logitclip-tau", tmp_path)).texts)
        assert "no logits are as long as 1/τ." in " ".join(said.split())
        assert "own scale" not in said

    def test_noises_of_one_dataset_share_a_scale_and_two_datasets_do_not(self, tmp_path):
        for dataset, noise, accuracy in (("a", "sym:0.4", 90.0), ("a", "sym:0.8", 40.0), ("b", "sym:0.4", 70.0)):
            for tau in (0.1, 1):
                write(tmp_path, dataset, noise, "logitclip", accuracy=accuracy - tau, option=[f"tau={tau}"])
        figure = figures.logitclip_tau(results("logitclip-tau", tmp_path))
        scales = {axis.get_title(): axis.get_ylim() for axis in figure.axes}
        assert scales["a\n40 % symmetric"] == scales["a\n80 % symmetric"] != scales["b\n40 % symmetric"]
        assert any("Each dataset has its own scale." in " ".join(text.get_text().split()) for text in figure.texts)

    def test_dspt_alone_is_no_panel(self, tmp_path):
        write(tmp_path, "DTD", "sym:0.4", "dspt")
        write(tmp_path, "UCF101", "pair:0.4", "logitclip", option=["tau=2"])
        figure = figures.logitclip_tau(results("logitclip-tau", tmp_path))
        assert titles(figure) == ["UCF101\n40 % pair-flip"]


class TestEarlyAccuracy:
    def test_draws_the_first_ten_epochs_of_each_variant(self, tmp_path):
        for method in ("coop", "dspt"):
            write(tmp_path, "caltech101", "sym:0.8", method, records=epochs(30))
        axis, *_ = figures.early_accuracy(results("early-accuracy", tmp_path)).axes
        n = np.arange(1, 11)
        assert_allclose(line(axis, "CoOp"), np.c_[n, 50 + n])
        assert_allclose(line(axis, "DSPT"), np.c_[n, 50 + n])
        assert_allclose(line(axis, "zero-shot")[:, 1], 60)
        assert axis.get_legend_handles_labels()[1] == ["CoOp", "DSPT", "zero-shot"]

    def test_draws_the_losses_of_correct_and_incorrect_predictions_beside_it(self, tmp_path):
        for method in ("coop", "dspt"):
            write(tmp_path, "caltech101", "sym:0.8", method, records=epochs(30))
        figure = figures.early_accuracy(results("early-accuracy", tmp_path))
        assert titles(figure) == ["Caltech101, 80 % symmetric", "CoOp", "DSPT"]
        n = np.arange(1, 11)
        for axis in figure.axes[1:]:
            assert_allclose(line(axis, "correctly\npredicted"), np.c_[n, 0.3 / n])
            assert_allclose(line(axis, "incorrectly\npredicted"), np.c_[n, 2 + 1 / n])


class TestHelpers:
    def test_an_axis_is_broken_below_most_values_only_if_one_falls_far(self):
        assert plots.cut_below([90, 91, 92, 93] * 5) is None
        assert plots.cut_below(np.linspace(0, 100, 50)) is None
        assert plots.cut_below([10.0, 90.0]) is None
        cut = plots.cut_below([10.0] * 3 + [90.0, 91.0, 92.0] * 5)
        assert 80 < cut < 90
        assert plots.cut_below([*([10.0] * 3), *([90.0, 91.0, 92.0] * 5), np.nan]) == cut

    def test_names_keep_the_order_of_their_lines(self):
        with plots.look():
            figure = plots.blank(3, 2)
            (place,) = figure.add_gridspec(1, 1)
            one = plots.panel(figure, place)
            for name, height in (("c", 2.0), ("a", 2.02), ("b", 2.01), ("d", 0.0)):
                one.top.plot([0, 1], [1, height], label=name)
            plots.fit([one])
            plots.name_lines(figure, [one])
            figure.draw_without_rendering()
        heights = {text.get_text(): text.get_window_extent().y0 for text in one.top.texts}
        assert sorted(heights, key=heights.get) == ["d", "c", "b", "a"]

    @pytest.mark.parametrize("means", [(0.17, 0.01), (0.37, 0.08), (1.9, 1.6), (0.7, 1.9)])
    def test_the_name_of_a_mean_hides_no_mean(self, means):
        with plots.look():
            figure = plots.blank(3.25, 2)
            axis = figure.subplots()
            counts = dict.fromkeys(("right", "wrong"), np.ones(40))
            plots.shares(axis, EDGES, counts, dict(zip(("right", "wrong"), means, strict=True)))
            figure.draw_without_rendering()
        to_data = axis.transData.inverted()
        names = [Text.get_window_extent(text).transformed(to_data) for text in axis.texts]  # without its line
        assert len(names) == 2
        assert not any(name.x0 < mean < name.x1 for name in names for mean in means)

    def test_a_note_is_broken_into_lines_that_fit(self):
        figure = plots.blank(3.25, 2)
        plots.note(figure, "one two three four five six seven eight nine ten eleven twelve thirteen fourteen")
        assert "\n" in figure.get_supxlabel()
        figure.draw_without_rendering()
        assert figure._supxlabel.get_window_extent().x1 <= figure.bbox.width
        assert plots.note(figure, "") is None


class TestConfusion:
    def drawn(self, monkeypatch, tmp_path, shares, names):
        kept = []
        monkeypatch.setattr(plots, "save", lambda figure, path, **options: kept.append(figure))
        plots.confusion(tmp_path / "a.png", np.array(shares), names, "title")
        return kept[0].axes[0]

    def test_the_scale_is_linear_and_ends_at_the_largest_mistake(self, monkeypatch, tmp_path):
        from matplotlib.colors import Normalize

        axis = self.drawn(monkeypatch, tmp_path, [[0.7, 0.3], [0.1, 0.9]], ["cat", "dog"])
        (image,) = axis.images
        assert type(image.norm) is Normalize
        assert (image.norm.vmin, image.norm.vmax) == (0, 0.3)
        assert image.get_array().mask.tolist() == np.eye(2, dtype=bool).tolist()
        assert [patch.get_xy() for patch in axis.patches] == [(-0.46, -0.46), (0.54, 0.54)], "the diagonal is framed"

    def test_every_cell_that_is_not_empty_has_its_number(self, monkeypatch, tmp_path):
        axis = self.drawn(monkeypatch, tmp_path, [[1.0, 0.0], [0.25, 0.75]], ["cat", "dog"])
        found = {(round(t.get_position()[1]), round(t.get_position()[0])): t.get_text() for t in axis.texts}
        assert found == {(0, 0): "100", (1, 0): "25", (1, 1): "75"}
