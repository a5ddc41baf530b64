"""Time and memory of opening large sources: run `python scripts/listing_scale.py [N ...]`.

Prints, for a manifest of N rows and a folder of N files in N/200 classes, the seconds and the MiB by
which the process grows. Each is measured in a process of its own. The files are links to one image.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CODE = """
import json, sys, time
from dspt.data import open_dataset
def rss():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
before, start = rss(), time.perf_counter()
dataset = open_dataset(sys.argv[1])
print(json.dumps({"images": len(dataset.train.labels) + len(dataset.test.labels),
                  "seconds": round(time.perf_counter() - start, 1), "MiB": round(rss() - before)}))
"""


def manifest(folder: Path, n: int) -> Path:
    """Write a manifest of n rows and n/200 classes; its images need not be there to be listed."""
    with open(folder / "m.csv", "w") as file:
        file.write("path,label\n")
        file.writelines(f"images/{i // 200:06}/{i:09}.jpg,class {i // 200}\n" for i in range(n))
    return folder / "m.csv"


def links(folder: Path, n: int) -> Path:
    """Write n links to one file, in n/200 class folders."""
    for i in range(n):
        place = folder / "photos" / f"class {i // 200}"
        if i % 200 == 0:
            place.mkdir(parents=True)
        if i % 30000 == 0:  # file systems allow so many links to one file, and not many more
            one = folder / f"{i}.jpg"
            one.touch()
        os.link(one, place / f"{i:09}.jpg")
    return folder / "photos"


for n in map(int, sys.argv[1:] or ["100000", "1000000"]):
    for make in (manifest, links):
        with tempfile.TemporaryDirectory() as folder:
            source = make(Path(folder), n)
            found = subprocess.run(
                [sys.executable, "-c", CODE, str(source)],
                capture_output=True,
                text=True,
                check=True,
            )
        print(f"{make.__name__:9} {json.loads(found.stdout)}", flush=True)
