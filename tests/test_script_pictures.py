"""Pictures of the scripts: in the look of all others, names instead of keys; what is drawn is what was found."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text
from numpy.testing import assert_allclose

from dspt import plots

SCRIPTS = Path(__file__).parents[1] / "scripts"
SETS = ("caltech101", "ucf101", "stanford_cars")
ABOUT = "Text tower: 4 layers of width 256; seeds 1, 2."
BINS = {"bin_count": [100.0] * 10, "bin_doubt": [100 * (i + 0.5) / 10 for i in range(10)]}


def script(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def drawn(monkeypatch):
    """Return the figures that are saved, having checked that each is as wide as all others, with letters to read."""
    found = []
    save = plots.save

    def kept(figure, path, **options):
        save(figure, path, **options)
        found.append(figure)
        assert figure.get_figwidth() == plots.TWO_COLUMNS
        assert not figure.legends
        assert all(text.get_fontsize() >= 8 for text in figure.findobj(Text) if text.get_text())
        box = figure.get_tightbbox()
        assert -0.02 <= box.x0 <= box.x1 <= figure.get_figwidth() + 0.02
        assert -0.02 <= box.y0 <= box.y1 <= figure.get_figheight() + 0.02
        assert figure.get_supxlabel().replace("\n", " ").endswith(ABOUT)

    monkeypatch.setattr(plots, "save", kept)
    return found


def named(figure):
    return [axis.get_title() for axis in figure.axes if axis.get_title()]


def wrong(share):
    return BINS | {"bin_wrong": [share * doubt for doubt in BINS["bin_doubt"]]}


class TestPosteriorCheck:
    noises = ("none", "sym:0.4", "near:0.2", "near-3:0.3", "inst:0.4", "inst-likely:0.4")

    @pytest.fixture
    def trials(self):
        return [
            {"data": name, "noise": spec, "seed": seed, "true": rate, "rate": rate + 0.01 * seed, "error": 0.011}
            | wrong(0.9)
            for name in SETS
            for spec, rate in zip(self.noises, (0.0, 0.4, 0.2, 0.3, 0.4, 0.4), strict=True)
            for seed in (1, 2)
        ]

    def test_rates_are_drawn_beside_the_truth_that_of_clean_labels_at_zero(self, trials, drawn, tmp_path):
        script("posterior_check").rates_picture(trials, tmp_path / "a.png", ABOUT)
        (figure,) = drawn
        assert named(figure) == ["Caltech101", "UCF101", "StanfordCars"]
        axis = figure.axes[0]
        rows = [text.get_text() for text in axis.get_yticklabels()]
        assert rows == ["clean", "sym 40 %", "near 20 %", "near-3 30 %", "instance 40 %", "instance-likely 40 %"]
        truths = [line.get_xdata()[0] for line in axis.lines if line.get_color() == "black"]
        assert_allclose(truths, [0, 40, 20, 30, 40, 40])
        dots = [float(line.get_xdata()[0]) for line in axis.lines if line.get_marker() == "o"]
        assert_allclose(dots[:4], [1, 2, 41, 42])
        assert "hold the truth in 36 of 36 trials" in figure.get_supxlabel().replace("\n", " ")

    def test_error_bars_are_cut_where_no_share_can_be_and_it_says_so(self, trials, drawn, tmp_path):
        wide = [trial | {"error": 0.09} for trial in trials]
        script("posterior_check").rates_picture(wide, tmp_path / "a.png", ABOUT)
        axis = drawn[0].axes[0]
        ends = [bar.get_segments()[0][:, 0] for bar in axis.collections]
        assert_allclose(ends[:4], [[0, 1 + 18], [0, 2 + 18], [41 - 18, 41 + 18], [42 - 18, 42 + 18]])
        low, high = axis.get_xlim()
        assert low < 0
        assert high > 100
        assert "cut at 0 and 100" in drawn[0].get_supxlabel().replace("\n", " ")

    def test_what_nothing_but_names_can_tell_is_no_part_of_the_reliability(self, trials, drawn, tmp_path):
        more = [trial | {"noise": "near:0.8"} | wrong(0.1) for trial in trials]
        script("posterior_check").reliability_picture([*trials, *more], tmp_path / "a.png", ABOUT)
        line = drawn[0].axes[0].lines[2]
        assert_allclose(line.get_ydata(), 0.9 * line.get_xdata())

    def test_lines_of_the_reliability_are_named_where_they_end(self, trials, drawn, tmp_path):
        script("posterior_check").reliability_picture(trials, tmp_path / "a.png", ABOUT)
        (figure,) = drawn
        assert named(figure) == ["Caltech101", "UCF101", "StanfordCars"]
        assert [text.get_text() for text in figure.axes[-1].texts] == ["sym, pair", "near", "inst", "inst-likely"]
        samples = [(piece.get_marker(), piece.get_linestyle()) for piece in figure.artists]
        assert samples == [(line.get_marker(), line.get_linestyle()) for line in figure.axes[-1].lines[1:]]
        line = figure.axes[0].lines[1]
        assert_allclose(line.get_ydata(), 0.9 * line.get_xdata())
        widths = [axis.get_window_extent().width for axis in figure.axes]
        assert_allclose(widths, widths[0], rtol=0.01)


class TestAuditBenchmark:
    noises = ("none", "sym:0.1", "pair:0.4")

    @pytest.fixture
    def bench(self):
        pytest.importorskip("cleanlab")
        return script("audit_benchmark")

    @pytest.fixture
    def cells(self, bench):
        return {
            (name, spec, method): [{"f1": 0.5 + 0.04 * place + 0.02 * seed} | wrong(0.8) for seed in (1, 2)]
            for name in SETS
            for spec in self.noises
            for place, method in enumerate(bench.METHODS)
        }

    def test_every_method_is_a_named_row(self, bench, cells, drawn, tmp_path):
        asked = (list(SETS), list(self.noises), list(bench.METHODS))
        bench.benchmark_picture(cells, *asked, tmp_path / "a.png", ABOUT)
        (figure,) = drawn
        assert named(figure) == ["Caltech101", "UCF101", "StanfordCars"]
        assert set(bench.NAMES) == set(bench.METHODS)
        axis = figure.axes[0]
        assert [text.get_text() for text in axis.get_yticklabels()] == list(bench.NAMES.values())
        dots = {line.get_ydata()[0]: line.get_xdata()[0] for line in axis.lines if line.get_marker() == "o"}
        # at the top is ours, the ninth method: 50 + 4 * 8 + the mean of 2 and 4
        assert dots[0] == pytest.approx(85)
        assert [axis.get_ylabel() for axis in figure.axes if axis.get_ylabel()] == ["sym 10 %", "pair 40 %"]

    def test_lines_of_the_reliability_are_named_where_they_end(self, bench, cells, drawn, tmp_path):
        bench.reliability_picture(cells, list(SETS), list(self.noises), tmp_path / "a.png", ABOUT)
        (figure,) = drawn
        assert [text.get_text() for text in figure.axes[-1].texts] == ["sym 10 %", "pair 40 %", "all noises"]
        samples = [(piece.get_marker(), piece.get_linestyle()) for piece in figure.artists]
        assert samples == [(line.get_marker(), line.get_linestyle()) for line in figure.axes[-1].lines[1:]]
        assert len({marker for marker, _ in samples}) == 3
        line = figure.axes[0].lines[-1]
        assert_allclose(line.get_ydata(), 0.8 * np.asarray(line.get_xdata()))
