"""What differs between TensorFlow 1.15 and the 2.x versions, resolved once.

Everything here that is not TensorFlow's public interface has a way without it, and says what is lost then.
"""

from __future__ import annotations

from typing import Any, Iterator

import tensorflow as tf

__all__ = ["in_function", "root_graph", "run_independently", "run_loops_in_order", "unconverted", "v1"]

v1 = tf.compat.v1

# AutoGraph would rewrite our functions where a tf.function calls them, for nothing.
unconverted = tf.autograph.experimental.do_not_convert

# TensorFlow 1.15 decides by type which stateful ops a function need not run in program order; later versions by node.
_OP_TYPES = (
    "NpucollAllreduce",
    "NpucollBroadcast",
    "NpucollAllgather",
    "NpucollReduce",
    "NpucollReduceScatter",
    "NpucollAlltoall",
)


def in_function(graph: Any) -> bool:
    """Return whether ``graph`` is the body of a ``tf.function``, or of a branch or loop that is compiled like one."""
    return bool(getattr(graph, "building_function", False))


def root_graph(graph: Any) -> Any:
    """Return the outermost graph that runs together with ``graph``: the function's or the session's."""
    while in_function(graph):
        outer = getattr(graph, "outer_graph", None)
        # Around a function that is traced from eager code there is only TensorFlow's placeholder of a graph.
        if outer is None or (not in_function(outer) and _is_eager_outside()):
            break
        graph = outer
    return graph


def _is_eager_outside() -> bool:
    with tf.init_scope():
        return bool(tf.executing_eagerly())


def run_independently(operation: Any) -> None:
    """Take a collective out of the program order that a function imposes on stateful ops.

    Otherwise collectives that ranks create in different orders would wait for each other for ever. Without this private
    help functions still work, as long as all ranks create their collectives in the same order.
    """
    manager = getattr(operation.graph, "experimental_acd_manager", None)
    if manager is not None and hasattr(manager, "run_independently"):
        manager.run_independently(operation)


def _exempt_by_type() -> None:
    try:
        from tensorflow.python.framework import auto_control_deps
    except ImportError:
        return
    exempt = getattr(auto_control_deps, "_ALL_BLACKLISTED_OPS", None)
    if isinstance(exempt, set):
        exempt.update(_OP_TYPES)


def run_loops_in_order(graph: Any) -> None:
    """Let a ``tf.while_loop`` that is being built run one iteration after the other.

    Iterations that overlap, on each rank in their own way, would exchange each other's values. This is for loops made
    of Enter and Exit nodes; where loops are functions, the kernels tell iterations apart.
    """
    context = graph._get_control_flow_context() if hasattr(graph, "_get_control_flow_context") else None
    while context is not None:
        if context.IsWhileContext() and getattr(context, "_parallel_iterations", 1) != 1:
            context._parallel_iterations = 1
            for operation in _entries(graph, context.name):
                operation._set_attr("parallel_iterations", v1.AttrValue(i=1))
        context = context.outer_context


def _entries(graph: Any, frame: str) -> Iterator[Any]:
    for operation in graph.get_operations():
        if operation.type in ("Enter", "RefEnter") and operation.get_attr("frame_name").decode() == frame:
            yield operation


_exempt_by_type()
