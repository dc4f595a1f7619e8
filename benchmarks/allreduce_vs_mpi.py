"""Allreduce of float32 sums: npucoll and MPI, in the same two processes, in turn.

    pip install mpich mpi4py          # or any other MPI
    python benchmarks/allreduce_vs_mpi.py

For every size each library reduces the same fresh data into a given output, the two in turn, so that both meet the same
state of the machine; every result is checked. A round's time is that of the slower rank. Printed are medians in
microseconds, their ratio, and the time of a plain memcpy of the same size made by both ranks at once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

SIZES = [4, 64, 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26]


def start_ranks(arguments: argparse.Namespace) -> int:
    """Run this script again on two ranks, under the mpiexec beside this Python or on the PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    mpiexec = beside if os.path.exists(beside) else shutil.which("mpiexec")
    if mpiexec is None:
        print("no mpiexec found: pip install mpich mpi4py", file=sys.stderr)
        return 2
    command = [mpiexec, "-n", str(arguments.ranks), sys.executable, os.path.abspath(__file__), "--rank"]
    return subprocess.call(command + (["--json", arguments.json] if arguments.json else []))


def measure(arguments: argparse.Namespace) -> None:
    """Be one rank."""
    import numpy as np
    from mpi4py import MPI

    import npucoll

    world, comm = MPI.COMM_WORLD, npucoll.init()
    assert (world.rank, world.size) == (comm.rank, comm.size), "MPI and npucoll disagree about who this process is"
    random = np.random.RandomState(comm.rank)
    rows = []
    for nbytes in SIZES:
        count = nbytes // 4
        x, out, copy = np.empty(count, np.float32), np.empty(count, np.float32), np.empty(count, np.float32)
        rounds = max(11, min(400, (1 << 28) // max(nbytes, 1 << 16)))
        contenders = {
            "npucoll": lambda x=x, out=out: comm.allreduce(x, out=out),
            "mpi": lambda x=x, out=out: world.Allreduce(x, out, op=MPI.SUM),
            "memcpy": lambda x=x, copy=copy: np.copyto(copy, x),
        }
        times = {name: [] for name in contenders}
        noise = random.uniform(-1, 1, size=min(count, 1024)).astype(np.float32)
        for number in range(rounds + 2):
            for name, run in contenders.items():
                x[...] = comm.rank + number % 7
                x[: noise.size] += noise
                out[...] = np.nan
                world.Barrier()
                start = time.perf_counter()
                run()
                seconds = time.perf_counter() - start
                slowest = world.allreduce(seconds, op=MPI.MAX)
                if number >= 2:
                    times[name].append(slowest)
                if name != "memcpy":
                    expected = sum(range(comm.size)) + comm.size * (number % 7)
                    assert (out[noise.size :] == expected).all(), f"{name} gave a wrong sum"
                    total = world.allreduce(noise.astype(np.float64), op=MPI.SUM) if number < 2 else None
                    if total is not None:
                        np.testing.assert_allclose(out[: noise.size], total + expected, rtol=1e-5, atol=1e-5)
        rows.append({"bytes": nbytes, **{name: statistics.median(t) * 1e6 for name, t in times.items()}})
        if comm.rank == 0:
            row = rows[-1]
            print(
                f"{nbytes:>10} B   npucoll {row['npucoll']:>10.1f} µs   MPI {row['mpi']:>10.1f} µs   "
                f"MPI / npucoll {row['mpi'] / row['npucoll']:>5.2f}   memcpy {row['memcpy']:>9.1f} µs",
                flush=True,
            )
    if comm.rank == 0 and arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"mpi": MPI.Get_library_version().split("\n")[0], "rows": rows}, file, indent=1)


def main() -> int:
    """Start the ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int, default=2, help="number of processes (default 2)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to FILE")
    arguments = parser.parse_args()
    if not arguments.rank:
        return start_ranks(arguments)
    measure(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
