"""Gradients of the collectives, for ``tf.gradients`` and GradientTape. Importing this module registers them.

What a rank's output did to the losses of all ranks is summed: the gradient of a sum is the sum of the gradients, that
of a mean their mean, that of a broadcast goes to its root.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import tensorflow as tf

import npucoll
from npucoll_tensorflow.node import REDUCTIONS, Node, read_double, read_halves
from npucoll_tensorflow.ops import by_dtype, keep_shapes
from npucoll_tensorflow.plan import describe_rows, describe_shape, describe_shapes

__all__: List[str] = []

_NAMES = {number: name for name, number in REDUCTIONS.items()}


def _node(kind: str, operation: Any, **options: Any) -> Node:
    """Return the description of a gradient: the communicator of ``operation``, and a name if that had one."""
    key, slot = read_halves(operation, "key"), operation.get_attr("slot")
    name = f"gradient of {key:016x}" if key and not slot else None
    return Node(kind, name=name, comm=read_halves(operation, "comm"), **options)


def _reduction(operation: Any, kind: str) -> str:
    op = _NAMES[operation.get_attr("reduction")]
    if op not in ("sum", "mean"):
        raise npucoll.UnsupportedError(f"{kind} with op={op!r} has no gradient; sum and mean have one")
    return op


def _run_each(node: Node, grads: Sequence[Any], what: str) -> List[Any]:
    """Run an operator of tensors of one dtype on ``grads``."""

    def describe() -> Tuple[str, str]:
        dtype = grads[0].dtype.name
        title = f"gradient of a {what}: {dtype} {describe_shapes(grads)}"
        return node.order(dtype, describe_shapes(grads, len(grads))), title

    return keep_shapes(grads, node.run({"inputs": list(grads)}, describe=describe, plan="derivatives"))


def _run_one(node: Node, grad: Any, what: str, **more: Any) -> Any:
    """Run an operator of one tensor, whose rows may differ between ranks, on ``grad``."""

    def describe() -> Tuple[str, str]:
        dtype, title = grad.dtype.name, f"gradient of an {what}: {grad.dtype.name} {describe_shape(grad.shape)}"
        return node.order(dtype, describe_rows(grad.shape)), title

    return node.run({"input": grad, **more}, describe=describe, plan="derivatives")


def _filled(operation: Any, grads: Sequence[Any]) -> List[Any]:
    """Return ``grads`` with zeros for the outputs that nothing used."""
    return [
        tf.zeros_like(output) if grad is None else tf.convert_to_tensor(grad)
        for output, grad in zip(operation.outputs, grads)
    ]


@tf.RegisterGradient("NpucollAllreduce")
def _allreduce(operation: Any, *grads: Any) -> List[Any]:
    op = _reduction(operation, "allreduce")
    prescale, postscale = read_double(operation, "prescale"), read_double(operation, "postscale")
    node = _node("allreduce", operation, op=op, prescale=prescale, postscale=postscale)
    return _run_each(node, _filled(operation, grads), f"{op} over ranks")


@tf.RegisterGradient("NpucollBroadcast")
def _broadcast(operation: Any, *grads: Any) -> List[Optional[Any]]:
    root = operation.get_attr("root")
    results: List[Optional[Any]] = [None] * len(grads)
    filled = _filled(operation, grads)
    for dtype, places in by_dtype(filled).items():
        if not (tf.as_dtype(dtype).is_floating or tf.as_dtype(dtype).is_complex):
            continue
        node = _node("reduce", operation, root=root)
        if node.name is not None:
            node.name += f" {dtype}"
        for place, result in zip(places, _run_each(node, [filled[i] for i in places], "broadcast")):
            results[place] = result
    return results


@tf.RegisterGradient("NpucollReduce")
def _reduce(operation: Any, *grads: Any) -> List[Any]:
    if _reduction(operation, "reduce") != "sum":
        raise npucoll.UnsupportedError("reduce with op='mean' has no gradient; use sum, or allreduce")
    node = _node("broadcast", operation, root=operation.get_attr("root"))
    return _run_each(node, _filled(operation, grads), "reduce")


@tf.RegisterGradient("NpucollAllgather")
def _allgather(operation: Any, grad: Any, _rows: Any, _rank: Any) -> Any:
    grad = tf.convert_to_tensor(grad)
    rows, rank = operation.outputs[1], operation.outputs[2]
    total = _run_each(_node("allreduce", operation), [grad], "gather")[0]
    begin = tf.reduce_sum(rows[:rank])
    mine = total[begin : begin + rows[rank]]
    mine.set_shape(operation.inputs[0].shape)
    return mine


@tf.RegisterGradient("NpucollReduceScatter")
def _reduce_scatter(operation: Any, grad: Any) -> Any:
    op = _reduction(operation, "reduce_scatter")
    result, rows, _ = _run_one(_node("allgather", operation), tf.convert_to_tensor(grad), "scattered reduction")
    if op == "mean":
        result = result / tf.cast(tf.size(rows), result.dtype)
    result.set_shape(operation.inputs[0].shape)
    return result


@tf.RegisterGradient("NpucollAlltoall")
def _alltoall(operation: Any, grad: Any, _rows: Any) -> List[Optional[Any]]:
    received = operation.outputs[1]
    result, _ = _run_one(_node("alltoall", operation), tf.convert_to_tensor(grad), "exchange", splits=received)
    result.set_shape(operation.inputs[0].shape)
    return [result, None]
