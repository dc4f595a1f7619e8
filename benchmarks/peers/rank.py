"""Measures in one rank: npucoll, a peer and a plain memcpy, in the same processes, in turn.

In every round each contender has a turn; who is first moves on from round to round. A turn:

1. The input gets fresh data, the output is spoilt, all ranks meet: at the contender's own barrier, then at npucoll's.
2. One call is timed, or a batch of calls on the same buffers where a call is short.
3. The contender's barrier lets it finish what it may have left to do, and the result is compared with NumPy's.

A round's time is that of the slowest rank; a figure is the median over the rounds.
"""

from __future__ import annotations

import functools
import gc
import json
import math
import os
import statistics
import time
from itertools import repeat
from typing import Any, Callable, NamedTuple

import numpy as np

from npucoll.bench.data import Block, Blocks, Expected, numpy_dtype, poison, reduction, shift, wrong_elements
from npucoll.bench.kinds import KINDS
from peers.adapter import Adapter, Bound, into
from peers.catalogue import PEERS
from peers.options import DTYPE_SIZE, DTYPES, Job
from peers.ours import Npucoll

__all__ = ["be_rank"]

_WARMUP = 2
_ROUNDS = (5, 400)
_BATCH_SECONDS = 0.02
# Batches of sums in place stay below 2**100, which float32 holds.
_LARGEST_GROWTH = 100


class _Oracle:
    """The data of all ranks for one dtype, and what each collective must make of them."""

    def __init__(self, ours: Npucoll, dtype: str) -> None:
        self.dtype = numpy_dtype(dtype)
        self.rank, self.size = ours.rank, ours.size
        self._blocks = Blocks(self.dtype, "sum", self.size)
        self._reduced = reduction(self._blocks, ours.comm.engine.capabilities.wide_half)

    def fill(self, x: np.ndarray, start: int) -> None:
        """Write this rank's data."""
        self._blocks.of(self.rank).fill(x, start)

    def wrong(self, collective: str, found: np.ndarray, start: int) -> int:
        """Return how many elements of a result are wrong."""
        part = found.size // self.size
        if collective == "allreduce":
            return wrong_elements(found, self._reduced, start)
        if collective == "reduce_scatter":
            return wrong_elements(found, self._reduced, start + self.rank * found.size)
        if collective == "broadcast":
            return wrong_elements(found, self._moved(0), start)
        first = start if collective == "allgather" else start + self.rank * part
        return sum(wrong_elements(piece, self._moved(r), first) for r, piece in enumerate(np.split(found, self.size)))

    def _moved(self, rank: int) -> Expected:
        block: Block = self._blocks.of(rank)
        return Expected(block)


class _Contender(NamedTuple):
    """Something that is measured: its name, its call, its input and output, and how its ranks meet."""

    name: str
    bound: Bound
    x: np.ndarray
    out: np.ndarray | None
    settle: Callable[[], None] | None
    oracle: _Oracle
    collective: str  # empty: a copy, whose result nobody looks at


