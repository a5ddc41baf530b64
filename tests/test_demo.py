"""The demonstration shows on real images what the paper says of wrong labels."""

import json

import pytest
from problems import QUIET

from dspt.config import Config
from dspt.workflows.demo import gradients, run_demo


def check(result):
    for noise in ("sym60", "pair40"):
        assert result[noise]["dspt"] > result["zero_shot"], f"DSPT must end above zero-shot at {noise}"
        assert result[noise]["coop"] < result[noise]["dspt"] - 5, f"CoOp must fall well below at {noise}"


def test_coop_falls_and_dspt_does_not(dspt, tmp_path):
    status, output, errors = dspt("demo", "--out", tmp_path / "demo", "--json")
    assert status == 0
    result = json.loads(output)
    assert set(result["sym60"]) == set(result["pair40"]) == {"coop", "mae", "dspt", "dspt-auto"}
    check(result)
    assert "epoch" in errors
    for plot in ("accuracy.png", "gradients.png"):
        assert (tmp_path / "demo" / plot).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_other_seeds_show_it_too(tmp_path, seed):
    check(run_demo(tmp_path, 100, seed, QUIET))


def test_the_double_softmax_silences_wrong_labels_before_any_training():
    panels, right = gradients("embedded", "sym:0.6", Config(), QUIET)
    single, double = panels.values()
    assert single[~right].mean() > 1.3 * single[right].mean()
    assert double[~right].mean() < 0.7 * double[right].mean()


def test_the_audit_finds_most_of_the_wrong_labels(dspt, tmp_path):
    status, output, _ = dspt("demo", "--audit", "--out", tmp_path / "demo", "--json", "-q")
    assert status == 0
    found = json.loads(output)
    assert found["wrong"] == 440
    assert found["found"] > 0.6 * found["wrong"]
    assert found["found"] > 0.8 * found["called_wrong"]
    assert found["proposed_right"] > 0.9 * found["found"]
    assert abs(found["noise_rate"] - 0.2) <= 2 * found["noise_rate_error"]
    assert (tmp_path / "demo" / "report" / "index.html").exists()
