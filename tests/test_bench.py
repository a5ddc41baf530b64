"""The benchmark measures what it says: the reference is transformers' own function, the products those of a step."""

import json
import math
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from checkpoints import tiny_clip
from problems import QUIET
from typer.testing import CliRunner

from dspt.backbone.checkpoint import open_checkpoint
from dspt.backbone.image import ImageTower
from dspt.backbone.prompt import initial_context
from dspt.backbone.text import TextTower
from dspt.bench import encoding, epochs, memory, neighbour, posterior, scale, startup, steps, summary, timing
from dspt.cli import app
from dspt.engine.processes import Processes
from dspt.internal.errors import InputError

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "vocab_size": 49408}
CASE = steps.Case("6", 6, {3: 2, 5: 4})


@pytest.fixture(autouse=True)
def small_towers(monkeypatch, request):
    if "slow" in request.keywords:
        return
    monkeypatch.setitem(steps.SIZES, "vit-b-16", {**SMALL, "num_attention_heads": 4})


def test_the_reference_is_transformers_own_function():
    """Against the embeddings put in by hand, with eager attention, one class at a time."""
    from transformers import CLIPTextModelWithProjection

    with steps.random_text_tower("vit-b-16") as checkpoint:
        suffixes = steps.random_suffixes(CASE)
        theirs = steps.reference(checkpoint, suffixes)
        plain = CLIPTextModelWithProjection.from_pretrained(checkpoint.folder, attn_implementation="eager").eval()
    context = 0.02 * torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
    rows = []
    for suffix in suffixes:
        ids = torch.tensor([[steps.START, *[7] * 16, *suffix, *[steps.END] * (60 - len(suffix))]])
        table = plain.get_input_embeddings()
        embeds = table(ids).detach()
        embeds[0, 1:17] = context
        hook = table.register_forward_hook(lambda m, i, o, e=embeds: e)
        rows.append(F.normalize(plain(input_ids=ids).text_embeds, dim=1)[0])
        hook.remove()
    with torch.no_grad():
        torch.testing.assert_close(theirs(context), torch.stack(rows), rtol=1e-4, atol=1e-6)


def test_ours_and_the_reference_are_the_same_function():
    (found,) = steps.measure("vit-b-16", [CASE], 1, QUIET).values()
    assert found["feature_diff"] < 1e-6
    assert found["gradient_diff"] < 1e-5
    assert found["reference_positions"] == 6 * 77
    assert found["positions"] == 43
    assert found["ratio_lowest"] <= found["ratio"] <= found["ratio_highest"]
    assert found["ratio"] > 0
    assert found["gemm_fraction"] > 0


def test_a_difference_would_be_seen():
    with steps.random_text_tower("vit-b-16") as checkpoint:
        suffixes = steps.random_suffixes(CASE)
        prompts = TextTower(checkpoint).compile(steps.layout(suffixes))
        begin = initial_context(checkpoint, prompts.tower.embeddings, prompts.layout, 1)
        turned = steps.reference(checkpoint, [*suffixes[1:], suffixes[0]])
        features, gradient = steps.differences(prompts, turned, begin, 6)
    assert features > 1e-3
    assert gradient > 1e-3


def test_the_products_are_those_that_torch_does():
    """Floating-point operations by torch's own counter, without attention's."""
    from torch.utils.flop_counter import FlopCounterMode

    with steps.random_text_tower("vit-b-16") as checkpoint:
        prompts = TextTower(checkpoint).compile(steps.layout([[5, 6, 7], [5, 8, 7], [9, 7], [4, 3, 2, 7]]))
    assert prompts.first_layer_kept
    context = initial_context(checkpoint, prompts.tower.embeddings, prompts.layout, 1).requires_grad_()
    packed = torch.ops.mkldnn._linear_pointwise  # which the counter does not know
    known = {packed: lambda x, weight, *_, **__: 2 * x[0] * x[1] * weight[0]}
    with FlopCounterMode(display=False, custom_mapping=known) as counter:
        prompts(context).sum().backward()
    counts = counter.get_flop_counts()["Global"]
    counted = sum(n for op, n in counts.items() if "bmm" not in str(op))
    expected = steps.operations(prompts, 4)
    projection = 2 * 2 * 4 * 32 * 512  # to the features and back, which `operations` leaves out
    assert counted == expected + projection


