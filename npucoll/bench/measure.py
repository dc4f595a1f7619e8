"""Measures collectives on this rank.

For every collective, dtype and size, a number of times, in turn:

1. The inputs get fresh data and the outputs are spoilt. All ranks meet at a barrier.
2. The calls are timed: one, or several on buffers of their own where one is so short that reading the clock would be a
   part of the figure.
3. The results are compared with the oracle.
4. After another barrier each rank copies as many bytes with memcpy, timed in the same way: what this machine could do
   at that moment.

At the end the ranks exchange their times; the time of an iteration is that of its slowest rank.
"""

from __future__ import annotations

import functools
import gc
import statistics
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np

from npucoll.bench.cases import Case, Maker, bound
from npucoll.bench.data import numpy_dtype
from npucoll.bench.kinds import ITEM_SIZES, KINDS
from npucoll.bench.options import Options
from npucoll.communicators import Communicator

__all__ = ["Row", "calls_in_a_sample", "figures", "measure"]

_SMALL = 16 << 10
_MOST_CALLS = 32
_LATE_SECONDS = 0.0003


@dataclass(frozen=True)
class Row:
    """What was measured for one collective, dtype and size. Times in µs for one call, bandwidths in GB/s (10⁹ B)."""

    collective: str
    size: int
    count: int
    dtype: Optional[str]
    op: Optional[str]
    root: Optional[int]
    calls_per_sample: int
    median_us: float
    min_us: float
    algbw: Optional[float]
    busbw: Optional[float]
    memcpy_us: Optional[float]
    memcpy_share: Optional[float]
    errors: int


def measure(comm: Communicator, options: Options, tell: Callable[[Row], bool]) -> List[Row]:
    """Measure all that is asked for; every rank calls it and gets the same rows.

    ``tell`` is told about each row at once; where it returns False on rank 0, all ranks stop.
    """
    rows: List[Row] = []
    # A collection of garbage in the middle of a call would be a part of its time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        for row in _rows(comm, options):
            rows.append(row)
            go_on = np.array([tell(row)])
            if not comm.broadcast(go_on, 0)[0]:
                break
            gc.collect()
    finally:
        if collecting:
            gc.enable()
    return rows


def calls_in_a_sample(size: int) -> int:
    """Return how many calls are timed together: several below 16 KiB, such that their inputs are at most 64 KiB."""
    return max(1, min(_MOST_CALLS, 4 * _SMALL // max(size, 1))) if size < _SMALL else 1


def figures(collective: str, ranks: int, size: int, seconds: float) -> Dict[str, Optional[float]]:
    """Return the bandwidths of nccl-tests for ``size`` bytes in ``seconds``; None where no data move."""
    if not size:
        return {"algbw": None, "busbw": None}
    algbw = size / seconds / 1e9
    return {"algbw": algbw, "busbw": algbw * KINDS[collective].factor(ranks)}


def _rows(comm: Communicator, options: Options) -> Iterator[Row]:
    for collective in options.collectives:
        kind = KINDS[collective]
        if collective == "barrier":
            yield _barrier(comm, options)
            continue
        op, root = options.op if kind.reduces else None, options.root if kind.rooted else None
        for dtype in options.dtypes:
            item_size = ITEM_SIZES[dtype]
            maker = Maker(comm, collective, numpy_dtype(dtype), op, options.root)
            for size in dict.fromkeys(kind.fit(size, item_size, comm.size) for size in options.sizes):
                count, calls = size // item_size, calls_in_a_sample(size)
                # Not kept in a name, so that the next size has the memory.
                samples = _sample(
                    comm,
                    options,
                    [maker.make(count, options.in_place, options.plan) for _ in range(calls)],
                    [_Copy(size) for _ in range(calls)],
                )
                yield _row(comm, collective, size, count, dtype, op, root, samples)


class _Samples(NamedTuple):
    """Seconds of each timed iteration on this rank, and wrong elements in all iterations."""

    calls: int
    seconds: List[float]
    copy_seconds: List[float]
    errors: int


class _Copy:
    """A memcpy of as many bytes as the collective's size."""

    def __init__(self, size: int) -> None:
        self._source, self._target = np.empty(size, np.uint8), np.empty(size, np.uint8)
        self.call: Callable[[], Any] = functools.partial(np.copyto, self._target, self._source)

    def prepare(self, number: int) -> None:
        """Write both buffers, as those of the collective are written."""
        self._source.fill(number & 0xFF)
        self._target.fill(~number & 0xFF)


def _sample(comm: Communicator, options: Options, cases: Sequence[Case], copies: Sequence[_Copy]) -> _Samples:
    calls, copy_calls = [case.call for case in cases], [copy.call for copy in copies]
    seconds, copy_seconds, errors = [], [], 0
    for number in range(options.warmup + options.iterations):
        for i, case in enumerate(cases):
            case.prepare(number * len(cases) + i)
        time_of_calls = _timed(comm, calls)
        errors += sum(case.wrong_elements() for case in cases)
        for copy in copies:
            copy.prepare(number)
        time_of_copies = _timed(comm, copy_calls) if copies else 0.0
        if number >= options.warmup:
            seconds.append(time_of_calls)
            copy_seconds.append(time_of_copies)
    return _Samples(len(cases), seconds, copy_seconds, errors)


def _timed(comm: Communicator, calls: Sequence[Callable[[], Any]]) -> float:
    comm.barrier()
    start = time.perf_counter()
    for call in calls:
        call()
    return time.perf_counter() - start


def _row(
    comm: Communicator,
    collective: str,
    size: int,
    count: int,
    dtype: Optional[str],
    op: Optional[str],
    root: Optional[int],
    samples: _Samples,
) -> Row:
    slowest = _slowest(comm, samples.seconds)
    median = statistics.median(slowest) / samples.calls
    copy = statistics.median(_slowest(comm, samples.copy_seconds)) / samples.calls if size else None
    return Row(
        collective=collective,
        size=size,
        count=count,
        dtype=dtype,
        op=op,
        root=root,
        calls_per_sample=samples.calls,
        median_us=median * 1e6,
        min_us=min(slowest) / samples.calls * 1e6,
        memcpy_us=None if copy is None else copy * 1e6,
        memcpy_share=None if copy is None else copy / median,
        errors=int(comm.allreduce(np.array([samples.errors], np.int64))[0]),
        **figures(collective, comm.size, size, median),
    )


def _slowest(comm: Communicator, seconds: Sequence[float]) -> List[float]:
    return comm.allgather(np.array([seconds])).max(axis=0).tolist()


def _barrier(comm: Communicator, options: Options) -> Row:
    barrier = bound(comm, "barrier", options.plan)
    cases = [Case(barrier) for _ in range(_MOST_CALLS)]
    samples = _sample(comm, options, cases, [])
    samples = samples._replace(errors=_early(comm, barrier, options.iterations))
    return _row(comm, "barrier", 0, 0, None, None, None, samples)


def _early(comm: Communicator, barrier: Callable[[], Any], iterations: int) -> int:
    """Return how often this rank left a barrier before the last rank, made late on purpose, had come."""
    if comm.local_size != comm.size:
        return 0  # The clocks of several hosts tell nothing about each other.
    came, left = [], []
    for number in range(iterations):
        comm.barrier()
        if comm.rank == number % comm.size:
            time.sleep(_LATE_SECONDS)
        came.append(time.perf_counter())
        barrier()
        left.append(time.perf_counter())
    last = comm.allgather(np.array([came])).max(axis=0)
    return int(np.count_nonzero(np.array(left) < last))
