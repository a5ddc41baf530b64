"""Comparing: runs are paired by data, noise and seed, and a difference is tested over what counts as one."""

import json

import pytest
from problems import finished_run
from typer.testing import CliRunner

from dspt import plots
from dspt.cli import app
from dspt.experiments.compare import compare, in_words, usual
from dspt.internal.errors import InputError


def add(folder, accuracy, data="photos", noise="sym:0.4", method="dspt", seed=1, **settings):
    name = "-".join(map(str, (data, noise.replace(":", ""), method, seed, *settings.values())))
    result = {"data": data, "noise": noise, "method": method, "seed": seed, "accuracy": accuracy}
    finished_run(folder / name.replace("=", ""), result, settings)


@pytest.fixture
def runs(tmp_path):
    """Two datasets, two noises, two seeds: DSPT is ahead by 1, 2, 3, 4 points on one, behind by 1, 1, 1, 3 on other."""
    folder = tmp_path / "runs"
    for data, by in (("cats", (1, 2, 3, 4)), ("dogs", (-1, -1, -1, -3))):
        places = [(noise, seed) for noise in ("sym:0.4", "pair:0.4") for seed in (1, 2)]
        for (noise, seed), points in zip(places, by, strict=True):
            add(folder, 70.0, data, noise, "mae", seed)
            add(folder, 70.0 + points, data, noise, "dspt", seed)
    return folder