def test_a_whole_run_is_put_together_from_its_parts():
    step = {
        "reference_seconds": 10.0,
        "reference_seconds_lowest": 9.0,
        "reference_seconds_highest": 12.0,
        "reference_forward_seconds": 4.0,
        "ours_seconds": 0.5,
        "ours_seconds_lowest": 0.4,
        "ours_seconds_highest": 0.7,
        "ours_forward_seconds": 0.2,
    }
    found = steps.whole_run(step, {"tower": 20.0, "files": 16.0})
    # 50 epochs of 129 steps; 32 images a step at 20 images/s; five tests of 2465 images in 25 batches
    reference = 6450 * (1.6 + 10) + 5 * (2465 / 20 + 25 * 4)
    ours = 6593 / 16 + 6450 * 0.5 + 50 * 0.2
    assert found["reference_seconds"] == pytest.approx(reference)
    assert found["ours_seconds"] == pytest.approx(ours)
    assert found["ratio"] == pytest.approx(reference / ours)
    same_views = ours + 49 * 4128 / 16  # a crop of each training image for every epoch
    assert found["ratio_same_views"] == pytest.approx(reference / same_views)
    assert found["ratio_lowest"] == pytest.approx((reference - 6450) / (ours + 6450 * 0.2))
    assert found["ratio_highest"] == pytest.approx((reference + 6450 * 2) / (ours - 6450 * 0.1))


@pytest.mark.skipif(not memory._COUNT_ANEW.exists(), reason="measured on Linux alone")
def test_memory_is_measured_in_a_process_of_its_own():
    case = steps.Case("60", 60, {4: 60})
    found = memory.measure([case], QUIET)["60"]
    # at least the reference's hidden rows: 60 classes of 77 positions, width 64, in 3 layers
    assert found["reference_mib"] > 3 * 60 * 77 * 64 * 4 / 2**20
    assert 0 < found["ours_mib"] < found["reference_mib"]
    assert found["ours_peak_mib"] > 100


@pytest.mark.skipif(not memory._COUNT_ANEW.exists(), reason="measured on Linux alone")
def test_memory_that_was_taken_before_training_does_not_hide_its_own():
    program = (
        "import numpy as np; taken = np.ones(200_000_000); del taken\n"
        "from dspt.bench.memory import short_training; from dspt.bench.steps import Case\n"
    )
    case = steps.Case("60", 60, {4: 60})
    with steps.random_text_tower("vit-b-16") as checkpoint:
        program += f"short_training({case!r}, 'ours', {str(checkpoint.folder)!r})"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(done.stdout)["ours_mib"] > 1


