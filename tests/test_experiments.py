"""The paper's experiments: what they are made of, how they are run, what becomes of a broken run."""

import hashlib
import itertools
import json
import pickle
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from checkpoints import tiny_clip
from problems import QUIET, feature_file, finished_run
from typer.testing import CliRunner

from dspt import train
from dspt.cli import app, common, main
from dspt.data import open_dataset
from dspt.engine import forecast, local, tally
from dspt.engine.job import Sources, failures
from dspt.experiments import catalogue, collect, jobs, paper, words
from dspt.experiments.catalogue import EXPERIMENTS, Condition
from dspt.internal.errors import InputError
from dspt.internal.progress import Reporter
from dspt.methods import METHODS
from dspt.noise import parse
from dspt.problem import pose
from dspt.runs import description


def line_of(text, name):
    """Return the words behind the name at the beginning of a line."""
    return next(line.removeprefix(name).split() for line in text.splitlines() if line.startswith(f"{name} "))


def dspt(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def data(tmp_path):
    """Return a feature file and the checkpoint it belongs to."""
    return feature_file(tmp_path / "tiny.npz"), tiny_clip(tmp_path / "clip", text_only=True)


def small(name, data, **settings):
    """Return an experiment on a tiny feature file, one seed, two epochs."""
    source, model = data
    experiment = catalogue.with_seeds(catalogue.on_data(catalogue.get(name), [str(source)]), [1])
    return catalogue.with_config(experiment, model=str(model), **{"epochs": 2, **settings})


class TestCatalogue:
    def test_has_the_papers_tables_and_figures(self):
        kinds = Counter(experiment.kind for experiment in EXPERIMENTS.values())
        assert kinds == {"table": 7, "figure": 6}
        names = "main extreme similar unsupervised cifar10 methods realistic"
        names += " accuracy-vs-noise gradient-distribution"
        names += " loss-curves gradient-curves logitclip-tau early-accuracy"
        assert set(EXPERIMENTS) == set(names.split())

    def test_main_is_every_dataset_noise_method_and_seed(self):
        main = catalogue.get("main")
        runs = list(main.runs())
        assert len(runs) == 9 * 6 * 8 * 3
        assert len({(r.condition, r.variant, r.seed) for r in runs}) == len(runs)

    def test_every_method_there_is_known_and_one_table_has_them_all(self):
        methods = {variant.method for one in EXPERIMENTS.values() for variant in one.variants}
        assert methods <= set(METHODS)
        shown = {variant.method for variant in catalogue.get("methods").variants}
        assert shown == set(METHODS) - {"zero-shot"}  # which stands above them anyway

    @pytest.mark.parametrize("name", [n for n, e in EXPERIMENTS.items() if e.kind == "table"])
    def test_mae_stands_beside_dspt_in_every_table(self, name):
        labels = [variant.label for variant in catalogue.get(name).variants]
        assert "DSPT" not in labels or "MAE" in labels

    def test_every_figure_of_the_paper_has_its_cell(self):
        # 9 datasets x 6 noises x 5 methods; 4 settings x 7 methods, twice; 9 datasets; 5 noises x 6 methods
        expected = {"main": 270, "extreme": 28, "similar": 28, "unsupervised": 9, "cifar10": 30}
        for name, count in expected.items():
            experiment = catalogue.get(name)
            found = [
                paper.accuracy(name, condition, variant.label)
                for condition in experiment.conditions
                for variant in experiment.variants
            ]
            assert sum(value is not None for value in found) == count, name

    def test_figures_of_the_paper_are_those_it_prints(self):
        cases = [
            ("main", "Caltech101", "sym:0.4", "DSPT", 95.07),
            ("main", "FGVCAircraft", "pair:0.4", "NLPrompt", 33.60),
            ("extreme", "DTD", "pair:0.8", "CoOp", 8.58),
            ("similar", "OxfordPets", "sym:0.6", "LogitClip", 84.96),
            ("unsupervised", "Flowers102", "none", "Robust-UPL", 70.34),
            ("cifar10", "CIFAR10", "pair:0.4", "DSPT", 57.07),
        ]
        for experiment, dataset, noise, label, printed in cases:
            assert paper.accuracy(experiment, Condition(dataset, noise), label) == printed
        assert paper.accuracy("main", Condition("Caltech101", "sym:0.4"), "MAE") is None
        assert paper.accuracy("main", Condition("embedded", "sym:0.4"), "DSPT") is None
        assert paper.zero_shot("oxford_pets") == 88.19

    def test_realistic_has_noise_between_what_is_alike_and_no_figure_of_the_paper(self):
        realistic = catalogue.get("realistic")
        assert len(list(realistic.runs())) == (3 * 5 + 3) * 7 * 3
        assert all(parse(noise).needs_clip for noise in realistic.made_noises)
        # what people got wrong belongs to the images they were shown
        people = {c.dataset for c in realistic.conditions if parse(c.noise).path}
        assert people == {"CIFAR10", "CIFAR100"}
        assert not any(parse(noise).path for noise in catalogue.on_data(realistic, ["photos"]).noises)
        assert not any(
            paper.accuracy("realistic", c, v.label) for c in realistic.conditions for v in realistic.variants
        )

    def test_only_narrows(self):
        found = catalogue.narrowed(catalogue.get("main"), "dataset=pets,method=dspt,method=mae,seed=2,noise=sym:0.4")
        assert [(r.condition.dataset, r.variant.method, r.seed) for r in found.runs()] == [
            ("OxfordPets", "mae", 2),
            ("OxfordPets", "dspt", 2),
        ]

    @pytest.mark.parametrize(
        ("only", "message"),
        [
            ("dataset=mnist", "only dataset=mnist: not in main, which has Caltech101"),
            ("method=dsp", "only method=dsp: not in main"),
            ("colour=red", "only 'colour=red': expected dataset="),
            ("dataset", "only 'dataset': expected"),
        ],
    )
    def test_only_something_else_is_refused(self, only, message):
        with pytest.raises(InputError, match=message):
            catalogue.narrowed(catalogue.get("main"), only)

    def test_an_unknown_experiment_is_answered_with_the_names(self):
        with pytest.raises(InputError, match=r"'maim': not known \(did you mean main\?\)"):
            catalogue.get("maim")

    def test_only_takes_one_of_several_variants_of_a_method_by_its_label(self):
        tau = catalogue.get("logitclip-tau")
        several = [variant.label for variant in tau.variants if variant.method == "logitclip"]
        assert len(several) > 2
        one = catalogue.narrowed(tau, f"method={several[1]}")
        assert [variant.label for variant in one.variants] == [several[1]]
        assert len(catalogue.narrowed(tau, "method=logitclip").variants) == len(several)

    def test_embedded_data_need_the_embedded_model_and_others_the_papers(self):
        extreme = catalogue.get("extreme")
        assert catalogue.usual_model(extreme) == "openai/clip-vit-base-patch16"
        assert catalogue.usual_model(catalogue.on_data(extreme, ["embedded"])) == "embedded"
        assert catalogue.usual_model(catalogue.get("cifar10")) is None  # no CLIP in it
        with pytest.raises(InputError, match="need different models; set `model`, or do one"):
            catalogue.usual_model(catalogue.on_data(extreme, ["embedded", "photos"]))

    @pytest.mark.parametrize(
        ("noise", "heading", "short", "phrase"),
        [
            ("sym:0.4", ("symmetric", "40 %"), "sym 40 %", "40 % symmetric"),
            ("pair:0.125", ("pair-flip", "12.5 %"), "pair 12.5 %", "12.5 % pair-flip"),
            ("inst:0.3", ("instance", "30 %"), "instance 30 %", "30 % instance"),
            (
                "inst-likely:0.3",
                ("instance, likeliest", "30 %"),
                "instance-likely 30 %",
                "30 % instance, likeliest",
            ),
            ("near:0.3", ("similar-class", "30 %"), "near 30 %", "30 % similar-class"),
            ("near-3:0.3", ("similar-class, 3 nearest", "30 %"), "near-3 30 %", "30 % similar-class, 3 nearest"),
            ("none", ("", "clean"), "clean", "no wrong labels"),
            ("file:given.csv", ("", "file:given.csv"), "file:given.csv", "file:given.csv"),
        ],
    )
    def test_a_noise_has_words(self, noise, heading, short, phrase):
        assert words.heading(noise) == heading
        assert words.short(noise) == short
        assert words.phrase(noise) == phrase


class TestJobs:
    def every(self, *without):
        for experiment in EXPERIMENTS.values():
            if experiment.name in without:
                continue
            model = catalogue.usual_model(experiment)
            yield from jobs.jobs(catalogue.with_config(experiment, model=model), Path("runs"))

    def test_every_job_of_every_experiment_can_be_pickled(self):
        for job in self.every():
            assert pickle.loads(pickle.dumps(job)) == job

    def test_folders_are_named_as_they_always_were(self):
        # all but the table of every method, which grows with each of them, what came later, and figures with more seeds
        # or other values
        later = ("methods", "realistic", "loss-curves", "gradient-curves", "early-accuracy", "logitclip-tau")
        found = [str(job.folder) for job in self.every(*later)]
        # Written down from version 0.1.0: with another name, what was run would be run again.
        assert {
            "runs/Caltech101/coop-sym-0.4-seed1-6f775b9f",
            "runs/CIFAR10/coop-sym-0.2-seed1-75bfa8d4",
            "runs/Caltech101/coop-sym-0.6-seed1-2a936fbb",
        } <= set(found)
        everything = hashlib.sha256("\n".join(found).encode()).hexdigest()
        assert everything == "2e9e123695611edea7aab0cc630f56e2b178cb36ead336f9746edc606ab677a1"

    def test_settings_that_are_not_the_defaults_are_in_the_name(self):
        main = catalogue.on_data(catalogue.get("main"), ["nowhere/photos.npz"])
        settings = {"model": "embedded", "epochs": 3, "shots": 4, "learner": "prototypes"}
        asked = catalogue.with_config(catalogue.with_seeds(main, [7]), **settings)
        first, second, *_ = jobs.jobs(asked, Path("runs"))
        assert str(first.folder) == "runs/photos/coop-sym-0.4-seed7-10c91f91"
        assert str(second.folder) == "runs/photos/smoothing-sym-0.4-seed7-47a89759"
        assert first.title == "nowhere/photos.npz sym:0.4 CoOp seed 7"


class TestReproduce:
    def test_runs_are_done_once(self, data, tmp_path):
        todo = jobs.jobs(small("similar", data), tmp_path / "runs")
        first = list(local.do(todo, None, QUIET))
        times = [(job.folder / "result.json").stat().st_mtime_ns for job in todo]
        again = list(local.do(todo, None, QUIET))
        assert len(todo) == 2 * 8
        assert [o.result for o in first] == [o.result for o in again]
        assert times == [(job.folder / "result.json").stat().st_mtime_ns for job in todo]

    def test_experiments_share_their_runs(self, data, tmp_path):
        folders = {
            name: {job.folder for job in jobs.jobs(small(name, data), tmp_path / "runs")}
            for name in ("main", "similar", "extreme", "early-accuracy")
        }
        assert len(folders["main"] & folders["similar"]) == 2 * 4  # sym 60 and pair 30, four methods
        assert folders["early-accuracy"] < folders["main"]
        assert not folders["extreme"] & folders["main"]

    def test_other_settings_have_other_folders(self, data, tmp_path):
        one, other, same = (
            jobs.jobs(small("early-accuracy", data, **settings), tmp_path)
            for settings in ({"shots": 4}, {"shots": 5}, {"shots": 4, "workers": 7})
        )
        assert not {job.folder for job in one} & {job.folder for job in other}
        assert [job.folder for job in one] == [job.folder for job in same]

    def test_a_setting_that_is_added_one_day_changes_no_folder(self, data, tmp_path, monkeypatch):
        def folders():
            return [job.folder for job in jobs.jobs(small("extreme", data), tmp_path)]

        before, known = folders(), description.asdict
        monkeypatch.setattr(description, "asdict", lambda config: known(config) | {"added": 1})
        assert folders() == before

    def test_a_broken_run_is_reported_and_the_rest_goes_on(self, data, tmp_path):
        todo = jobs.jobs(small("early-accuracy", data), tmp_path / "runs")
        todo[1].folder.mkdir(parents=True)
        (todo[1].folder / "holiday.jpg").write_bytes(b"")
        outcomes = list(local.do(todo, None, QUIET))
        assert [o.error is None for o in outcomes] == [True, False, True]
        (line,) = failures(outcomes)
        assert "MAE seed 1: run folder" in line
        assert "holiday.jpg" in line

    def test_a_fault_of_ours_costs_one_run_too(self, data, tmp_path, monkeypatch):
        from dspt.workflows import train as pipeline

        right = pipeline.run

        def faulty(source, config, *more, **options):
            if config.method == "mae":
                raise RuntimeError("boom")
            return right(source, config, *more, **options)

        monkeypatch.setattr(pipeline, "run", faulty)
        todo = jobs.jobs(small("early-accuracy", data), tmp_path / "runs")
        errors = [o.error and str(o.error) for o in local.do(todo, None, QUIET)]
        assert errors == [None, "RuntimeError: boom", None]

    def test_a_missing_dataset_is_told_once(self, tmp_path):
        main = catalogue.narrowed(catalogue.get("main"), "dataset=pets,dataset=dtd,seed=1")
        todo = jobs.jobs(main, tmp_path / "runs")
        said = []
        loud = Reporter(silent=True)
        loud.say = said.append
        reasons = failures(tally.told(local.do(todo, tmp_path, loud), todo, loud))
        assert len(reasons) == 2
        assert "DTD sym:0.4 CoOp seed 1 and 47 more:" in reasons[0]
        at_once = [line for line in said if line.startswith("failed: ")]
        assert [line.split()[1] for line in at_once] == ["DTD", "OxfordPets"]

    def test_a_forecast_counts_the_steps_that_are_left(self, data, tmp_path, monkeypatch):
        monkeypatch.setattr(forecast, "_step", lambda config, dataset: 0.5)
        todo = jobs.jobs(small("early-accuracy", data), tmp_path / "runs")

        def seconds():
            return [one.seconds for one in forecast.forecast(todo, None, QUIET)]

        # 3 runs of 2 epochs of 100 // 32 steps of half a second
        assert seconds() == [3.0, 3.0, 3.0]
        list(local.do(todo[:1], None, QUIET))
        assert seconds() == [0.0, 3.0, 3.0]
        assert [one.done for one in forecast.forecast(todo, None, QUIET)] == [True, False, False]
        todo[1].folder.mkdir(parents=True)
        (todo[1].folder / "metrics.jsonl").write_text('{"epoch": 1}\n')
        assert seconds() == [0.0, 1.5, 3.0]

    @pytest.mark.parametrize("epochs", [1, 2, 60])
    def test_a_forecast_counts_the_steps_by_which_a_method_finds_its_learning_rate(
        self, data, tmp_path, monkeypatch, epochs
    ):
        monkeypatch.setattr(forecast, "_step", lambda config, dataset: 1.0)
        job = jobs.jobs(small("early-accuracy", data), tmp_path / "runs")[0]
        job = replace(job, noise="none", config=replace(job.config, method="dspt-auto", epochs=epochs))
        (found,) = forecast.forecast([job], None, QUIET)
        taken = []
        task = pose(open_dataset(job.source), job.config, parse(job.noise), reporter=QUIET)
        list(train.fit(task, on_step=lambda *_: taken.append(1)))
        assert found.seconds == len(taken)

    def test_a_forecast_takes_what_finished_runs_of_the_same_method_took(self, data, tmp_path, monkeypatch):
        monkeypatch.setattr(forecast, "_step", lambda config, dataset: 0.5)
        two = catalogue.with_seeds(catalogue.narrowed(small("early-accuracy", data), "method=dspt,method=mae"), [1, 2])
        todo = jobs.jobs(two, tmp_path / "runs")
        first = next(job for job in todo if job.config.method == "dspt")
        (outcome,) = local.do([first], None, QUIET)
        found = {one.job.title.split(" ", 2)[2]: one.seconds for one in forecast.forecast(todo, None, QUIET)}
        took = outcome.result.seconds
        assert found == {"MAE seed 1": 3.0, "MAE seed 2": 3.0, "DSPT seed 1": 0.0, "DSPT seed 2": took}

    def test_a_step_is_measured(self, data, tmp_path, monkeypatch):
        clock = SimpleNamespace(perf_counter=itertools.count(7.0, 0.5).__next__)
        monkeypatch.setattr(forecast, "time", clock)
        todo = jobs.jobs(small("early-accuracy", data), tmp_path / "runs")
        assert [one.seconds for one in forecast.forecast(todo, None, QUIET)] == [3.0, 3.0, 3.0]
        assert not (tmp_path / "runs").exists()

    def test_a_finished_run_needs_its_data_no_more(self, data, tmp_path):
        todo = jobs.jobs(small("early-accuracy", data), tmp_path / "runs")
        first = [o.result for o in local.do(todo, None, QUIET)]
        data[0].unlink()
        assert [o.result for o in local.do(todo, None, QUIET)] == first

    @pytest.mark.parametrize("text", ["{}", "[]", "{", "5"])
    def test_a_damaged_result_is_reported_not_shown(self, data, tmp_path, text):
        todo = jobs.jobs(small("early-accuracy", data), tmp_path / "runs")
        list(local.do(todo, None, QUIET))
        (todo[0].folder / "result.json").write_text(text)
        outcomes = list(local.do(todo, None, QUIET))
        assert [o.error is None for o in outcomes] == [False, True, True]
        assert len(collect.find_runs(tmp_path / "runs")) == 2

    def test_files_of_one_name_in_two_folders_are_two_datasets(self, data, tmp_path):
        (tmp_path / "other").mkdir()
        other = feature_file(tmp_path / "other" / "tiny.npz", train=90)
        one = jobs.jobs(small("early-accuracy", data), tmp_path / "runs")
        two = jobs.jobs(small("early-accuracy", (other, data[1])), tmp_path / "runs")
        assert not {job.folder for job in one} & {job.folder for job in two}
        assert all(o.error is None for o in local.do([*one, *two], None, QUIET))
        with pytest.raises(InputError, match="are both of tiny, but not of the same data"):
            collect.collect(catalogue.get("main"), collect.find_runs(tmp_path / "runs"))

    def test_what_is_asked_for_twice_is_done_once(self, data, tmp_path):
        twice = catalogue.on_data(small("early-accuracy", data), [str(data[0]), str(data[0])])
        assert len(jobs.jobs(catalogue.with_seeds(twice, [1, 1]), tmp_path)) == 3

    def test_what_the_experiment_decides_cannot_be_set(self, data, tmp_path):
        with pytest.raises(InputError, match="set seed=9: it is part of the experiment"):
            jobs.jobs(small("main", data, seed=9), tmp_path)
        with pytest.raises(InputError, match="set learner=prompt: it is part of the experiment"):
            jobs.jobs(catalogue.with_config(catalogue.get("cifar10"), learner="prompt"), tmp_path)
        with pytest.raises(InputError, match="epochs = 2: gradient-distribution is made with"):
            small("gradient-distribution", data)

    def test_a_setting_that_is_not_known_is_refused(self, data, tmp_path):
        with pytest.raises(InputError, match="setting 'epoch': not known"):
            jobs.jobs(small("main", data, epoch=3), tmp_path)
        with pytest.raises(InputError, match="setting 'views': not known; the settings are"):
            jobs.jobs(catalogue.with_config(catalogue.get("cifar10"), views=3), tmp_path)


class TestCollect:
    def test_runs_of_different_settings_are_never_mixed(self, data, tmp_path):
        for epochs in (1, 2):
            experiment = small("early-accuracy", data, epochs=epochs)
            experiment = catalogue.narrowed(experiment, "method=dspt")
            list(local.do(jobs.jobs(experiment, tmp_path / "runs"), None, QUIET))
        runs = collect.find_runs(tmp_path / "runs")
        with pytest.raises(InputError, match=r"its runs differ in epochs, 1 in .*; give `where`"):
            collect.collect(catalogue.get("main"), runs)
        chosen = collect.collect(catalogue.get("main"), collect.having(runs, "epochs=2"))
        assert [run.settings["epochs"] for run in chosen.runs] == [2]
        with pytest.raises(InputError, match="where epoch: no run has such a setting"):
            collect.having(runs, "epoch=2")

    def test_networks_from_scratch_of_different_sizes_are_not_mixed(self, tmp_path):
        for model in ("small", "resnet34"):
            result = {"data": "CIFAR10", "noise": "sym:0.5", "method": "coop", "seed": 1}
            settings = {"learner": "network", "model": model}
            finished_run(tmp_path / model, result | {"accuracy": 20.0}, settings)
        result = dspt("table", "cifar10", "--runs", tmp_path)
        assert result.exit_code != 0
        with pytest.raises(InputError, match="small"):
            collect.collect(catalogue.get("cifar10"), collect.find_runs(tmp_path))
        assert dspt("table", "cifar10", "--runs", tmp_path, "--where", "model=small").exit_code == 0

    def test_a_part_is_taken_before_it_is_asked_whether_runs_may_stand_together(self, data, tmp_path):
        other = feature_file(tmp_path / "other.npz"), data[1]
        for source, epochs in ((data, 2), (other, 3)):
            experiment = catalogue.narrowed(small("extreme", source, epochs=epochs), "method=dspt")
            list(local.do(jobs.jobs(experiment, tmp_path / "runs"), None, QUIET))
        table = ["table", "extreme", "--runs", tmp_path / "runs"]
        assert dspt(*table).exit_code != 0
        result = dspt(*table, "--only", "dataset=other")
        assert result.exit_code == 0, result.output
        assert "3 epochs" in result.stdout

    def test_names_that_differ_in_a_dot_are_two_datasets(self, data, tmp_path):
        _, model = data
        files = [feature_file(tmp_path / name) for name in ("v1.0.npz", "v10.npz")]
        for file in files:
            todo = jobs.jobs(small("early-accuracy", (file, model)), tmp_path / "runs")
            list(local.do(todo, None, QUIET))
        found = collect.collect(catalogue.get("main"), collect.find_runs(tmp_path / "runs"))
        assert found.experiment.datasets == ("v1.0", "v10")

    def test_notes_say_what_is_unusual_and_the_versions(self, data, tmp_path):
        todo = jobs.jobs(small("early-accuracy", data, shots=5, lr=0.01), tmp_path / "runs")
        list(local.do(todo, None, QUIET))
        found = collect.collect(catalogue.get("main"), collect.find_runs(tmp_path / "runs"))
        notes = " ".join(found.notes)
        assert "2 epochs" in notes
        assert "Not the paper's setting: lr 0.01, shots 5" in notes
        assert "torch 2" in notes

    @pytest.mark.parametrize(
        "odd",
        [
            {"data": 5},
            {"data": None},
            {"seed": "1"},
            {"seed": [1]},
            {"zero_shot": "x"},
            {"method": ["a"]},
            {"accuracy": None},
            {"noise": 3},
        ],
    )
    def test_a_run_of_odd_types_is_passed_over(self, data, tmp_path, odd):
        todo = jobs.jobs(small("early-accuracy", data), tmp_path / "runs")
        list(local.do(todo, None, QUIET))
        file = todo[0].folder / "result.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | odd))
        assert len(collect.find_runs(tmp_path / "runs")) == 2

    def test_the_papers_cifar_figures_stand_beside_cifar_alone(self):
        assert paper.accuracy("cifar10", Condition("CIFAR10", "sym:0.2"), "DSPT") == 82.34
        assert paper.accuracy("cifar10", Condition("photos", "sym:0.2"), "DSPT") is None

    def test_runs_in_which_nothing_moves_are_in_no_table(self, data, tmp_path):
        todo = jobs.jobs(small("gradient-distribution", data, epochs=None), tmp_path / "runs")
        list(local.do(todo, None, QUIET))
        runs = collect.find_runs(tmp_path / "runs")
        assert len(collect.collect(catalogue.get("gradient-distribution"), runs).runs) == 2
        assert collect.collect(catalogue.get("main"), runs).runs == ()


class TestOwnRuns:
    """An experiment's table, figure and page take its own runs, and name what they do not use."""

    def add(self, runs, name, data="caltech101", method="dspt", seed=1, accuracy=80.0, noise="sym:0.4", **settings):
        result = {"data": data, "noise": noise, "method": method, "seed": seed, "accuracy": accuracy}
        return finished_run(runs / name, result | {"zero_shot": 60.0}, {"epochs": 50, **settings})

    def table(self, runs, *more):
        """Return what a table says as JSON, and the folders it does not use by reason."""
        shown = dspt("table", "main", "--runs", runs, "--json", *more)
        assert shown.exit_code == 0, shown.output
        found = json.loads(shown.stdout)
        return found, {Path(one["folder"]).name: one["reason"] for one in found["not_used"]}, shown.stderr

    def cells(self, found):
        return {(c["dataset"], c["method"]): c["seed_numbers"] for c in found["cells"] if c["seed_numbers"]}

    def test_a_run_of_a_rule_that_a_method_no_longer_has_is_not_shown(self, tmp_path):
        for name in ("old", "new"):
            folder = self.add(tmp_path, name, method="logitclip", option=["tau=0.1"])
            if name == "old":
                config = json.loads((folder / "config.json").read_text())
                assert config.pop("method_rule") == 2
                (folder / "config.json").write_text(json.dumps(config))
        told = []
        results = collect.gather(catalogue.get("logitclip-tau"), tmp_path, only="dataset=caltech101", tell=told.append)
        assert [run.folder.name for run in results.runs] == ["new"]
        assert [(why.folder.name, str(why.reason)) for why in told] == [
            ("old", "it was made by an earlier version of dspt, whose logitclip had another rule")
        ]

    def test_own_photos_are_neither_shown_nor_in_the_way(self, tmp_path):
        self.add(tmp_path, "a")
        self.add(tmp_path, "photos", data="photos", epochs=7, learner="prototypes")
        found, not_used, stderr = self.table(tmp_path)
        assert self.cells(found) == {("Caltech101", "DSPT"): [1]}
        assert found["title"].endswith("on 1 of its 9 datasets")
        assert not_used == {
            "photos": "photos is not one of the datasets of main, and dspt reproduce did not make the run"
        }
        assert f"not used: {tmp_path / 'photos'}: photos is not one of the datasets of main" in stderr
        found, not_used, _ = self.table(tmp_path, "--only", "dataset=photos")
        assert self.cells(found) == {("photos", "DSPT"): [1]}
        assert not_used == {}

    def test_own_photos_alone_are_no_table(self, tmp_path):
        self.add(tmp_path, "photos", data="photos")
        shown = dspt("table", "main", "--runs", tmp_path)
        assert "main: no runs of it below" in str(shown.exception)
        assert "photos is not one of the datasets of main" in shown.stderr

    def test_other_data_stand_in_only_if_reproduce_made_them_and_nothing_is_of_the_papers(self, tmp_path):
        made = "dspt-sym-0.4-seed1-0123abcd"
        self.add(tmp_path / "embedded", made, data="embedded", epochs=2)
        self.add(tmp_path, "photos", data="photos")
        found, not_used, _ = self.table(tmp_path)
        assert self.cells(found) == {("embedded", "DSPT"): [1]}
        assert found["title"].endswith("on embedded instead of its 9 datasets")
        assert list(not_used) == ["photos"]
        self.add(tmp_path, "a")
        found, not_used, _ = self.table(tmp_path)
        assert self.cells(found) == {("Caltech101", "DSPT"): [1]}
        assert set(not_used) == {"photos", made}

    def test_an_own_run_on_the_same_data_as_those_of_reproduce_stays_out_of_every_part(self, tmp_path):
        self.add(tmp_path / "embedded", "dspt-sym-0.4-seed1-0123abcd", data="embedded", epochs=2)
        self.add(tmp_path, "mine", data="embedded", epochs=3, accuracy=99.0)
        for more in ((), ("--only", "method=dspt"), ("--only", "dataset=embedded")):
            found, not_used, _ = self.table(tmp_path, *more)
            assert [c["mean"] for c in found["cells"] if c["seeds"] and c["method"] == "DSPT"] == [80.0]
            assert list(not_used) == ["mine"]

    def test_runs_with_other_settings_do_not_stop_those_with_the_papers(self, tmp_path):
        self.add(tmp_path, "a")
        self.add(tmp_path, "short", method="coop", epochs=5)
        found, not_used, _ = self.table(tmp_path)
        assert self.cells(found) == {("Caltech101", "DSPT"): [1]}
        assert not_used == {"short": "main is not made with epochs 5"}
        found, _, _ = self.table(tmp_path, "--where", "epochs=5")
        assert self.cells(found) == {("Caltech101", "CoOp"): [1]}

    def test_what_only_leaves_out_was_asked_for_and_is_not_told(self, tmp_path):
        self.add(tmp_path, "a")
        self.add(tmp_path, "b", data="dtd")
        self.add(tmp_path, "c", method="coop")
        self.add(tmp_path, "d", noise="sym:0.9")
        found, not_used, _ = self.table(tmp_path, "--only", "dataset=caltech101,method=dspt")
        assert self.cells(found) == {("Caltech101", "DSPT"): [1]}
        assert not_used == {"d": "its noise is not one of main"}

    def test_many_folders_of_one_reason_are_one_line(self, tmp_path):
        self.add(tmp_path, "a")
        for number in range(7):
            self.add(tmp_path, f"p{number}", data="photos", seed=number)
        _, not_used, stderr = self.table(tmp_path)
        assert len(not_used) == 7
        (line,) = stderr.splitlines()
        assert line.startswith(f"not used: 7 folders, as {tmp_path / 'p0'} (--json names all): photos is not")

    def test_a_damaged_seed_is_named_and_not_counted(self, tmp_path):
        for method in ("coop", "dspt"):
            for seed in (1, 2):
                self.add(tmp_path, f"{method}{seed}", method=method, seed=seed, accuracy=70.0 + 2 * seed)
        file = tmp_path / "coop2" / "result.json"
        file.write_text(file.read_text()[:40])
        found, not_used, stderr = self.table(tmp_path)
        assert self.cells(found) == {("Caltech101", "CoOp"): [1], ("Caltech101", "DSPT"): [1, 2]}
        assert "result.json: not valid JSON" in not_used["coop2"]
        assert "coop2" in stderr
        assert "Seeds 1, 2; CoOp: seed 1 only" in found["notes"]

    def test_the_result_of_another_seed_is_named_and_not_counted(self, tmp_path):
        one, other = (self.add(tmp_path, f"seed{seed}", seed=seed, accuracy=70.0 + seed) for seed in (1, 2))
        (other / "result.json").write_bytes((one / "result.json").read_bytes())
        found, not_used, _ = self.table(tmp_path)
        assert self.cells(found) == {("Caltech101", "DSPT"): [1]}
        assert "belongs to another run (its seed is 1, not 2)" in not_used["seed2"]

    def test_figures_and_the_page_name_them_too(self, tmp_path):
        runs = tmp_path / "runs"
        self.add(runs, "a")
        self.add(runs, "photos", data="photos", epochs=7)
        broken = self.add(runs, "broken", seed=2)
        (broken / "result.json").write_text("{")
        drawn = dspt("figure", "accuracy-vs-noise", "--runs", runs, "--out", tmp_path, "--json")
        assert drawn.exit_code == 0, drawn.output
        found = json.loads(drawn.stdout)
        assert {Path(one["folder"]).name for one in found["not_used"]} == {"photos", "broken"}
        assert found["title"].endswith("on 1 of its 4 datasets")
        page = dspt("report", "--runs", runs, "--out", tmp_path / "report.html", "--json")
        assert page.exit_code == 0, page.output
        not_used = {Path(one["folder"]).name: one["reason"] for one in json.loads(page.stdout)["not_used"]}
        assert set(not_used) == {"photos", "broken"}
        text = (tmp_path / "report.html").read_text()
        assert "Folders not used" in text
        assert f"run folder {broken}: result.json: not valid JSON" in text
        assert f"run folder {runs / 'photos'}: it belongs to no table or figure" in text
        assert "Accuracy over the share of wrong labels, on 1 of its 4 datasets" in text

    def test_a_noise_that_the_experiment_has_on_another_dataset_only_is_not_its_own(self, tmp_path):
        self.add(tmp_path, "a", data="dtd", noise="sym:0.4")
        self.add(tmp_path, "b", data="dtd", noise="pair:0.4")  # which logitclip-tau has on pets and UCF101
        told = []
        results = collect.gather(catalogue.get("logitclip-tau"), tmp_path, tell=told.append)
        assert [run.folder.name for run in results.runs] == ["a"]
        assert [why.folder.name for why in told] == ["b"]


class TestCommands:
    """Every experiment, from the runs to what is made of them."""

    @pytest.mark.parametrize("name", EXPERIMENTS)
    def test_every_experiment_runs_on_the_embedded_images(self, name, tmp_path):
        model = ("--model", "small") if name == "cifar10" else ()
        runs = ("--runs", tmp_path / "runs")
        epochs = () if name == "gradient-distribution" else ("--epochs", 2)
        short = ("--data", "embedded", *epochs, "--seeds", 1, *model, *runs, "--json", "-q")
        done = dspt("reproduce", name, *short)
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["failed"] == 0
        experiment = catalogue.get(name)
        if experiment.kind == "table":
            shown = dspt("table", name, *runs)
            labels = [variant.label for variant in experiment.variants]
        else:
            shown = dspt("figure", name, *runs, "--out", tmp_path)
            labels = [f"{name}.pdf", f"{name}.png"]
            assert (tmp_path / f"{name}.pdf").stat().st_size > 1000
        assert shown.exit_code == 0, shown.output
        assert all(label in shown.stdout for label in labels)
        page = dspt("report", *runs, "--out", tmp_path / "report.html", "--json")
        assert page.exit_code == 0
        assert experiment.title in (tmp_path / "report.html").read_text()

    def test_a_dry_run_writes_nothing_and_tells_the_time(self, data, tmp_path, monkeypatch):
        monkeypatch.setattr(forecast, "_step", lambda config, dataset: 0.5)
        source, model = data
        asked = (
            "--data",
            source,
            "--model",
            model,
            "--only",
            "method=dspt",
            "--runs",
            tmp_path / "r",
        )
        shown = dspt("reproduce", "extreme", *asked, "--dry-run")
        assert shown.exit_code == 0
        # 6 runs of 50 epochs of 3 steps of half a second
        assert line_of(shown.stdout, str(source)) == ["6", "6", "7:30"]
        assert "extreme: 6 runs, 0 done; sym 90 %, pair 80 %; seeds 1, 2, 3" in shown.stdout
        assert not (tmp_path / "r").exists()
        told = json.loads(dspt("reproduce", "extreme", *asked, "--dry-run", "--json").stdout)
        assert told["cells"] == [{"dataset": str(source), "method": "DSPT", "done": 0, "to_go": 6, "seconds": 450.0}]
        assert len(told["runs"]) == 6

    def test_a_dry_run_of_main_is_a_table_by_dataset_and_method(self, tmp_path):
        shown = dspt("reproduce", "main", "--root", tmp_path, "--runs", tmp_path / "r", "--dry-run", "-q")
        assert shown.exit_code == 0
        assert "main: 1,296 runs, 0 done" in shown.stdout
        # 6 noises with 3 seeds in each of 8 columns; no dataset is there, so nobody knows how long it takes
        assert line_of(shown.stdout, "OxfordPets") == [*["18"] * 8, "144", "-"]
        assert line_of(shown.stdout, "all") == [*["162"] * 8, "1,296"]
        assert "OxfordPets cannot be done: " in shown.stdout

    def test_a_dry_run_that_is_broken_into_several_tables_keeps_the_time_beside_all_runs(self, data, tmp_path):
        source, model = data
        asked = ("--data", source, "--model", model, "--runs", tmp_path / "r", "--dry-run", "-q")
        shown = dspt("reproduce", "logitclip-tau", *asked)
        heads = [line.split() for line in shown.stdout.splitlines() if line.startswith("runs to go")]
        assert len(heads) > 1
        assert heads[-1][-2:] == ["all", "about"]

    def test_every_finished_run_is_a_line_with_its_accuracy_and_what_is_left(self, data, tmp_path):
        source, model = data
        asked = ("--data", source, "--model", model, "--epochs", 1, "--seeds", "1,2", "--runs", tmp_path / "r")
        assert dspt("reproduce", "early-accuracy", *asked, "--only", "seed=1,method=mae").exit_code == 0
        shown = dspt("reproduce", "early-accuracy", *asked)
        assert shown.exit_code == 0, shown.output
        first, *lines = shown.stderr.splitlines()
        assert first == "1 of 6 runs are done already"
        assert all(re.search(r"seed \d  +\d+\.\d\d %  +\d+:\d\d  \d done, \d to go", line) for line in lines)
        assert [re.search(r"\d done, \d to go", line)[0] for line in lines] == [
            f"{done} done, {6 - done} to go" for done in range(2, 7)
        ]

    def test_a_failure_is_told_and_the_exit_status_is_1(self, data, tmp_path):
        source, model = data
        asked = ("--data", source, "--model", model, "--epochs", 1, "--seeds", 1, "--runs", tmp_path / "r")
        todo = json.loads(dspt("reproduce", "early-accuracy", *asked, "--dry-run", "--json").stdout)["runs"]
        folder = Path(todo[1]["folder"])
        folder.mkdir(parents=True)
        (folder / "holiday.jpg").write_bytes(b"")
        shown = dspt("reproduce", "early-accuracy", *asked, "-q")
        assert shown.exit_code == 1
        assert "2 of 3 runs are done" in shown.stdout
        assert "failure.txt" not in shown.stdout  # it would be one file more among somebody's own
        assert "names what failed" in shown.stdout
        assert shown.stderr.count("failed: ") == 1

    @pytest.mark.parametrize("workers", ["1", "2"])
    def test_data_that_are_not_there_are_refused_before_any_folder_is_made(self, workers, tmp_path):
        asked = ("--root", tmp_path / "gone", "--runs", tmp_path / "runs", "--jobs", workers)
        shown = dspt("reproduce", "main", *asked)
        assert isinstance(shown.exception, InputError)  # which ends with exit status 2
        assert str(shown.exception).startswith(f"none of 9 datasets can be opened: root {tmp_path / 'gone'}: no such")
        assert not (tmp_path / "runs").exists()
        shown = dspt("reproduce", "main", *asked, "--only", "dataset=pets")
        assert str(shown.exception).startswith(f"root {tmp_path / 'gone'}: no such folder; give the folder in which")

    @pytest.mark.parametrize("workers", ["1", "2"])
    def test_one_dataset_that_is_not_there_leaves_no_folder_and_stops_no_other(self, workers, data, tmp_path):
        source, model = data
        asked = ("--data", source, "--data", tmp_path / "gone.npz", "--model", model, "--epochs", 1, "--seeds", 1)
        asked = (*asked, "--runs", tmp_path / "runs", "--jobs", workers)
        shown = dspt("reproduce", "early-accuracy", *asked)
        assert shown.exit_code == 1
        assert "3 of 6 runs are done" in shown.stdout
        assert "failure.txt" not in shown.stdout  # there is none
        assert shown.stderr.count(f"{tmp_path / 'gone.npz'} is left out: ") == 1
        assert shown.stderr.count("failed: ") == 1
        assert "CoOp seed 1 and 2 more: " in shown.stderr
        assert [path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()] == [Path(source).stem]
        assert not list((tmp_path / "runs").rglob("failure.txt"))

    def test_data_of_finished_runs_may_be_gone(self):
        done, lost = (SimpleNamespace(done=done, source="gone.npz") for done in (True, False))
        assert Sources(None).missing([done]) == {}
        assert list(Sources(None).missing([done, lost])) == ["gone.npz"]
        with pytest.raises(InputError, match=r"gone\.npz"):
            Sources(None).missing([lost])

    def test_a_table_goes_to_a_file_in_any_format(self, data, tmp_path):
        source, model = data
        runs = ("--runs", tmp_path / "runs")
        asked = ("--data", source, "--model", model, "--epochs", 1, "--seeds", "1,2", *runs)
        assert dspt("reproduce", "extreme", *asked, "--only", "method=dspt", "-q").exit_code == 0
        for style, part in (("markdown", "| "), ("latex", r"\toprule"), ("csv", "experiment,")):
            out = tmp_path / f"table.{style}"
            assert dspt("table", "extreme", *runs, "--format", style, "--out", out).exit_code == 0
            assert part in out.read_text()
        for suffix, part in ((".md", "| "), (".tex", r"\toprule"), (".csv", "experiment,"), (".txt", "─")):
            out = tmp_path / f"short{suffix}"
            assert dspt("table", "extreme", *runs, "--out", out).exit_code == 0
            assert part in out.read_text()
        for (name, *more), why in (
            (["a.json"], "a.json: expected a .txt, .md, .tex, .csv file for the table"),
            (["a.tex", "--format", "csv"], "a.tex: its suffix says latex, not csv; give another name"),
        ):
            refused = dspt("table", "extreme", *runs, "--out", tmp_path / name, *more)
            assert isinstance(refused.exception, InputError)
            assert why in str(refused.exception)
            assert not (tmp_path / name).exists()
        cells = json.loads(dspt("table", "extreme", *runs, "--json").stdout)["cells"]
        (cell,) = [c for c in cells if c["method"] == "DSPT" and c["noise"] == "sym:0.9"]
        assert cell["seeds"] == 2
        only = dspt("table", "extreme", *runs, "--only", "noise=sym:0.9", "--format", "csv")
        assert "pair" not in only.stdout
        one = json.loads(dspt("table", "extreme", *runs, "--only", "seed=2", "--json").stdout)
        assert {c["seeds"] for c in one["cells"] if c["method"] == "DSPT"} == {1}

    def test_all_shows_an_empty_table_where_nothing_was_run(self, tmp_path):
        result = dspt("table", "extreme", "--all", "--runs", tmp_path)
        assert result.exit_code == 0, result.output
        assert "DTD" in result.stdout

    def test_a_table_takes_seeds_that_the_experiment_did_not_ask_for(self, data, tmp_path):
        source, model = data
        runs = ("--runs", tmp_path / "runs")
        asked = ("--data", source, "--model", model, "--epochs", 1, "--seeds", "7,8", *runs)
        assert dspt("reproduce", "extreme", *asked, "--only", "method=dspt", "-q").exit_code == 0
        one = json.loads(dspt("table", "extreme", *runs, "--only", "seed=7", "--json").stdout)
        assert {c["seeds"] for c in one["cells"] if c["method"] == "DSPT"} == {1}
        other = dspt("table", "extreme", *runs, "--only", "seed=1")
        assert isinstance(other.exception, InputError)
        assert str(other.exception) == "only seed=1: not in extreme, which has 7, 8"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["table", "main"], "no such folder"),
            (["table", "maim"], "did you mean main"),
            (["reproduce", "main", "--data", "embedded", "--seeds", "a"], "seeds 'a': expected"),
            (
                ["reproduce", "main", "--data", "embedded", "--set", "epcohs=3", "--dry-run"],
                "setting 'epcohs': not known (did you mean epochs?)",
            ),
            (["reproduce", "main", "--data", "embedded", "--set", "x"], "set 'x': expected name="),
            (["reproduce", "main", "--data", "embedded", "--epochs", "-1"], "epochs = -1"),
            (["reproduce", "main", "--only", "seed=9"], "only seed=9: not in main"),
            (["figure", "main", "--runs", "."], "no runs of it below"),
            (["reproduce", "main", "--data", "embedded", "--data", "x"], "need different models"),
            (
                ["reproduce", "loss-curves", "--set", "class_specific=maybe"],
                "expected true or false",
            ),
            (["reproduce", "loss-curves", "--set", "model=5"], "model = 5: expected a text"),
            (["report", "--runs", "."], "no finished runs below it"),
        ],
    )
    def test_bad_input_is_one_sentence(self, arguments, message, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        shown = dspt(*arguments)
        assert isinstance(shown.exception, InputError)
        assert message in str(shown.exception)

    @pytest.mark.parametrize(
        ("arguments", "advice"),
        [
            (["table", "main"], "give --runs, where the runs are"),
            (["reproduce", "main", "--set", "seed=9"], "--only and --seeds choose"),
            (
                ["reproduce", "main", "--data", "embedded", "--data", "x"],
                "give --model, or do one at a time",
            ),
        ],
    )
    def test_advice_names_the_options(self, arguments, advice, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["dspt", *arguments])
        with pytest.raises(SystemExit):
            main()
        assert capsys.readouterr().err.strip().endswith(advice)

    def test_a_file_that_cannot_be_written_is_one_sentence(self, data, tmp_path):
        source, model = data
        runs = ("--runs", tmp_path / "runs")
        asked = ("--data", source, "--model", model, "--epochs", 1, "--seeds", 1, *runs, "-q")
        assert dspt("reproduce", "extreme", *asked, "--only", "method=dspt").exit_code == 0
        for command in (["table", "extreme"], ["report"]):
            shown = dspt(*command, *runs, "--out", tmp_path)
            assert isinstance(shown.exception, InputError)
            assert "cannot be written" in str(shown.exception)

    def test_a_network_from_scratch_is_no_classifier_of_clip(self, tmp_path):
        asked = ("--model", "small", "--shots", 4, "--epochs", 1, "--batch-size", 8)
        assert dspt("scratch", "embedded", *asked, "--out", tmp_path / "r", "-q").exit_code == 0
        shown = dspt("eval", tmp_path / "r", "embedded")
        assert "it holds a network from scratch" in str(shown.exception)

    def test_the_list_names_every_experiment(self):
        rows = json.loads(dspt("experiments", "--json").stdout)["experiments"]
        assert [row["name"] for row in rows] == [*EXPERIMENTS, "loss-landscape"]
        assert {row["name"]: row["runs"] for row in rows}["main"] == 1296

    @pytest.mark.parametrize("columns", [80, 120])
    @pytest.mark.parametrize("command", ["experiments", "methods"])
    def test_lists_fit_a_terminal_and_break_no_word(self, command, columns, monkeypatch):
        words = set(dspt(command).stdout.split())
        monkeypatch.setattr(common, "terminal_width", lambda otherwise: columns)
        lines = dspt(command).stdout.splitlines()
        assert max(map(len, lines)) <= columns
        assert set(" ".join(lines).split()) == words
