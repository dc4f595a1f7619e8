"""Copies the root's variables to every rank: the same start everywhere.

1. In a graph a variable may not be initialized yet. What is sent for it then is zeros of its shape, never a read that
   would fail; on all ranks but the root that is as good as anything.
2. All values are one fused broadcast, as bytes, whatever their dtypes. With them goes, for each variable, whether it
   was initialized on the root. So every rank learns it, and refuses alike, before anything is assigned.
3. Where a graph does not know all of a variable's shape, the root's shape is sent first. A variable of strings is sent
   afterwards, as the bytes that serialize it. Both may differ in length between ranks, so every rank's are gathered.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import tensorflow as tf

from npucoll_tensorflow.compat import unconverted, v1
from npucoll_tensorflow.node import Node
from npucoll_tensorflow.ops import gather_rows, keep_shapes
from npucoll_tensorflow.plan import describe_shapes

__all__ = ["broadcast_variables"]


@unconverted
def broadcast_variables(variables: Sequence[Any], root: int = 0, *, name: Optional[str] = None) -> Optional[Any]:
    """Overwrite ``variables`` with those of rank ``root``, in one fused operation.

    ``variables``: TensorFlow variables, ref or resource, partitioned too, of any dtype, strings too, in the same order
    on every rank. In a graph it returns an operation to run; that makes no further nodes, so it also runs where the
    graph was finalized later. Eagerly it does the work and returns None. A variable that is not initialized on the root
    is an error that names it; on the other ranks it need not be.

    Errors: MismatchError on every rank where the lists differ; ConfigError for a variable that is not initialized on
    the root; otherwise as ``broadcast``.
    """
    flat = _flatten(variables)
    if not flat:
        return None if tf.executing_eagerly() else tf.no_op(name="npucoll_broadcast_variables")
    with v1.name_scope("npucoll_broadcast_variables"):
        sent = _broadcast(flat, root, name)
        updates = [_assign(variable, value) for variable, value in zip(flat, sent)]
        return None if tf.executing_eagerly() else tf.group(*updates, name="done")


def _flatten(variables: Sequence[Any]) -> List[Any]:
    """Return the variables, each once; those of a partitioned one are its parts."""
    flat: List[Any] = []
    seen = set()
    for variable in variables:
        parts = list(variable) if type(variable).__name__ == "PartitionedVariable" else [variable]
        for part in parts:
            if id(part) not in seen:
                seen.add(id(part))
                flat.append(part)
    return flat


def _broadcast(variables: List[Any], root: int, name: Optional[str]) -> List[Any]:
    """Return the root's values of ``variables``."""
    ready = [_is_initialized(variable) for variable in variables]
    values = [_value_or_zeros(variable, is_ready) for variable, is_ready in zip(variables, ready)]
    last: Any = None
    for place, variable in enumerate(variables):
        if not variable.shape.is_fully_defined():
            with _after(last):
                resized = last = _with_roots_shape(values[place], root, name and f"{name}/shape/{place}")
            resized.set_shape(variable.shape)
            values[place] = resized
    texts = [place for place, value in enumerate(values) if value.dtype.base_dtype == tf.string]
    plain = [place for place in range(len(values)) if place not in texts]
    with _after(last):
        *sent, sent_ready = _send([*[values[place] for place in plain], tf.stack(ready)], root, name)
    for place, value in zip(plain, sent):
        values[place] = value
    last = sent_ready
    for place in texts:
        with _after(last):
            values[place] = last = _roots_text(values[place], root, name and f"{name}/text/{place}")
    with tf.control_dependencies([_assert_ready(variables, sent_ready, root)]):
        return keep_shapes(variables, [tf.identity(value) for value in values])


def _after(tensor: Any) -> Any:
    """Return a scope for what waits for ``tensor``: where ranks disagree, only one collective is under way."""
    return tf.control_dependencies([] if tensor is None or tf.executing_eagerly() else [tensor])


def _send(values: List[Any], root: int, name: Optional[str]) -> List[Any]:
    node = Node("broadcast", root=root, name=name)

    def describe() -> Tuple[str, str]:
        dtypes = " ".join(value.dtype.base_dtype.name for value in values)
        title = f"broadcast of {len(values) - 1} variables {describe_shapes(values[:-1])}"
        return node.order(dtypes, describe_shapes(values, len(values))), title

    return keep_shapes(values, node.run({"inputs": values}, describe=describe, plan="variables"))


def _is_initialized(variable: Any) -> Any:
    # The function crashes in TensorFlow 1.15's eager mode, the method does not exist for its ref variables.
    return variable.is_initialized() if tf.executing_eagerly() else v1.is_variable_initialized(variable)


def _value_or_zeros(variable: Any, ready: Any) -> Any:
    """Return what the variable holds, or zeros of its shape where it is not initialized."""
    if tf.executing_eagerly():
        return variable.read_value()
    dtype = variable.dtype.base_dtype
    shape = [0] if variable.shape.ndims is None else [size or 0 for size in variable.shape.as_list()]
    if variable.dtype == dtype:
        value = v1.cond(ready, variable.read_value, lambda: tf.zeros(shape, dtype))
    else:
        # A ref variable. Branches that are functions cannot take a reference, so the branch is made of its nodes.
        _, held = tf.raw_ops.RefSwitch(data=variable, pred=ready)
        zeros, _ = tf.raw_ops.Switch(data=tf.zeros(shape, dtype), pred=ready)
        value = tf.raw_ops.Merge(inputs=[zeros, tf.identity(held)])[0]
    value.set_shape(variable.shape)
    return value


def _with_roots_shape(value: Any, root: int, name: Optional[str]) -> Any:
    """Return ``value``, or zeros of the root's shape where it has another."""
    own = tf.shape(value, out_type=tf.int64)
    shape = _roots_rows(own, root, name)
    # What is received replaces it, so only the number of elements matters.
    fits = tf.equal(tf.reduce_prod(own), tf.reduce_prod(shape))
    return v1.cond(fits, lambda: tf.reshape(value, shape), lambda: tf.zeros(shape, value.dtype))


def _roots_text(value: Any, root: int, name: Optional[str]) -> Any:
    """Return the root's strings."""
    code = _roots_rows(tf.io.decode_raw(tf.io.serialize_tensor(value), tf.uint8), root, name)
    characters = tf.gather(tf.constant([bytes([number]) for number in range(256)]), tf.cast(code, tf.int32))
    return tf.io.parse_tensor(tf.strings.reduce_join(characters), tf.string)


def _roots_rows(rows: Any, root: int, name: Optional[str]) -> Any:
    """Return the root's vector, whose length only the root knows."""
    gathered, counts, _ = gather_rows(rows, name=name, plan="variables")
    begin = tf.reduce_sum(counts[:root])
    return gathered[begin : begin + counts[root]]


def _assert_ready(variables: List[Any], ready: Any, root: int) -> Any:
    """Return an operation that fails where the root's variables were not all initialized, and names them."""
    names = tf.constant([variable.name for variable in variables])
    missing = tf.strings.reduce_join(tf.boolean_mask(names, tf.logical_not(ready)), separator=", ")
    text = tf.strings.join([f"npucoll.ConfigError: rank {root} has not initialized, so cannot send, ", missing])
    return v1.Assert(tf.reduce_all(ready), [text])


def _assign(variable: Any, value: Any) -> Any:
    return v1.assign(variable, value, validate_shape=variable.shape.is_fully_defined())
