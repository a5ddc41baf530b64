"""Looking at images ahead of the tower: same pixels from threads and processes, in order, no trace left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import Full, Queue

import numpy as np
import pytest
from PIL import Image

from dspt.backbone.image import Preprocessing
from dspt.features import decoding
from dspt.features.decoding import Decoder, Look, ahead, use_processes
from dspt.internal.errors import InputError


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    rng = np.random.default_rng(0)
    for i in range(21):
        Image.fromarray(rng.integers(0, 256, (20, 24, 3), np.uint8)).save(tmp_path / f"{i:02}.png")
    (tmp_path / "05.png").write_bytes(b"no image")
    return sorted(map(str, tmp_path.iterdir()))


class TestDecoder:
    @pytest.mark.parametrize("crops", [0, 2])
    def test_processes_and_threads_see_the_same_in_the_order_asked_for(self, paths, crops):
        look = Look(Preprocessing(16, 16), crops, seed=3)
        order = list(range(20, -1, -1))
        seen = []
        for processes in (False, True):
            with Decoder(look, workers=2, processes=processes) as decoder:
                seen.append(list(decoder.views(paths, order)))
        assert [one.position for one in seen[0]] == [one.position for one in seen[1]] == order
        for one, other in zip(*seen, strict=True):
            assert one.digest == other.digest
            assert one.fault == other.fault
            np.testing.assert_array_equal(one.pixels, other.pixels)
        assert seen[0][0].pixels.shape == (crops or 1, 16, 16, 3)
        assert [one.position for one in seen[0] if one.fault] == [5]
        assert seen[0][15].fault.name == paths[5]

    def test_workers_do_not_import_torch(self, paths):
        with Decoder(Look(Preprocessing(16, 16)), workers=1, processes=True) as decoder:
            list(decoder.views(paths, range(3)))
            loaded = decoder._pool(True).submit(_modules).result()
        assert "dspt.features.decoding" in loaded
        assert "torch" not in loaded

    def test_a_script_without_a_main_guard_may_use_processes(self, paths, tmp_path):
        script = tmp_path / "script.txt"
        script.write_text(
            "import sys\nfrom dspt.backbone.image import Preprocessing\n"
            "from dspt.features.decoding import Decoder, Look\nprint('begin')\n"
            "with Decoder(Look(Preprocessing(16, 16)), 2, processes=True) as decoder:\n"
            "    print(len(list(decoder.views(sys.argv[1:], range(len(sys.argv) - 1)))))\n"
        )
        done = subprocess.run([sys.executable, str(script), *paths], capture_output=True, text=True, timeout=600)
        assert (done.returncode, done.stdout.split()) == (0, ["begin", "21"]), done.stderr

    def test_a_worker_that_dies_is_one_sentence_with_the_images_it_was_at(self, paths, monkeypatch):
        monkeypatch.setattr(decoding, "_see", _die)
        with (
            pytest.raises(InputError, match=r"died, perhaps at one of .*00\.png to .*07\.png"),
            Decoder(Look(Preprocessing(16, 16)), workers=1, processes=True) as decoder,
        ):
            list(decoder.views(paths, range(21)))

    @pytest.mark.skipif(sys.platform != "linux", reason="reads the process table in /proc")
    def test_no_worker_outlives_a_killed_parent(self, paths, tmp_path):
        code = (
            "import sys\nfrom dspt.backbone.image import Preprocessing\n"
            "from dspt.features.decoding import Decoder, Look\n"
            "with Decoder(Look(Preprocessing(16, 16)), 2, processes=True) as decoder:\n"
            "    list(decoder.views(sys.argv[1:], range(8)))\n"
            "    print('ready', flush=True)\n    sys.stdin.read()\n"
        )
        mark = f"DSPT_TEST_MARK={tmp_path}"
        parent = subprocess.Popen(
            [sys.executable, "-c", code, *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "DSPT_TEST_MARK": str(tmp_path)},
        )
        assert parent.stdout.readline() == b"ready\n"
        assert len(_marked(mark)) >= 3
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        deadline = time.monotonic() + 600
        while _marked(mark) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert _marked(mark) == []

    def test_no_workers_is_refused(self):
        with pytest.raises(InputError, match="workers: expected at least 1, found 0"):
            Decoder(Look(Preprocessing(16, 16)), workers=0)


def test_processes_are_for_many_encoded_images(paths):
    many = paths * 200
    assert use_processes(many)
    assert use_processes([b""] * 5000)
    assert not use_processes(paths)
    assert not use_processes(np.zeros((5000, 2, 2), np.uint8))
    assert not use_processes([Image.new("L", (1, 1))] * 5000)


class TestAhead:
    def test_gives_every_value_in_order(self):
        assert list(ahead(iter(range(100)), 3)) == list(range(100))

    def test_runs_ahead_but_no_further_than_it_may(self, monkeypatch):
        made: list[int] = []
        stuck = threading.Event()

        class Watched(Queue):
            def put(self, *arguments, **options):
                try:
                    super().put(*arguments, **options)
                except Full:
                    if len(made) > 3:  # before the first is given it waits with three
                        stuck.set()
                    raise

        def source():
            for i in range(100):
                made.append(i)
                yield i
            stuck.set()

        monkeypatch.setattr(decoding, "Queue", Watched)
        values = ahead(source(), 2)
        next(values)
        assert stuck.wait(600)
        assert len(made) == 4  # one given, two waiting, one in hand
        values.close()

    def test_an_error_comes_after_the_values_before_it(self):
        def source():
            yield 1
            raise InputError("broken")

        values = ahead(source(), 2)
        assert next(values) == 1
        with pytest.raises(InputError, match="broken"):
            next(values)

    def test_its_thread_ends_when_nobody_waits_any_more(self):
        before = set(threading.enumerate())
        values = ahead(iter(range(1000)), 2)
        next(values)
        values.close()
        assert set(threading.enumerate()) <= before


def _modules() -> list[str]:
    return list(sys.modules)


def _die(*_: object) -> None:
    os._exit(9)


def _marked(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            pass
    return found