def dspt(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_a_name_that_is_misspelt_is_met_with_the_one_that_was_meant(runs):
    for wrong, right in (("mea", "mae"), ("DSTP", "dspt")):
        with pytest.raises(InputError, match=rf"compare {wrong}: .* \(did you mean {right}\?\), whose methods are"):
            compare([wrong, "dspt"], runs)


class TestPairs:
    def test_are_of_the_same_data_noise_and_seed(self, runs):
        add(runs, 99.0, "cats", "sym:0.4", "dspt", 3)
        add(runs, 99.0, "cats", "sym:0.8", "mae", 1)
        found = compare(["DSPT", "mae"], runs)
        assert found.names == ("DSPT", "MAE")
        assert len(found.places) == 8
        assert sorted(found.accuracy[:, 0] - found.accuracy[:, 1]) == [-3, -1, -1, -1, 1, 2, 3, 4]
        assert found.alone == {"DSPT": 1, "MAE": 1}

    def test_count_as_one_for_each_dataset_setting_or_run(self, runs):
        found = compare(["dspt", "mae"], runs)
        datasets, scores = found.over("datasets")
        assert datasets == ["cats", "dogs"]
        assert (scores[:, 0] - scores[:, 1]).tolist() == [2.5, -1.5]
        settings, scores = found.over("settings")
        assert settings == ["cats pair:0.4", "cats sym:0.4", "dogs pair:0.4", "dogs sym:0.4"]
        assert (scores[:, 0] - scores[:, 1]).tolist() == [3.5, 1.5, -2.0, -1.0]
        assert len(found.over("runs")[0]) == 8

    def test_of_one_dataset_are_tested_over_its_settings(self, runs):
        assert usual(compare(["dspt", "mae"], runs)) == "datasets"
        assert usual(compare(["dspt", "mae"], runs, only="dataset=cats")) == "settings"
        assert usual(compare(["dspt", "mae"], runs, only="dataset=cats,noise=sym:0.4")) == "runs"

    def test_of_folders_are_of_the_same_method_and_say_what_differs(self, tmp_path):
        for learner, more in (("prompt", 0.0), ("prototypes", 2.0)):
            for method in ("dspt", "mae"):
                add(tmp_path / learner, 70.0 + more, method=method, learner=learner)
        found = compare([str(tmp_path / name) for name in ("prompt", "prototypes")], tmp_path)
        assert [place.method for place in found.places] == ["DSPT", "MAE"]
        assert (found.accuracy[:, 1] - found.accuracy[:, 0]).tolist() == [2, 2]
        assert found.differing == ("learner prompt, prototypes",)

    def test_of_folders_with_one_method_each_compare_the_methods(self, tmp_path):
        add(tmp_path / "a", 70.0, method="dspt")
        add(tmp_path / "b", 71.0, method="coop")
        assert compare([str(tmp_path / name) for name in "ab"], tmp_path).accuracy.tolist() == [[70, 71]]

    def test_of_different_settings_are_refused(self, runs):
        add(runs, 99.0, "birds", method="mae", epochs=9)
        with pytest.raises(InputError, match="compare: its runs differ in epochs"):
            compare(["dspt", "mae"], runs)
        assert len(compare(["dspt", "mae"], runs, where="epochs=5").places) == 8

    def test_without_names_are_of_the_methods_that_have_the_most_runs_in_common(self, runs):
        add(runs, 60.0, "cats", method="coop")
        add(runs, 60.0, "cats", method="dspt", seed=3)
        found = compare([], runs)
        assert (found.names, len(found.places)) == (("DSPT", "MAE"), 8)
        assert found.alone == {"CoOp": 1, "DSPT": 1}

    def test_without_names_are_not_undone_by_one_method_that_has_more(self, tmp_path):
        for method in ("coop", "mae", "dspt"):
            add(tmp_path, 70.0, method=method)
        add(tmp_path, 70.0, method="dspt", seed=2)
        found = compare([], tmp_path)
        assert (set(found.names), len(found.places), found.alone) == ({"CoOp", "MAE", "DSPT"}, 1, {"DSPT": 1})

    def test_two_variants_of_a_method_are_told_apart_by_their_options(self, runs):
        for tau in (1, 2):
            add(runs, 60.0, "cats", method="logitclip", option=[f"tau={tau}"])
        assert compare(["dspt", "logitclip tau=2"], runs).names == ("DSPT", "logitclip tau=2")
        with pytest.raises(InputError, match="it may be logitclip tau=1, logitclip tau=2; name one"):
            compare(["dspt", "logitclip"], runs)


class TestWords:
    def test_two_are_shown_by_dataset_with_the_least_p_there_can_be(self, runs):
        lines = in_words(compare(["dspt", "mae"], runs), "datasets", 80)
        row = next(line for line in lines if line.startswith("cats"))
        # the mean and the deviation of 1, 2, 3, 4; four of one sign: 2 / 2**4
        assert row.split() == ["cats", "4", "72.50", "70.00", "+2.50", "±", "1.29", "4", "0", "0", "0.13"]
        text = " ".join(" ".join(lines).split())
        assert "over 2 datasets: p = 1.00, and 2 pairs can give no less than 0.50" in text
        assert "DSPT is ahead of MAE by 0.50 points on average over datasets, which may be chance." in text
        assert max(map(len, lines)) <= 80

    def test_who_is_ahead_goes_by_what_is_tested(self, tmp_path):
        """Ahead by 3 in the dataset with many runs, behind by 4 in the other: behind by half a point over both."""
        for data, seeds, by in (("cats", 5, 3.0), ("dogs", 1, -4.0)):
            for seed in range(seeds):
                add(tmp_path, 70.0, data, method="mae", seed=seed)
                add(tmp_path, 70.0 + by, data, method="dspt", seed=seed)
        found = compare(["dspt", "mae"], tmp_path)
        assert "MAE is ahead of DSPT by 0.50 points on average over datasets" in "\n".join(
            in_words(found, "datasets", 200)
        )
        assert any("DSPT is ahead of MAE by 1.83" in line for line in in_words(found, "runs", 200))

    def test_nobody_is_ahead_of_an_equal(self, tmp_path):
        for method in ("dspt", "mae"):
            add(tmp_path, 70.0, method=method)
        assert in_words(compare(["dspt", "mae"], tmp_path), "runs", 80)[-1] == (
            "DSPT and MAE are level, on average over runs."
        )

    def test_several_are_shown_by_their_ranks(self, runs):
        for data in ("cats", "dogs"):
            for noise in ("sym:0.4", "pair:0.4"):
                for seed in (1, 2):
                    add(runs, 10.0, data, noise, "coop", seed)
        text = "\n".join(in_words(compare([], runs), "datasets", 80))
        # DSPT is first and second, MAE second and first, CoOp third twice; 2.343 * sqrt(3 * 4 / (6 * 2))
        ranks = {line.split()[0]: line.split()[1] for line in text.splitlines() if line[:4] in ("DSPT", "MAE ", "CoOp")}
        assert ranks == {"DSPT": "1.50", "MAE": "1.50", "CoOp": "3.00"}
        assert "critical difference at 0.05: 2.34 mean ranks" in text
        assert "Not told apart: DSPT, MAE, CoOp." in text


class TestCommand:
    def test_prints_json_and_draws(self, runs, tmp_path):
        shown = dspt("dspt", "mae", "--runs", runs, "--json", "--picture", tmp_path / "ranks.png")
        assert shown.exit_code == 0, shown.output
        found = json.loads(shown.stdout)
        assert found["ranks"]["mean"] == {"DSPT": 1.5, "MAE": 1.5}
        assert {one["over"]: one["p"] for one in found["wilcoxon"]}["datasets"] == 1.0
        assert found["file"] == str(tmp_path / "ranks.png")
        assert (tmp_path / "ranks.png").read_bytes().startswith(b"\x89PNG")

    def test_the_picture_says_what_the_runs_were_made_with(self, runs, tmp_path, monkeypatch):
        kept = []
        monkeypatch.setattr(plots, "save", lambda figure, path: kept.append(figure))
        assert dspt("dspt", "mae", "--runs", runs, "--picture", tmp_path / "ranks.png").exit_code == 0
        note = kept[0].get_supxlabel().replace("\n", " ")
        assert note.startswith("Mean rank over 2 datasets; 1 is best.")
        # what `finished_run` writes, and of the rest the defaults
        assert note.endswith("Text tower: auto; learnt: prompt; 5 epochs; seeds 1, 2.")

    def test_prints_words(self, runs):
        shown = dspt("dspt", "mae", "--runs", runs)
        assert shown.exit_code == 0, shown.output
        assert shown.stdout.startswith("DSPT against MAE, on 2 datasets: 8 runs of each")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["dspt"], "expected two methods or two folders"),
            (["dspt", "dspt"], "expected two methods or two folders"),
            (["dspt", "mae", "DSPT"], "two of them are the same method"),
            (["dspt", "msp"], "neither a folder nor a method of the runs, whose methods are DSPT, MAE"),
            (["dspt", "mae", "--over", "classes"], "over 'classes': not known"),
            (["dspt", "mae", "--experiment", "maim"], "did you mean main"),
            (["dspt", "mae", "--only", "dataset=birds"], "only dataset=birds: not in runs, which has cats, dogs"),
            (["dspt", "mae", "--picture", "ranks.gif"], r"ranks.gif: expected a"),
        ],
    )
    def test_bad_input_is_one_sentence(self, runs, arguments, message):
        shown = dspt(*arguments, "--runs", runs)
        assert isinstance(shown.exception, InputError)
        assert message in str(shown.exception)

    def test_runs_that_never_meet_are_refused(self, tmp_path):
        add(tmp_path, 70.0, method="dspt", seed=1)
        add(tmp_path, 70.0, method="mae", seed=2)
        with pytest.raises(InputError, match="no two runs of the same data, noise and seed; DSPT has 1, MAE has 1"):
            compare(["dspt", "mae"], tmp_path)
