"""Many runs and many images: what a second worker gains, and what an engine costs, by the commands that users type.

Each engine is measured between two measurements of one process with all threads, since a machine's speed drifts. An
engine that is not installed is left out.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from dspt.bench import posterior
from dspt.bench.encoding import photographs
from dspt.bench.epochs import CLASSES
from dspt.bench.timing import ratios, seconds, spread
from dspt.internal.progress import Reporter
from dspt.internal.seeds import Stream

WORKERS = posterior.WORKERS

# The options of each engine, and what it needs.
ENGINES = {
    "local": (("--jobs", str(WORKERS)), ("loky",)),
    "ray": (("--engine", "ray", "--jobs", str(WORKERS)), ("ray",)),
}

# Sweeps whose runs compute with one thread in any case, and with as many as there are.
SWEEPS = {"embedded": "the embedded text tower", "vit-b-16": "ViT-B/16's text tower"}

TRAIN, TEST = 512, 256

# Work with the options of an engine; its seconds.
_Work = Callable[[Sequence[str]], float]


def measure(quick: bool, full: bool, reporter: Reporter) -> dict[str, Any]:
    """Return the figures by part; `in_words` puts them in words.

    Parameters
    ----------
    quick : bool
        Less of everything, in a few minutes.
    full : bool
        The posterior of a million samples, too.
    reporter : Reporter
        Shows how far the work is.
    """
    sizes = [10**3, 10**4] if quick else [10**4, 10**5, *([10**6] if full else [])]
    found: dict[str, Any] = {"posterior": posterior.measure(sizes, reporter)}
    with _prepared(16 if quick else 96) as place:
        rounds, runs, epochs = (1, 2, 2) if quick else (3, 8, 20)
        found["sweep"] = {model: _sweeps(place, model, rounds, runs, epochs, reporter) for model in SWEEPS}
        found["overhead"] = _overheads(place, 1 if quick else 3, 4 if quick else 24, reporter)
        found["encode"] = _encoding(place, rounds, reporter)
    return found


def in_words(found: dict[str, Any]) -> list[str]:
    """Return the figures as lines."""
    shown = [f"a sweep, {WORKERS} workers against one process with all threads"]
    for model, one in found["sweep"].items():
        shown.append(f"  {one['runs']} runs with {SWEEPS[model]}  {_of(one, 'seconds', '.1f')} s in one process")
        shown += _speedups(one)
    costs = ", ".join(
        f"{name} {1000 * found['overhead'][name]:.0f} ms" for name in ENGINES if name in found["overhead"]
    )
    shown += ["", f"what a run costs a worker beyond its {found['overhead']['run']:.2f} s of work", f"  {costs}"]
    one = found["encode"]
    shown += ["", f"encoding {one['images']} photographs with ViT-B/16"]
    shown += [f"  {one['images'] / one['seconds']:.2f} images/s in one process", *_speedups(one)]
    shown += ["", f"the posterior of labels, {posterior.WIDTH} features, {posterior.CLASSES} classes"]
    for n, one in found["posterior"].items():
        shown.append(
            f"  {int(n):>9,} samples {one['seconds']:8.1f} s, {1e6 * one['seconds'] / int(n):6.0f} µs a sample, "
            f"{one['mib']:6.0f} MiB, {100 * one['share']:3.0f} % of it matrix products"
        )
        if "workers_speedup" in one:
            shown.append(f"    {posterior.WORKERS} local workers {one['workers_speedup']:.2f} times as fast")
    return shown


def _speedups(one: dict[str, Any]) -> list[str]:
    return [f"    {name:<6} {_of(one[name], 'speedup')} times as fast" for name in ENGINES if name in one]


def _of(one: dict[str, float], key: str, form: str = ".2f") -> str:
    return f"{one[key]:{form}} ({one[f'{key}_lowest']:{form}} to {one[f'{key}_highest']:{form}})"


def _sweeps(place: Path, model: str, rounds: int, runs: int, epochs: int, reporter: Reporter) -> dict[str, Any]:
    """Return seconds of a sweep in one process, and how many times as fast each engine is."""
    if model != "embedded":
        epochs = max(1, epochs // 10)  # each takes longer
    found = _in_turn(
        f"sweep with {SWEEPS[model]}",
        lambda options: _sweep(place, model, range(1, runs + 1), epochs, options),
        rounds,
        reporter,
    )
    return {"runs": runs, **found}


def _sweep(place: Path, model: str, seeds: Sequence[int], epochs: int, options: Sequence[str]) -> float:
    """Return the seconds of a sweep with a run for each seed."""
    out = place / f"runs-{next(_numbers)}"
    words = ["--data", str(place / f"{model}.npz"), "--model", _model(place, model), "--epochs", str(epochs)]
    words += ["--seeds", ",".join(map(str, seeds)), "--only", "method=coop,noise=sym:0.4", "--runs", str(out)]
    spent = _timed("reproduce", "main", *words, *options, "-q")
    shutil.rmtree(out)
    return spent


def _overheads(place: Path, rounds: int, runs: int, reporter: Reporter) -> dict[str, float]:
    """Return by engine the seconds that a run costs besides its own work: of a worker, beyond that of one process.

    From sweeps of few and of many runs of one epoch: what they have in common is the start of processes.
    """
    few = 2 * WORKERS

    def one(options: Sequence[str]) -> float:
        short = _sweep(place, "embedded", range(1, few + 1), 1, options)
        return (_sweep(place, "embedded", range(1, few + runs + 1), 1, options) - short) / runs

    found: dict[str, list[float]] = {"one": [], **{name: [] for name in _engines()}}
    with reporter.task("overhead of a run", rounds * len(found)) as update:
        for number in range(rounds):
            for turn, name in enumerate(found):
                found[name].append(one(ENGINES[name][0] if name != "one" else ()))
                update(number * len(found) + turn + 1, "")
    alone = statistics.median(found.pop("one"))
    return {"run": alone, **{name: WORKERS * statistics.median(each) - alone for name, each in found.items()}}


def _encoding(place: Path, rounds: int, reporter: Reporter) -> dict[str, Any]:
    """Return images/s of one process, and how many times as fast each engine is."""

    def one(options: Sequence[str]) -> float:
        cache = place / f"cache-{next(_numbers)}"
        words = [str(place / "photos"), "--model", _model(place, "vit-b-16"), "--json", "-q"]
        told = _run("encode", *words, *options, cache=cache)
        shutil.rmtree(cache)
        return float(json.loads(told)["seconds"])

    images = sum(1 for _ in (place / "photos").rglob("*.jpg"))
    found = _in_turn("encoding", one, rounds, reporter)
    return {"images": images, **found}


def _in_turn(title: str, one: _Work, rounds: int, reporter: Reporter) -> dict[str, Any]:
    """Return the seconds of one process, and the speed-up of each engine, measured between two of one process."""
    engines, every = _engines(), list[float]()
    found: dict[str, Any] = {}
    with reporter.task(title, rounds * len(engines)) as update:
        for place, name in enumerate(engines):
            alone, beside = [one(())], list[float]()
            for number in range(rounds):
                beside.append(one(ENGINES[name][0]))
                alone.append(one(()))
                update(place * rounds + number + 1, "")
            found[name] = spread("speedup", [1 / ratio for ratio in ratios(beside, alone)]) | spread("seconds", beside)
            every += alone
    return spread("seconds", every) | found


def _engines() -> list[str]:
    return [name for name, (_, needs) in ENGINES.items() if all(map(find_spec, needs))]


_numbers = count()


@contextmanager
def _prepared(images: int) -> Iterator[Path]:
    """Yield a folder with what the commands read: features, photographs, and a checkpoint of ViT-B/16's size."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _checkpoint(place / "vit-b-16")
        for model, width in (("embedded", 64), ("vit-b-16", 512)):
            _features(place / f"{model}.npz", width)
        for name, part in (("one", images // 2), ("two", images - images // 2)):
            (place / "photos" / name).mkdir(parents=True)
            photographs(place / "photos" / name, part, first=0 if name == "one" else images)
        yield place


def _features(path: Path, width: int) -> None:
    x = Stream(0, "bench", "features").normal(TRAIN + TEST, width).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.arange(TRAIN + TEST) % len(CLASSES)
    train, test = slice(TRAIN), slice(TRAIN, None)
    names = np.array(CLASSES)
    np.savez(path, train_x=x[train], train_y=y[train], test_x=x[test], test_y=y[test], classnames=names)


def _checkpoint(folder: Path) -> None:
    """Write a CLIP of ViT-B/16's size with random weights, which cost the same, and the embedded tokenizer."""
    from transformers import CLIPConfig, CLIPModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    own = resources.files("dspt") / "assets" / "model"
    folder.mkdir()
    for name in ("merges.txt", "vocab.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((own / name).read_bytes())
    seen = json.loads((own / "preprocessor_config.json").read_text(encoding="utf-8"))
    seen |= {"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}}
    (folder / "preprocessor_config.json").write_text(json.dumps(seen), encoding="utf-8")
    told = json.loads((own / "config.json").read_text(encoding="utf-8"))["text_config"]
    text = {name: told[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id") if name in told}
    vision = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "patch_size": 16}
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=512)).save_pretrained(folder)


def _model(place: Path, name: str) -> str:
    return name if name == "embedded" else str(place / name)


def _timed(*words: str) -> float:
    return seconds(lambda: _run(*words))


def _run(*words: str, cache: Path | None = None) -> str:
    """Return what a command prints on standard output."""
    environment = os.environ | ({"DSPT_CACHE": str(cache)} if cache else {})
    command = [sys.executable, "-m", "dspt", *words]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
