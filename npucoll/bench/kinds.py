"""The collectives that can be measured: what a size means for each, and what its bus bandwidth is.

Sizes and factors are those of nccl-tests (doc/PERFORMANCE.md there). Imports no NumPy: the process that starts the
ranks reads it.
"""

from __future__ import annotations

from typing import Callable, Dict, NamedTuple, Tuple

__all__ = ["BFLOAT16", "ITEM_SIZES", "KINDS", "OPS", "Kind"]

BFLOAT16 = "bfloat16"
OPS: Tuple[str, ...] = ("sum", "mean", "min", "max", "prod")

#: Bytes of one element of each dtype that collectives take.
ITEM_SIZES: Dict[str, int] = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    BFLOAT16: 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}


class Kind(NamedTuple):
    """One collective.

    Attributes:
        size: what the size is, in a person's words.
        factor: bus bandwidth over algorithm bandwidth, given the number of ranks.
        shared: whether the size is made of one equal part a rank.
        reduces: whether it has an op.
        rooted: whether it has a root.
        in_place: whether the result may take the place of the input.
        planned: whether a plan can hold it.
    """

    size: str
    factor: Callable[[int], float]
    shared: bool = False
    reduces: bool = False
    rooted: bool = False
    in_place: bool = False
    planned: bool = True

    def fit(self, size: int, item_size: int, ranks: int) -> int:
        """Return the size that is measured for ``size``: the next lower that the elements and ranks share evenly."""
        unit = item_size * ranks if self.shared else item_size
        return max(unit, size // unit * unit)


def _one(ranks: int) -> float:
    return 1.0


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


def _twice_others(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


KINDS: Dict[str, Kind] = {
    "allreduce": Kind("the array of each rank", _twice_others, reduces=True, in_place=True),
    "broadcast": Kind("the root's array", _one, rooted=True, in_place=True),
    "allgather": Kind("the result; each rank gives size / ranks", _others, shared=True),
    "reduce_scatter": Kind("the array of each rank; each gets size / ranks", _others, shared=True, reduces=True),
    "alltoall": Kind("the array of each rank; size / ranks go to each", _others, shared=True, in_place=True),
    "reduce": Kind("the array of each rank", _one, reduces=True, rooted=True, in_place=True),
    "gather": Kind("the root's result; each rank gives size / ranks", _others, shared=True, rooted=True),
    "scatter": Kind("the root's array; each rank gets size / ranks", _others, shared=True, rooted=True, planned=False),
    "sendrecv": Kind("what each rank sends to the next, and receives from the one before", _one, planned=False),
    "barrier": Kind("nothing: it moves no data", lambda ranks: 0.0),
}
