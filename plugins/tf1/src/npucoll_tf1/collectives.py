"""Collectives on tensors, eagerly and in graphs, with groups given by name."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

import npucoll_tensorflow
from npucoll_tf1.groups import WORLD, communicator_of

__all__ = ["allgather", "allreduce", "alltoall", "broadcast", "reduce", "reduce_scatter"]


def allreduce(
    tensor: Any,
    op: str = "sum",
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
    name: Optional[str] = None,
    group: str = WORLD,
) -> Any:
    """Reduce ``tensor`` over the ranks of ``group``, element by element; every rank gets the same bits.

    ``op`` is "sum", "mean", "min", "max" or "prod". The result has the tensor's shape and dtype, and a gradient. Ranks
    that disagree about dtype, shape or op all fail, in words.
    """
    comm = communicator_of(group)
    return npucoll_tensorflow.allreduce(tensor, op, prescale=prescale, postscale=postscale, name=name, group=comm)


def broadcast(tensor: Any, root: int = 0, *, name: Optional[str] = None, group: str = WORLD) -> Any:
    """Return the ``tensor`` of rank ``root`` of ``group`` on every rank; shape and dtype are equal on all of them."""
    return npucoll_tensorflow.broadcast(tensor, root, name=name, group=communicator_of(group))


def allgather(tensor: Any, *, name: Optional[str] = None, group: str = WORLD) -> Any:
    """Concatenate the ``tensor`` of every rank of ``group`` along dimension 0, which may differ between ranks."""
    return npucoll_tensorflow.allgather(tensor, name=name, group=communicator_of(group))


def reduce(tensor: Any, root: int = 0, op: str = "sum", *, name: Optional[str] = None, group: str = WORLD) -> Any:
    """Do :func:`allreduce` with the result on rank ``root`` of ``group``; the others get zeros of the same shape."""
    return npucoll_tensorflow.reduce(tensor, root, op, name=name, group=communicator_of(group))


def reduce_scatter(tensor: Any, op: str = "sum", *, name: Optional[str] = None, group: str = WORLD) -> Any:
    """Reduce ``tensor`` over the ranks of ``group`` and return this rank's block of it along dimension 0.

    Dimension 0 is a multiple of the number of ranks.
    """
    return npucoll_tensorflow.reduce_scatter(tensor, op, name=name, group=communicator_of(group))


def alltoall(
    tensor: Any, splits: Optional[Sequence[int]] = None, *, name: Optional[str] = None, group: str = WORLD
) -> Tuple[Any, Any]:
    """Send rows of ``tensor`` to each rank of ``group``; returns what came, rank after rank, and the rows from each.

    ``splits`` holds the number of rows for each rank; without it, dimension 0 is shared evenly.
    """
    return npucoll_tensorflow.alltoall(tensor, splits, name=name, group=communicator_of(group))
