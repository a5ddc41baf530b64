"""How the posterior's cost grows: `python scripts/posterior_scale.py 10000 100000 1000000`, `--text` for logits.

One line of JSON for each number of samples, as `dspt bench --scale` measures it (src/dspt/bench/posterior.py).
"""

from __future__ import annotations

import argparse
import json

from dspt.bench import posterior
from dspt.internal.progress import Reporter

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=int, nargs="+")
    parser.add_argument("--text", action="store_true")
    asked = parser.parse_args()
    for samples in asked.samples:
        (found,) = posterior.measure([samples], Reporter(silent=True), asked.text).values()
        print(json.dumps({"samples": samples, **{name: round(value, 4) for name, value in found.items()}}), flush=True)
