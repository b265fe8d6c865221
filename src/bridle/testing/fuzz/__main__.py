"""Never a server error, never a hang, never a traceback on the wire.

    python -m bridle.testing.fuzz --inputs 100000 --workers 2 --seed 1 --out build/fuzz.json

One in four inputs goes over a socket to a real gateway, the others to the protocol's parser alone. A failing input is
kept below the report's folder with what was wrong; `--only N` with the same seed repeats it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bridle.testing.fuzz.run import Found, Plan, share


def main() -> int:
    options = _options()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.only is not None:
        found = share(Plan(options.seed, range(options.only, options.only + 1), extremes=False))
    else:
        found = _all(options)
    return _report(found, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bridle.testing.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="the number of the one input to repeat")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz.json"))
    return parser.parse_args()


def _all(options: argparse.Namespace) -> Found:
    """Numbers are dealt out in turn, so that a number means the same input whatever the workers."""
    plans = [
        Plan(options.seed, range(first, options.inputs, options.workers), extremes=first == 0)
        for first in range(options.workers)
    ]
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as pool:
        return sum(pool.map(share, plans), Found())


def _report(found: Found, options: argparse.Namespace) -> int:
    for failure in found.failures:
        place = options.out.parent / "fuzz" / f"{failure.number}.http"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(failure.input)
        print(f"{failure.protocol} input {failure.number}: {failure.what}\n  kept in {place}")
    hangs = sum(failure.hang for failure in found.failures)
    errors = len(found.failures) - hangs
    document = {
        "seed": options.seed,
        "inputs": found.inputs,
        "over_http": found.over_http,
        "server_errors": errors,
        "hangs": hangs,
        "statuses": dict(sorted(Counter(found.statuses).items())),
        "failures": [
            {"number": failure.number, "protocol": failure.protocol, "what": failure.what} for failure in found.failures
        ],
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"fuzz: {found.inputs} inputs, {errors} server errors, {hangs} hangs")
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