def test_memory_is_not_measured_where_a_peak_cannot_be_counted_anew(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_COUNT_ANEW", tmp_path / "none")
    assert memory.measure([CASE], QUIET) == {}
    assert "Linux alone" in "\n".join(summary._memory({}))


def test_encoding_is_measured_from_files_and_on_the_tower_alone(monkeypatch, tmp_path):
    tower = ImageTower(open_checkpoint(tiny_clip(tmp_path)))
    seen, call = [], ImageTower.__call__
    monkeypatch.setattr(ImageTower, "__call__", lambda t, x: seen.append(len(x)) or call(t, x))
    monkeypatch.setattr(ImageTower, "batch_size", lambda self: 4)
    monkeypatch.setattr(encoding, "vit_b16", lambda: tower)
    monkeypatch.setattr(encoding, "precisions_of_the_cpu", lambda: ("float32",))
    found = encoding.measure(2, 8, QUIET)
    # the tower alone before, between and after two rounds from files, which a batch warms up
    assert sum(seen) == 3 * 8 + 2 * 8 + 4
    assert 0 < found["lowest"] <= found["fraction"] <= found["highest"]
    assert found["files"] > 0
    assert found["decode_ms"] > 0
    assert "bfloat16" not in found
    (line,) = summary._low_precision(found)
    assert "this processor does not have it" in line


def test_bfloat16_is_measured_between_two_of_float32_where_the_processor_has_it(monkeypatch, tmp_path):
    checkpoint = open_checkpoint(tiny_clip(tmp_path))
    towers = {kind: ImageTower(checkpoint, dtype=kind) for kind in ("float32", "bfloat16")}
    order, call = [], ImageTower.__call__

    def noted(tower, pixels):
        order.append("bfloat16" if tower is towers["bfloat16"] else "float32")
        return call(tower, pixels)

    monkeypatch.setattr(ImageTower, "__call__", noted)
    monkeypatch.setattr(ImageTower, "batch_size", lambda self: 8)
    monkeypatch.setattr(encoding, "vit_b16", lambda precision="float32": towers[precision])
    monkeypatch.setattr(encoding, "precisions_of_the_cpu", lambda: ("float32", "bfloat16"))

    # each timing takes a second, those of bfloat16 half of it
    def timed(work, *arguments):
        work(*arguments)
        return 0.5 if arguments else 1.0

    monkeypatch.setattr(encoding, "seconds", timed)
    found = encoding.measure(3, 8, QUIET)
    assert order[-8:] == ["bfloat16", *(["float32", "bfloat16"] * 3), "float32"]  # one before them warms it up
    assert (found["tower"], found["bfloat16"]) == (8, 16)
    assert [found[f"bfloat16_ratio{end}"] for end in ("", "_lowest", "_highest")] == [2, 2, 2]
    (line,) = summary._low_precision(found)
    assert line.split() == ["tower", "alone", "in", "bfloat16", "16.00", "images/s,", "2.00", "times", "float32's"]


def test_epochs_are_timed_for_each_number_of_samples():
    found = epochs.measure([64, 128], 2, QUIET)
    assert list(found) == ["64", "128"]
    for n, one in found.items():
        for learner in ("prompt", "prototypes"):
            seconds, per_sample = one[f"{learner}_seconds"], f"{learner}_microseconds_per_sample"
            assert one[per_sample] == pytest.approx(1e6 * seconds / int(n))
            assert one[f"{learner}_epochs_per_second"] == pytest.approx(1 / seconds)
            assert one[f"{per_sample}_lowest"] <= one[per_sample] <= one[f"{per_sample}_highest"]


def test_epochs_beside_a_busy_program_lie_between_epochs_alone(monkeypatch):
    running, seen = [], []

    @contextmanager
    def none_but_noted():
        running.append(True)
        yield
        running.pop()

    @contextmanager
    def epochs_on(samples, batch_size):
        yield lambda name, n: seen.append(bool(running)) or (3.0 if running else 2.0)

    monkeypatch.setattr(neighbour, "busy_neighbour", none_but_noted)
    monkeypatch.setattr(neighbour, "epochs_on", epochs_on)
    found = neighbour.measure(2, QUIET)
    assert seen[1:] == [False, True, False, True, False]  # the first warms up
    assert (found["alone_seconds"], found["beside_seconds"], found["ratio"]) == (2.0, 3.0, 1.5)


def test_the_busy_program_is_gone_afterwards():
    with neighbour.busy_neighbour() as process:
        assert process.poll() is None
    assert process.returncode is not None


def test_the_busy_program_is_gone_after_an_error():
    with pytest.raises(KeyboardInterrupt), neighbour.busy_neighbour() as process:
        raise KeyboardInterrupt
    assert process.returncode is not None


@pytest.mark.skipif(sys.platform == "win32", reason="a process keeps its dead parent's number there")
def test_the_busy_program_ends_when_its_parent_is_killed():
    program = (
        "import sys, time\nfrom dspt.bench.neighbour import busy_neighbour\n"
        "with busy_neighbour() as process:\n    print(process.pid, flush=True)\n    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        spinning = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 600
    while _runs(spinning) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(spinning)


def _runs(process: int) -> bool:
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True).stdout
    return bool(status.strip()) and not status.startswith("Z")  # nobody may be there to bury it


def test_a_ratio_is_to_what_was_measured_around_it():
    assert timing.ratios([3.0, 8.0], [1.0, 2.0, 6.0]) == [2.0, 2.0]


def test_start_up_is_measured(monkeypatch):
    commands, run, seconds = [], startup._seconds, iter([9.0, 0.2, 1.5])

    def timed(*arguments):
        commands.append(arguments[0])
        assert run(*arguments) > 0
        return next(seconds)

    monkeypatch.setattr(startup, "_seconds", timed)
    found = startup.measure(1, QUIET)
    assert commands == ["--help", "--help", "train"]
    for name, expected in (("help", 0.2), ("train", 1.5)):  # the first help is not counted
        for part in ("seconds", "seconds_lowest", "seconds_highest"):
            assert found[f"{name}_{part}"] == expected


def test_the_command_has_every_key_and_draws(tmp_path, monkeypatch):
    fast = {"tower": 20.0, "files": 19.0, "fraction": 0.95, "lowest": 0.9, "highest": 1.0}
    monkeypatch.setattr("dspt.bench.encoding.measure", lambda *_: fast | {"decode_ms": 1.0})
    peak = {"ours_mib": 1.0, "ours_peak_mib": 2.0, "reference_mib": 3.0}
    monkeypatch.setattr("dspt.bench.memory._in_process", lambda *_: peak)
    monkeypatch.setattr("dspt.bench.startup._seconds", lambda *_: 0.2)
    result = CliRunner().invoke(app, ["bench", "--quick", "--json", "-q", "--picture", str(tmp_path / "bench.png")])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    for key in ("10", "100"):
        for part in ("ratio", "gemm_fraction", "feature_diff", "gradient_diff"):
            assert math.isfinite(found["step"][key][part])
    assert found["encode"]["fraction"] == 0.95
    assert found["run"]["ratio"] > 0
    assert found["memory"]["100"]["ours_mib"] == 1.0
    assert found["neighbour"]["ratio"] > 0
    assert (tmp_path / "bench.png").stat().st_size > 5000
    text = "\n".join(summary.lines(found))
    assert "one training step, ViT-B/16's text tower" in text
    assert "0.95" in text
    assert "the same beside a busy program" in text


def test_the_picture_says_what_it_shows(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(summary.plots, "save", lambda figure, path: kept.append(figure))
    one = {"ratio": 29.0, "ratio_lowest": 26.0, "ratio_highest": 33.0}
    one |= {"gemm_fraction": 0.8, "gemm_fraction_lowest": 0.7, "gemm_fraction_highest": 0.93}
    machine = {"processor": "a processor", "torch": "2.0"}
    summary.draw({"step": {"100": one, "196-cars": one}, "threads": 2, "environment": machine}, tmp_path / "bench.png")
    upper, lower = kept[0].axes
    assert "CoOp's way" in upper.get_title()
    assert "matrix products" in lower.get_title()
    assert [label.get_text() for label in lower.get_xticklabels()] == ["100\nCaltech101", "196\nStanfordCars"]
    assert [text.get_text() for text in upper.texts] == ["29", "29"]
    assert [text.get_text() for text in lower.texts] == ["0.80", "0.80"]
    for text in lower.texts:  # at the foot of its bar it can be read, and is far from the dotted line
        assert text.xy[1] == 0
        assert text.get_bbox_patch().get_facecolor() == (1, 1, 1, 1)
    told = kept[0].get_supxlabel().replace("\n", " ")
    assert "medians" in told
    assert "a processor, 2 threads, torch 2.0" in told


@pytest.mark.parametrize("name", ["bench.txt", "bench", "file/bench.png", "file/in/bench.png"])
def test_a_picture_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch, name):
    (tmp_path / "file").touch()
    monkeypatch.setattr("dspt.bench.run_bench", lambda *_: pytest.fail("it went to work"))
    result = CliRunner().invoke(app, ["bench", "--quick", "--picture", str(tmp_path / name)])
    assert isinstance(result.exception, InputError)
    assert str(tmp_path / name) in str(result.exception)


def test_the_figures_are_printed_though_the_picture_fails(tmp_path, monkeypatch):
    def full(result, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dspt.bench.run_bench", lambda *_: {"step": 1})
    monkeypatch.setattr("dspt.bench.summary.draw", full)
    result = CliRunner().invoke(app, ["bench", "--json", "--picture", str(tmp_path / "bench.png")])
    assert json.loads(result.stdout) == {"step": 1}
    assert "No space left" in str(result.exception)


class TestScale:
    def test_a_speed_up_is_over_one_process_and_a_run_costs_what_a_worker_spends_besides(self, monkeypatch, tmp_path):
        """One process takes 2 s to start and 3 s a run; two workers 4 s to start, and 0.5 s more a run of each."""
        monkeypatch.setattr(scale, "find_spec", lambda name: name == "loky")

        def sweep(place, model, seeds, epochs, options):
            return 4 + len(seeds) * 3.5 / 2 if options else 2 + len(seeds) * 3

        monkeypatch.setattr(scale, "_sweep", sweep)
        found = scale._sweeps(tmp_path, "embedded", 2, 8, 1, QUIET)
        assert found["local"]["speedup"] == pytest.approx((2 + 8 * 3) / (4 + 8 * 3.5 / 2))
        assert scale._overheads(tmp_path, 1, 10, QUIET) == pytest.approx({"run": 3, "local": 0.5})

    def test_the_command_is_one_that_users_type(self, tmp_path):
        scale._features(tmp_path / "embedded.npz", 64)
        assert scale._sweep(tmp_path, "embedded", [1], 1, ()) > 0
        assert [path.name for path in tmp_path.iterdir()] == ["embedded.npz"]

    def test_the_posterior_is_measured_against_its_products(self):
        found = posterior.short_posterior(2000)
        assert "workers_speedup" not in found  # they would have nothing to share
        # whatever it does, the features of all samples are multiplied with something for each class
        assert found["gflop"] > 2 * 2000 * posterior.WIDTH * posterior.CLASSES / 1e9
        assert found["share"] > 0
        assert found["noise_rate"] == pytest.approx(0.3, abs=0.05)

    def test_workers_are_measured_beside_one_process(self, monkeypatch):
        monkeypatch.setattr(posterior, "SPREAD", 600)
        asked = []
        monkeypatch.setattr(posterior, "Processes", lambda size: asked.append(size) or Processes(size))
        assert posterior.short_posterior(600)["workers_speedup"] > 0
        assert asked == [posterior.WORKERS]

    def test_it_is_told_in_lines(self, monkeypatch, dspt):
        one = timing.spread("seconds", [10.0, 12.0, 11.0])
        many = one | {"local": timing.spread("speedup", [1.8])}
        told = {
            "sweep": {"embedded": many | {"runs": 8}},
            "overhead": {"run": 0.5, "local": 0.02},
            "encode": many | {"images": 22},
            "posterior": {"10000": {"seconds": 5.0, "mib": 60.0, "share": 0.25, "workers_speedup": 1.25}},
        }
        monkeypatch.setattr(scale, "measure", lambda quick, full, reporter: told)
        code, out, _ = dspt("bench", "--scale")
        assert code == 0
        for part in ("1.80 (1.80 to 1.80) times as fast", "local 20 ms", "2.00 images/s", "500 µs a sample", "25 % of"):
            assert part in out
        assert "2 local workers 1.25 times as fast" in out
        assert json.loads(dspt("bench", "--scale", "--json")[1]) == told
        assert dspt("bench", "--full")[0] == dspt("bench", "--scale", "--picture", "a.png")[0] == 2


@pytest.mark.slow
def test_twenty_one_thousand_classes_train_within_4_gib():
    """ViT-B/16's real size: about six minutes."""
    found = memory.measure([memory.MANY], QUIET, reference=False)
    assert found["21000"]["ours_peak_mib"] < 4096


def test_names_are_as_long_as_those_of_the_datasets():
    """Positions of a step by the protocol: EuroSAT 61, OxfordPets 171, Caltech101 364, StanfordCars 2082."""
    assert [case.classes for case in steps.CASES.values()] == [10, 37, 100, 196, 196, 1000]
    for key, positions in (("10", 61), ("37", 171), ("100", 364), ("196-cars", 2082)):
        assert 1 + 16 + sum(steps.CASES[key].lengths()) == positions
    assert sum(steps.CASES["1000"].lengths()) == 10 * sum(steps.CASES["100"].lengths())


@pytest.mark.parametrize("case", [*steps.CASES.values(), memory.MANY], ids=lambda case: case.key)
def test_no_two_names_begin_alike(case):
    suffixes = steps.random_suffixes(case)
    assert [len(suffix) for suffix in suffixes] == case.lengths()
    assert len({suffix[0] for suffix in suffixes}) == case.classes
    assert all(suffix[-1] == steps.END for suffix in suffixes)
