"""The landscape of losses: its curves are the losses, and the page computes what the losses compute."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from math import e, log

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from numpy.testing import assert_allclose

from dspt import losses, plots, theory
from dspt.experiments import landscape

PAGE = landscape.page()


class TestCurves:
    x = np.linspace(0.01, 0.99, 50)

    @pytest.mark.parametrize("classes", landscape.CLASSES)
    def test_are_the_textbook_formulas(self, classes):
        p = landscape.at_label(self.x, classes)
        assert_allclose(p.sum(1), 1)
        for name, loss, total in (
            ("ce", -np.log(self.x), 2 * (1 - self.x)),
            ("mae", 1 - self.x, 2 * self.x * (1 - self.x)),
            ("gce", (1 - self.x**0.7) / 0.7, 2 * self.x**0.7 * (1 - self.x)),
        ):
            found = landscape.curves(name, p)
            assert_allclose(found[0], loss, rtol=1e-9, atol=1e-12)
            assert_allclose(found[1], total, rtol=1e-6)

    @pytest.mark.parametrize("classes", landscape.CLASSES)
    def test_dspt_is_proposition_3_1_and_stays_below_its_greatest(self, classes):
        p = landscape.at_label(self.x, classes, gathered=1 - 1e-9)
        _, total = landscape.curves("dspt", p)
        logits = torch.from_numpy(np.log(p))
        assert_allclose(total, theory.gradient(logits, torch.zeros(50, dtype=torch.long)).abs().sum(1), rtol=1e-9)
        assert 0.99 * theory.greatest_total_gradient(classes) < total.max() <= theory.greatest_total_gradient(classes)

    def test_a_confident_contradiction_is_silenced_by_dspt_and_not_by_cross_entropy(self):
        p = landscape.contradicting(np.array([0.1, 0.999]), 10)
        assert_allclose(p.sum(1), 1)
        assert_allclose(p[:, 1], [0.1, 0.999])
        assert landscape.curves("ce", p)[1][1] == pytest.approx(2, abs=1e-2)
        assert landscape.curves("dspt", p)[1][1] < 1e-3


class TestFigure:
    def test_has_a_column_for_each_number_of_classes_and_every_loss(self):
        with plots.look():
            figure = landscape.figure()
            figure.draw_without_rendering()
        assert [axis.get_title() for axis in figure.axes if axis.get_title()] == ["C = 2", "C = 10", "C = 100"]
        for axis in figure.axes[:12]:
            assert {line.get_label() for line in axis.lines} == {
                style["label"] for style, _ in landscape.LOSSES.values()
            }
        box = figure.get_tightbbox()
        assert -0.02 <= box.x0 <= box.x1 <= 6.77

    def test_losses_differ_without_colour_and_mae_is_seen_on_dspts_line(self):
        kinds = {(style["linestyle"], style.get("linewidth", 1.4) > 2) for style, _ in landscape.LOSSES.values()}
        assert len(kinds) == len(landscape.LOSSES)
        with plots.look():
            figure = landscape.figure()
            figure.set_dpi(200)
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
        grey = np.asarray(canvas.buffer_rgba())[..., :3].mean(2)
        axis = figure.axes[2]  # C = 100, where the two are one
        (dspt,) = (line for line in axis.lines if line.get_label() == "DSPT")
        middle = dspt.get_xydata()[80:300]
        places = axis.transData.transform(middle).round().astype(int)
        inside = [grey[len(grey) - up - 2 : len(grey) - up + 3, across] for across, up in places]
        assert (np.min(inside, axis=1) < 130).all()
        assert np.mean(np.max(inside, axis=1) > 180) > 0.4  # more than the dashes' share of a line that is one grey

    @pytest.mark.parametrize(("name", "files"), [("a.pdf", 1), ("a.html", 1), ("a", 3)])
    def test_the_name_of_a_file_is_that_one_alone(self, name, files, tmp_path):
        drawn = landscape.draw(tmp_path / "new" / name)
        assert len(drawn) == files
        assert sorted(path for path in (tmp_path / "new").rglob("*") if path.is_file()) == sorted(drawn)

    def test_losses_begin_at_zero_and_dspt_ends_at_one_over_a_contradiction(self):
        with plots.look():
            figure = landscape.figure()
        (dspt,) = (line for line in figure.axes[7].lines if line.get_label() == "DSPT")  # C = 10, over confidence
        assert dspt.get_ydata()[-1] == pytest.approx(log(e + 9) - log(1 + 9 / e), abs=1e-3)
        for line in figure.axes[1].lines:
            assert line.get_ydata()[-1] == pytest.approx(0, abs=1e-3)


class TestPage:
    def test_needs_nothing_but_itself(self):
        assert not re.search(r"(?:src|href|action)=|url\(|@import|fetch\(|XMLHttp|WebSocket|importScripts", PAGE)
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", PAGE)
        assert "{{" not in PAGE

    def test_its_policy_allows_its_own_script_and_style_and_nothing_else(self):
        (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', PAGE)
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        for tag, directive in (("script", "script-src"), ("style", "style-src")):
            (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", PAGE, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"{directive} 'sha256-{digest}'" in policy
        assert not re.search(r'\s(?:style|on\w+)="', PAGE), "an attribute that the policy forbids"

    def test_every_control_has_a_name_and_the_page_a_dark_side(self):
        controls = set(re.findall(r'<(?:input|select)[^>]* id="([\w-]+)"', PAGE))
        assert controls == set(re.findall(r'<label for="([\w-]+)"', PAGE))
        assert {"classes", "label", "gathered", "scale", "power"} <= controls
        assert "prefers-color-scheme: dark" in PAGE
        assert '<html lang="en">' in PAGE
        assert 'aria-live="polite"' in PAGE
        assert "<noscript>" in PAGE

    @pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
    def test_computes_what_the_losses_compute(self):
        rng = np.random.default_rng(0)
        cases = [
            {"classes": int(c), "label": float(x), "gathered": float(g), "scale": float(s), "power": float(q)}
            for c, x, g, s, q in zip(
                rng.choice([2, 3, 10, 100], 30),
                rng.uniform(0.01, 0.99, 30),
                rng.uniform(0, 0.99, 30),
                10 ** rng.uniform(-2, 2, 30),
                rng.uniform(0.05, 1, 30),
                strict=True,
            )
        ]
        script = (landscape._HERE / "landscape.js").resolve()
        program = (
            f"const page = require({json.dumps(str(script))}); const cases = {json.dumps(cases)};"
            "console.log(JSON.stringify(cases.map((at) => {"
            "const p = page.prediction(at.classes, at.label, at.gathered);"
            "return Object.fromEntries(Object.entries(page.LOSSES).map(([k, l]) => [k, l.of(p, at)])); })));"
        )
        told = json.loads(subprocess.run(["node", "-e", program], check=True, capture_output=True, text=True).stdout)
        for at, found in zip(cases, told, strict=True):
            p = landscape.at_label(np.array([at["label"]]), at["classes"], at["gathered"])
            for key, name, hyper in (
                ("ce", "ce", {}),
                ("mae", "mae", {}),
                ("gce", "gce", {"q": at["power"]}),
                ("dspt", "dspt", {}),
                ("ls", "dspt-scale", {"s": at["scale"]}),
            ):
                loss, total = landscape.curves(name, p, **hyper)
                assert found[key]["value"] == pytest.approx(loss[0], rel=1e-6, abs=1e-9), (key, at)
                assert found[key]["gradient"] == pytest.approx(total[0], rel=1e-5, abs=1e-9), (key, at)

    @pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
    def test_its_bound_is_the_sharp_one(self):
        script = (landscape._HERE / "landscape.js").resolve()
        program = f"console.log([2, 10, 100].map(require({json.dumps(str(script))}).greatest).join())"
        told = subprocess.run(["node", "-e", program], check=True, capture_output=True, text=True).stdout
        expected = [theory.greatest_total_gradient(c) for c in (2, 10, 100)]
        assert_allclose([float(one) for one in told.split(",")], expected, atol=1e-6)


class TestCommand:
    def test_writes_a_picture_for_print_one_for_the_screen_and_the_page(self, dspt, tmp_path):
        status, output, _ = dspt("figure", "loss-landscape", "--out", tmp_path / "new", "--json")
        assert status == 0
        names = ["loss-landscape.pdf", "loss-landscape.png", "loss-landscape.html"]
        assert json.loads(output)["files"] == [str(tmp_path / "new" / name) for name in names]
        assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(names)
        assert (tmp_path / "new" / names[-1]).read_text(encoding="utf-8") == PAGE

    def test_writes_the_page_alone_and_replaces_its_own_only(self, dspt, tmp_path):
        page = tmp_path / "new" / "landscape.html"
        for _ in range(2):
            assert dspt("figure", "loss-landscape", "--out", page)[0] == 0
        assert [path.name for path in page.parent.iterdir()] == ["landscape.html"]
        page.write_text("mine")
        assert dspt("figure", "loss-landscape", "--out", page)[0] == 2
        assert page.read_text() == "mine"

    def test_has_no_runs_to_choose_from(self, dspt, tmp_path):
        status, _, error = dspt("figure", "loss-landscape", "--out", tmp_path / "new", "--only", "method=dspt")
        assert status == 2
        assert "drawn from formulas" in error
        assert not (tmp_path / "new").exists()

    def test_no_other_figure_has_a_page(self, dspt):
        status, _, error = dspt("figure", "loss-curves", "--out", "a.html")
        assert status == 2
        assert "only loss-landscape has a page" in error

    def test_is_listed(self, dspt):
        _, output, _ = dspt("experiments", "--json")
        rows = json.loads(output)["experiments"]
        assert any(row["name"] == "loss-landscape" and row["runs"] == 0 for row in rows)


def test_every_loss_of_the_landscape_is_a_loss():
    assert set(landscape.LOSSES) <= set(losses.names())


@pytest.mark.parametrize("command", ["table", "reproduce"])
def test_has_no_runs_and_says_which_command_draws_it(dspt, command):
    status, _, errors = dspt(command, "loss-landscape")
    assert status == 2
    assert "it is drawn from formulas and has no runs, see 'dspt figure loss-landscape'" in errors
    assert "did you mean loss-landscape?" in dspt("figure", "loss-landscap")[2]
