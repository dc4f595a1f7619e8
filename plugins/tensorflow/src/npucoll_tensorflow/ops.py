"""Collectives on tensors: eagerly, in ``tf.function``, and in graphs that a session runs.

All take ``name``, which makes ranks match by that name instead of by what the graph holds, and ``group``, a
Communicator from ``npucoll.communicator().group(...)``; None stands for all ranks. Ranks and size are looked up when an
op runs, so a graph may be built before ``npucoll.init``, and run again after ``shutdown`` and another ``init``.

Errors: eagerly npucoll's own exceptions; from a graph ``tf.errors.OpError``, which :func:`npucoll_tensorflow.translate`
turns into them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import tensorflow as tf

import npucoll
from npucoll_tensorflow.compat import unconverted
from npucoll_tensorflow.node import Node, as_tensors
from npucoll_tensorflow.plan import describe_rows, describe_shape, describe_shapes

if TYPE_CHECKING:
    from npucoll import Communicator

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "gather_rows",
    "grouped_allreduce",
    "grouped_broadcast",
    "reduce",
    "reduce_scatter",
    "run_gather",
]


@unconverted
def allreduce(
    tensor: Any,
    op: str = "sum",
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
    name: Optional[str] = None,
    group: Optional[Communicator] = None,
) -> Any:
    """Reduce ``tensor`` over all ranks, element by element; every rank gets the same bits.

    ``op`` is "sum", "mean", "min", "max" or "prod". Inputs are multiplied by ``prescale`` and the reduction by
    ``postscale`` before the one rounding at the end. Shape and dtype are those of ``tensor``, and equal on all ranks.
    IndexedSlices become dense. Sum and mean have gradients.
    """
    return _each("allreduce", [tf.convert_to_tensor(tensor)], op, 0, prescale, postscale, name, group)[0]


@unconverted
def grouped_allreduce(
    tensors: Sequence[Any],
    op: str = "sum",
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
    name: Optional[str] = None,
    group: Optional[Communicator] = None,
) -> List[Any]:
    """Do :func:`allreduce` for a list of tensors as one fused operation for each dtype; returns the list of results."""
    inputs = as_tensors(tensors)
    results: List[Any] = [None] * len(inputs)
    for dtype, places in by_dtype(inputs).items():
        part = name if name is None else f"{name}/{dtype}"
        fused = _each("allreduce", [inputs[i] for i in places], op, 0, prescale, postscale, part, group)
        for place, result in zip(places, fused):
            results[place] = result
    return results


@unconverted
def reduce(
    tensor: Any,
    root: int = 0,
    op: str = "sum",
    *,
    name: Optional[str] = None,
    group: Optional[Communicator] = None,
) -> Any:
    """Do :func:`allreduce` with the result on ``root`` only; the other ranks get zeros of the same shape."""
    return _each("reduce", [tf.convert_to_tensor(tensor)], op, root, 1.0, 1.0, name, group)[0]


@unconverted
def broadcast(tensor: Any, root: int = 0, *, name: Optional[str] = None, group: Optional[Communicator] = None) -> Any:
    """Return ``root``'s ``tensor`` on every rank; shape and dtype are equal on all ranks. Has a gradient."""
    return grouped_broadcast([tensor], root, name=name, group=group)[0]


@unconverted
def grouped_broadcast(
    tensors: Sequence[Any], root: int = 0, *, name: Optional[str] = None, group: Optional[Communicator] = None
) -> List[Any]:
    """Do :func:`broadcast` for a list of tensors, of any dtypes, as one fused operation; returns a list."""
    inputs = as_tensors(tensors)
    if not inputs:
        return []
    for tensor in inputs:
        _check_dtype(tensor, "broadcast")
    node = Node("broadcast", root=root, name=name, group=group)

    def describe() -> Tuple[str, str]:
        dtypes = " ".join(tensor.dtype.name for tensor in inputs)
        return node.order(dtypes, describe_shapes(inputs, len(inputs))), _title("broadcast", inputs)

    return keep_shapes(inputs, node.run({"inputs": inputs}, describe=describe))


@unconverted
def allgather(tensor: Any, *, name: Optional[str] = None, group: Optional[Communicator] = None) -> Any:
    """Concatenate every rank's ``tensor`` along dimension 0, which may differ between ranks; a scalar counts as one
    row.

    Has a gradient.
    """
    return gather_rows(tensor, name=name, group=group)[0]


def gather_rows(
    tensor: Any, *, name: Optional[str] = None, group: Optional[Communicator] = None, plan: str = "collectives"
) -> Tuple[Any, Any, Any]:
    """Do :func:`allgather`; returns the result, the rows of each rank (int64, one a rank), and this rank (int32)."""
    value = tf.convert_to_tensor(tensor)
    _check_dtype(value, "allgather")
    if value.shape.ndims == 0:
        value = tf.expand_dims(value, 0)
    node = Node("allgather", name=name, group=group)
    return run_gather(node, value, describe=lambda: _rows(node, value), plan=plan)


