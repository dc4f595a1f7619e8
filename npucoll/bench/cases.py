"""One call of each collective on buffers of its own: how it is called, what it is given, what it must give."""

from __future__ import annotations

import functools
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import numpy as np

from npucoll.bench.data import Block, Blocks, Expected, poison, reduction, shift, wrong_elements
from npucoll.communicators import Communicator
from npucoll.plans import call

__all__ = ["Case", "Maker", "bound"]

# A part of the result, what must be in it, and where in the blocks it starts.
Part = Tuple[np.ndarray, Expected, int]


class Case:
    """One call, and the buffers that it reads and writes."""

    def __init__(
        self,
        call: Callable[[], Any],
        given: Optional[np.ndarray] = None,
        block: Optional[Block] = None,
        out: Optional[np.ndarray] = None,
        parts: Tuple[Part, ...] = (),
    ) -> None:
        self.call = call
        self._given = given
        self._block = block
        self._out = out
        self._parts = parts
        self._shift = 0

    def prepare(self, number: int) -> None:
        """Fill the input with the data of call ``number``, and spoil the output."""
        self._shift = shift(number)
        if self._out is not None:
            poison(self._out, number)
        if self._given is not None and self._block is not None:
            self._block.fill(self._given, self._shift)

    def wrong_elements(self) -> int:
        """Return how many elements of the result are wrong."""
        return sum(wrong_elements(found, expected, start + self._shift) for found, expected, start in self._parts)


class _Shape(NamedTuple):
    """How many elements this rank gives and gets; None: no buffer."""

    given: Optional[int]
    got: Optional[int]


class Maker:
    """Makes the cases of one collective, dtype and reduction on this rank; the oracle is made once for all sizes."""

    def __init__(self, comm: Communicator, kind: str, dtype: np.dtype, op: Optional[str], root: int) -> None:
        self._comm = comm
        self._kind = kind
        self._op = op
        self._root = root
        self._dtype = dtype
        self._blocks = Blocks(dtype, op, comm.size)
        self._reduced: Optional[Expected] = None

    def make(self, count: int, in_place: bool, plan: bool) -> Case:
        """Return a case on new buffers; ``count``: the elements of the size."""
        comm, shape = self._comm, self._shape(count)
        given = None if shape.given is None else np.empty(shape.given, self._dtype)
        out = None if shape.got is None else given if in_place else np.empty(shape.got, self._dtype)
        block = None if given is None else self._blocks.of(comm.rank)
        parts = () if out is None else tuple(self._parts(out))
        return Case(self._bind(given, out, plan), given, block, out, parts)

    def _shape(self, count: int) -> _Shape:
        part = count // self._comm.size
        at_root = self._comm.rank == self._root
        return {
            "allgather": _Shape(part, count),
            "reduce_scatter": _Shape(count, part),
            "reduce": _Shape(count, count if at_root else None),
            "gather": _Shape(part, count if at_root else None),
            "scatter": _Shape(count if at_root else None, part),
        }.get(self._kind, _Shape(count, count))

    def _bind(self, given: Optional[np.ndarray], out: Optional[np.ndarray], plan: bool) -> Callable[[], Any]:
        comm = self._comm
        if self._kind == "sendrecv":
            assert given is not None and out is not None
            return functools.partial(_send_and_receive, comm, given, out)
        arguments: List[Any] = [given]
        if self._kind in ("broadcast", "reduce", "gather", "scatter"):
            arguments.append(self._root)
        if self._op is not None:
            arguments.append(self._op)
        return bound(comm, self._kind, plan, *arguments, out=out)

    def _parts(self, out: np.ndarray) -> List[Part]:
        rank, size = self._comm.rank, self._comm.size
        if self._kind in ("allgather", "gather"):
            return [(part, self._moved(r), 0) for r, part in enumerate(np.split(out, size))]
        if self._kind == "alltoall":
            # Each rank's array has a part for every rank, which starts behind those of the ranks before.
            part = out.size // size
            return [(found, self._moved(r), rank * part) for r, found in enumerate(np.split(out, size))]
        if self._kind == "scatter":
            return [(out, self._moved(self._root), rank * out.size)]
        if self._kind == "broadcast":
            return [(out, self._moved(self._root), 0)]
        if self._kind == "sendrecv":
            return [(out, self._moved((rank - 1) % size), 0)]
        if self._reduced is None:
            self._reduced = reduction(self._blocks, self._comm.engine.capabilities.wide_half)
        return [(out, self._reduced, rank * out.size if self._kind == "reduce_scatter" else 0)]

    def _moved(self, rank: int) -> Expected:
        return Expected(self._blocks.of(rank))


def bound(comm: Communicator, kind: str, plan: bool, *arguments: Any, **options: Any) -> Callable[[], Any]:
    """Return what makes one collective: the communicator's method, or a plan that holds nothing else."""
    if plan:
        return comm.plan([call(kind, *arguments, **options)]).run
    return functools.partial(getattr(comm, kind), *arguments, **options)


def _send_and_receive(comm: Communicator, given: np.ndarray, out: np.ndarray) -> None:
    # Submitted, because two ranks that both send first may wait for each other for ever with some engines.
    work = comm.send_async(given, (comm.rank + 1) % comm.size)
    comm.recv((comm.rank - 1) % comm.size, out=out)
    work.wait()
