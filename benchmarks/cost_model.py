#!/usr/bin/env python3
"""How allreduce's time grows with the ranks of a host: a model, fitted on some numbers of ranks and tried on another.

    python benchmarks/cost_model.py            # about five minutes; --quick: two

The model (docs/explanation/engine.md, "What a call costs") is a sum of four terms. With p ranks on c processors and s
bytes it counts, for every rank:

    meetings    p - c ranks that wait for a turn of the scheduler (0 where every rank has a processor), once for a call
    lines       p cache lines that every rank reads in a meeting
    waits       the same turns, three times for each chunk of a large message
    bytes       (5 - 2/p) s bytes loaded and stored, on a processor that serves p/c ranks; one price where a call's data
                stay in the caches, another where they do not

The prices are fitted by least squares of the relative errors. Every figure is the median over passes of the medians
that ``npucoll bench`` finds; the passes go through all numbers of ranks in turn, as the machine's speed drifts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Dict, List, Sequence, Tuple

import numpy as np

SIZES = (4, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
LARGE = 8 << 20  # bytes from which the data of a call are taken to come from memory
NAMES = ("meetings", "lines", "waits", "bytes in caches", "bytes in memory")
Times = Dict[Tuple[int, int], float]


def main() -> int:
    """Measure, fit, and print how far the held-out numbers of ranks are from the model; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", default="2,3,4,8", help="numbers of ranks to fit on")
    parser.add_argument("--held-out", default="6", help="numbers of ranks to predict")
    parser.add_argument("--quick", action="store_true", help="one pass instead of three")
    arguments = parser.parse_args()
    fit, held_out = ([int(n) for n in text.split(",")] for text in (arguments.fit, arguments.held_out))
    times = measure(sorted({*fit, *held_out}), 1 if arguments.quick else 3)
    prices = solve({key: value for key, value in times.items() if key[0] in fit})
    print("prices: " + ", ".join(f"{name} {price * 1e9:.3g} ns" for name, price in zip(NAMES, prices)))
    worst = 0.0
    for ranks, size in sorted(times):
        expected = float(np.dot(terms(ranks, size), prices))
        error = expected / times[ranks, size] - 1
        held = ranks in held_out
        worst = max(worst, abs(error)) if held else worst
        measured = f"measured {times[ranks, size] * 1e6:10.1f} µs  model {expected * 1e6:10.1f} µs"
        print(f"{ranks:3} ranks {size:10} B  {measured}  {error:+6.0%}{'  held out' if held else ''}")
    print(f"largest error where held out: {worst:.0%}")
    return 0


def terms(ranks: int, size: int) -> List[float]:
    """Return how much of each term one call has."""
    cores = len(os.sched_getaffinity(0))
    turns = max(0, ranks - cores)
    moved = (5 - 2 / ranks) * size * max(1.0, ranks / cores)
    rounds = -(-size // chunk(ranks)) if size > 65536 // ranks else 0
    large = size >= LARGE
    return [turns, ranks, 3 * rounds * turns, 0 if large else moved, moved if large else 0]


def chunk(ranks: int) -> int:
    """Return the bytes of a chunk, as native/src/area.c chooses them."""
    level2 = os.sysconf("SC_LEVEL2_CACHE_SIZE")
    return max(min(level2 if level2 > 0 else 1 << 20, 4 << 20) // ranks, 65536)


def measure(counts: Sequence[int], passes: int) -> Times:
    """Return the seconds of an allreduce by ranks and bytes."""
    found: Dict[Tuple[int, int], List[float]] = {}
    for _ in range(passes):
        for ranks in counts:
            with tempfile.TemporaryDirectory() as place:
                path = os.path.join(place, "figures.json")
                sizes = ",".join(map(str, SIZES))
                command = [sys.executable, "-m", "npucoll", "bench", "-n", str(ranks), "--plan", "--sizes", sizes]
                subprocess.run([*command, "--json", path], check=True, stdout=subprocess.DEVNULL)
                with open(path, encoding="utf-8") as file:
                    rows = json.load(file)["rows"]
            for row in rows:
                assert row["errors"] == 0
                found.setdefault((ranks, row["size"]), []).append(row["median_us"] * 1e-6)
    return {key: statistics.median(values) for key, values in found.items()}


def solve(times: Times) -> np.ndarray:
    """Return the price of each term, none below 0."""
    rows = np.array([np.array(terms(*key)) / value for key, value in times.items()])
    used = list(range(rows.shape[1]))
    while True:
        solution = np.linalg.lstsq(rows[:, used], np.ones(len(rows)), rcond=None)[0]
        if (solution >= 0).all():
            break
        used.pop(int(solution.argmin()))
    prices = np.zeros(rows.shape[1])
    prices[used] = solution
    return prices


if __name__ == "__main__":
    sys.exit(main())