def run_gather(node: Node, value: Any, **place: Any) -> Tuple[Any, Any, Any]:
    """Run an allgather, described and placed as ``Node.run`` wants it, and say what is known of its shapes."""
    result, rows, rank = node.run({"input": value}, **place)
    if not tf.executing_eagerly():
        if value.shape.ndims is not None:
            result.set_shape([None] + value.shape.as_list()[1:])
        rows.set_shape([None])
        rank.set_shape([])
    return result, rows, rank


@unconverted
def reduce_scatter(
    tensor: Any,
    op: str = "sum",
    *,
    name: Optional[str] = None,
    group: Optional[Communicator] = None,
) -> Any:
    """Reduce ``tensor`` over all ranks and return this rank's block of it along dimension 0.

    Dimension 0 is a multiple of the number of ranks. Sum and mean have gradients.
    """
    value = tf.convert_to_tensor(tensor)
    _check_dtype(value, "reduce_scatter")
    node = Node("reduce_scatter", op=op, name=name, group=group)
    _check_reduction(value, op, False)

    def describe() -> Tuple[str, str]:
        return node.order(value.dtype.name, describe_shape(value.shape)), _title("reduce_scatter", [value])

    result = node.run({"input": value}, describe=describe)
    if not tf.executing_eagerly() and value.shape.ndims is not None:
        result.set_shape([None] + value.shape.as_list()[1:])
    return result


@unconverted
def alltoall(
    tensor: Any,
    splits: Optional[Any] = None,
    *,
    name: Optional[str] = None,
    group: Optional[Communicator] = None,
) -> Tuple[Any, Any]:
    """Send rows of ``tensor`` to each rank; returns what came, rank after rank, and the rows from each rank (int64).

    ``splits`` holds one number of rows for each rank; without it, dimension 0 is shared evenly. Has a gradient.
    """
    value = tf.convert_to_tensor(tensor)
    _check_dtype(value, "alltoall")
    node = Node("alltoall", name=name, group=group)
    rows = tf.zeros([0], tf.int64) if splits is None else tf.cast(tf.convert_to_tensor(splits), tf.int64)
    result, received = node.run({"input": value, "splits": rows}, describe=lambda: _rows(node, value))
    if not tf.executing_eagerly():
        if value.shape.ndims is not None:
            result.set_shape([None] + value.shape.as_list()[1:])
        received.set_shape([None])
    return result, received


@functools.lru_cache(maxsize=None)
def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype, that of a reference like that of what it refers to."""
    return str(dtype.base_dtype.name)


def by_dtype(tensors: Sequence[Any]) -> Dict[str, List[int]]:
    """Return the places of ``tensors`` by dtype, in the order of the dtypes' names, which all ranks share."""
    places: Dict[str, List[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(dtype_name(tensor.dtype), []).append(place)
    return dict(sorted(places.items()))


def keep_shapes(inputs: Sequence[Any], results: Sequence[Any]) -> List[Any]:
    """Return ``results`` with the static shapes of ``inputs`` where TensorFlow did not work them out."""
    if not tf.executing_eagerly():
        for given, result in zip(inputs, results):
            result.set_shape(given.shape)
    return list(results)


def _each(
    kind: str,
    inputs: Sequence[Any],
    op: str,
    root: int,
    prescale: float,
    postscale: float,
    name: Optional[str],
    group: Optional[Communicator],
) -> List[Any]:
    """Do an allreduce or reduce of tensors of one dtype as one operation."""
    node = Node(kind, op=op, root=root, prescale=prescale, postscale=postscale, name=name, group=group)
    _check_dtype(inputs[0], kind)
    _check_reduction(inputs[0], op, prescale != 1.0 or postscale != 1.0)

    def describe() -> Tuple[str, str]:
        order = node.order(inputs[0].dtype.name, describe_shapes(inputs, len(inputs)))
        return order, _title(f"{kind} {op}", inputs)

    return keep_shapes(inputs, node.run({"inputs": list(inputs)}, describe=describe))


def _rows(node: Node, tensor: Any) -> Tuple[str, str]:
    """Describe a collective whose rows may differ between ranks, and with them what a graph knows of dimension 0."""
    return node.order(tensor.dtype.name, describe_rows(tensor.shape)), _title(node.kind, [tensor])


def _title(what: str, tensors: Sequence[Any]) -> str:
    return f"{what} of {tensors[0].dtype.name} {describe_shapes(tensors)}"


def _check_dtype(tensor: Any, what: str) -> None:
    dtype = tensor.dtype.base_dtype
    if dtype in (tf.string, tf.resource, tf.variant):
        raise npucoll.UnsupportedError(f"{what} of dtype {dtype.name} is not possible; send numbers")


def _check_reduction(tensor: Any, op: str, scaled: bool) -> None:
    dtype = tensor.dtype.base_dtype
    if dtype == tf.bool and op in ("sum", "mean"):
        raise npucoll.UnsupportedError(f"{op} is not defined for bool; use max (any), min (all), or cast")
    if dtype.is_complex and op in ("min", "max"):
        raise npucoll.UnsupportedError(f"{op} is not defined for {dtype.name}: complex numbers have no order")
    if scaled and not (dtype.is_floating or dtype.is_complex):
        raise npucoll.UnsupportedError(f"scaling is not defined for {dtype.name}; cast to a float type")