class _Bench:
    """Measures contenders against each other."""

    def __init__(self, job: Job, ours: Npucoll) -> None:
        self._job, self._ours = job, ours
        self._calls = 0

    def measure(self, contenders: list[_Contender], size: int) -> dict[str, Any]:
        """Return each contender's figures, and the number of wrong elements on all ranks."""
        started, errors, resting = time.perf_counter(), 0, set()
        batches = [1] * len(contenders)
        times: list[list[float]] = [[] for _ in contenders]
        for number in range(_WARMUP + _ROUNDS[1]):
            found = np.zeros(len(contenders) + 1)
            for place in range(len(contenders)):
                i = (place + number) % len(contenders)
                if i not in resting:
                    seconds, wrong = self._turn(contenders[i], batches[i])
                    found[i], errors = seconds / batches[i], errors + wrong
            found[-1] = time.perf_counter() - started
            slowest = self._ours.comm.allreduce(found, "max")
            if number == 0:
                batches = [self._batch(one, size, seconds) for one, seconds in zip(contenders, slowest)]
            if number < _WARMUP:
                continue
            for i, one in enumerate(times):
                if i not in resting:
                    one.append(float(slowest[i]))
                    if len(one) >= _ROUNDS[0] and sum(one) * batches[i] > self._job.seconds / 3:
                        resting.add(i)
            if number + 1 >= _WARMUP + _ROUNDS[0] and slowest[-1] > self._job.seconds:
                break
        return {
            "size": size,
            "errors": int(self._ours.comm.allreduce(np.array([errors]))[0]),
            "figures": {
                one.name: {"us": statistics.median(found) * 1e6, "rounds": len(found), "batch": batch}
                for one, found, batch in zip(contenders, times, batches)
            },
        }

    def _turn(self, one: _Contender, batch: int) -> tuple[float, int]:
        self._calls += 1
        start = shift(self._calls)
        if one.out is not None:
            poison(one.out, self._calls)
        one.oracle.fill(one.x, start)
        if one.settle is not None:
            one.settle()
        call = one.bound.call
        self._ours.settle()
        began = time.perf_counter()
        for _ in repeat(None, batch):
            returned = call()
        seconds = time.perf_counter() - began
        if one.settle is not None:
            one.settle()
        if not one.collective:
            return seconds, 0
        found = one.bound.result(returned)
        if one.bound.grows:
            found = found / np.float32(one.oracle.size ** (batch - 1))
        return seconds, one.oracle.wrong(one.collective, found, start)

    def _batch(self, one: _Contender, size: int, seconds: float) -> int:
        """Return how many calls make a batch: fewer for larger sizes, and for calls that turned out to be slow."""
        most = 32 if size <= 4 << 10 else max(1, (512 << 10) // size)
        if one.bound.grows:
            most = min(most, int(_LARGEST_GROWTH / max(1.0, math.log2(one.oracle.size))))
        return max(1, min(most, int(_BATCH_SECONDS / seconds)))


def be_rank(text: str) -> None:
    """Measure the job and write the rows, on rank 0."""
    job = Job.load(text)
    peer = PEERS[job.peer].adapter(job.variant) if job.peer else None
    # The peer first: mpi4py has a say in how MPI starts.
    if peer is not None:
        peer.setup(job)
    ours = Npucoll()
    ours.setup(job)
    if peer is not None and (peer.rank, peer.size) != (ours.rank, ours.size):
        raise SystemExit(
            f"{job.peer} says rank {peer.rank} of {peer.size}, npucoll says rank {ours.rank} of {ours.size}"
        )
    gc.disable()
    with open(job.path if ours.rank == 0 else os.devnull, "a", encoding="utf-8") as file:

        def tell(row: dict[str, Any]) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        if peer is None:
            tell({"versions": [ours.version()]})
            _measure_dtypes(job, ours, tell)
        else:
            tell({"versions": [ours.version(), peer.version()]})
            _measure_collectives(job, ours, peer, tell)
    ours.close()
    if peer is not None:
        peer.close()


def _measure_collectives(job: Job, ours: Npucoll, peer: Adapter, tell: Callable[[dict[str, Any]], None]) -> None:
    bench, oracle = _Bench(job, ours), _Oracle(ours, "float32")
    for collective, sizes in job.work.items():
        slow: set[str] = set()
        for wanted in sizes:
            size = KINDS[collective].fit(wanted, 4, ours.size)
            contenders = [one for one in _contenders(ours, peer, oracle, collective, size) if one.name not in slow]
            row = bench.measure(contenders, size)
            slow |= {name for name, figure in row["figures"].items() if figure["us"] > job.patience * 1e6}
            tell({"collective": collective, "wanted": wanted, **row})
            gc.collect()


def _contenders(ours: Npucoll, peer: Adapter, oracle: _Oracle, collective: str, size: int) -> list[_Contender]:
    count = size // 4
    given = count // ours.size if collective == "allgather" else count
    got = count // ours.size if collective == "reduce_scatter" else count
    x, out = np.empty(given, np.float32), np.empty(got, np.float32)
    buffers = (x,) if collective == "broadcast" else (x, out)
    spoilt = None if collective == "broadcast" else out
    bound = getattr(ours, collective)(*buffers)
    found = [_Contender("npucoll", bound, x, spoilt, None, oracle, collective)]
    if collective == "allreduce":
        lent = ours.comm.empty(count)
        found += [
            _Contender("plan", ours.allreduce_plan(x, out), x, out, None, oracle, collective),
            _Contender("shared", ours.allreduce_shared(lent), lent, None, None, oracle, collective),
        ]
    bound = getattr(peer, collective)(*buffers)
    if bound is not None:
        found.append(_Contender("peer", bound, x, spoilt, peer.settle, oracle, collective))
    bound = peer.allreduce_prepared(x, out) if collective == "allreduce" else None
    if bound is not None:
        found.append(_Contender("prepared", bound, x, out, peer.settle, oracle, collective))
    source, copy = np.empty(count, np.float32), np.empty(count, np.float32)
    bound = into(copy, functools.partial(np.copyto, copy, source))
    return [*found, _Contender("memcpy", bound, source, copy, None, oracle, "")]


def _measure_dtypes(job: Job, ours: Npucoll, tell: Callable[[dict[str, Any]], None]) -> None:
    contenders = []
    for dtype in DTYPES:
        oracle = _Oracle(ours, dtype)
        x, out = (np.empty(DTYPE_SIZE // oracle.dtype.itemsize, oracle.dtype) for _ in range(2))
        contenders.append(_Contender(dtype, ours.allreduce(x, out), x, out, None, oracle, "allreduce"))
    tell({"collective": "dtypes", "wanted": DTYPE_SIZE, **_Bench(job, ours).measure(contenders, DTYPE_SIZE)})
