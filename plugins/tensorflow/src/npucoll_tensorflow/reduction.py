"""Reduces a model's gradients over all ranks: what every mode does once a step.

1. The list is a *plan*: dense gradients of one dtype are one fused operation; IndexedSlices are gathered; None stays.
2. Every operation of a plan carries a hash of the whole plan, so that a gradient that is None, sparse or of another
   dtype on one rank only is a mismatch, at once and on all ranks. Shapes are compared when the operation runs.
3. The plan's first operation gates the others: if ranks disagree it fails before anything else is started, and nothing
   is left waiting for a rank that will not come.
4. No result is available before all inputs are: whoever updates a variable from one result cannot change another input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple

import tensorflow as tf

from npucoll_tensorflow import library
from npucoll_tensorflow.compat import unconverted, v1
from npucoll_tensorflow.node import Node, communicator_id
from npucoll_tensorflow.ops import _check_dtype, _check_reduction, by_dtype, dtype_name, keep_shapes, run_gather
from npucoll_tensorflow.plan import describe_shapes, hash64

if TYPE_CHECKING:
    from npucoll import Communicator

__all__ = ["reduce_gradients"]


@unconverted
def reduce_gradients(
    gradients: Sequence[Any],
    op: str = "mean",
    *,
    name: Optional[str] = None,
    group: Optional[Communicator] = None,
) -> List[Any]:
    """Reduce a list of gradients over all ranks; returns the list of results, in the same places.

    Dense gradients keep shape and dtype. IndexedSlices come back as IndexedSlices that hold every rank's rows (merged
    where one rank has an index twice), divided by the number of ranks for a mean; for "min", "max" and "prod" they
    become dense. None stays None, and must be None on every rank. ``op``, ``name`` and ``group`` as in ``allreduce``.

    Errors: as ``allreduce``; MismatchError on every rank where ranks disagree about any of the gradients.
    """
    entries = [_as_entry(gradient, op) for gradient in gradients]
    if all(entry is None for entry in entries):
        return list(entries)
    plan = _Plan(entries, op, name, group)
    return plan.reduce()


def _as_entry(gradient: Any, op: str) -> Any:
    if gradient is None or (isinstance(gradient, tf.IndexedSlices) and op in ("sum", "mean")):
        return gradient
    return tf.convert_to_tensor(gradient)


class _Plan:
    """One list of gradients, and the operations that reduce it."""

    def __init__(self, entries: List[Any], op: str, name: Optional[str], group: Optional[Communicator]) -> None:
        self._entries = entries
        self._op = op
        self._name = name
        self._group = group
        self._results: List[Any] = [None] * len(entries)
        # Asking a tensor's class costs more than all else that is done for a small eager gradient: once is enough.
        self._sparse = [i for i, entry in enumerate(entries) if isinstance(entry, tf.IndexedSlices)]
        sparse = set(self._sparse)
        self._dense = [i for i, entry in enumerate(entries) if entry is not None and i not in sparse]
        kinds = ["none" if entry is None else f"dense {dtype_name(entry.dtype)}" for entry in entries]
        for place in self._sparse:
            kinds[place] = f"sparse {dtype_name(entries[place].dtype)}"
        self._detail = hash64("gradients", op, *kinds)
        self._first: Optional[Any] = None
        order = f"{len(entries):06d}"
        if name is None and not tf.executing_eagerly():
            what = f"gradients {communicator_id(group)} {order}"
            order += f"/{library.load().plans.count(v1.get_default_graph(), what):06d}"
        self._order = order

    def reduce(self) -> List[Any]:
        """Build, or do, all operations."""
        groups = by_dtype([self._entries[place] for place in self._dense])
        inputs: List[Any] = []
        # A single fused operation waits for its inputs anyway.
        if len(groups) + len(self._sparse) > 1 and not tf.executing_eagerly():
            inputs = [part for entry in self._entries if entry is not None for part in _parts(entry)]
        with tf.control_dependencies(inputs):
            for dtype, places in groups.items():
                self._reduce_dense(dtype, [self._dense[i] for i in places])
            for number, place in enumerate(self._sparse):
                self._reduce_sparse(number, place)
        return self._results

    def _part(self, what: str) -> Tuple[str, Optional[str]]:
        """Return the order and the name of one operation of the plan."""
        return f"{self._order}/{what}", None if self._name is None else f"{self._name}/{what}"

    def _after_first(self) -> Any:
        """Return a scope whose operations start when the plan's first one has ended well."""
        return tf.control_dependencies([] if self._first is None or tf.executing_eagerly() else [self._first])

    def _reduce_dense(self, dtype: str, places: List[int]) -> None:
        inputs = [self._entries[place] for place in places]
        _check_dtype(inputs[0], "allreduce")
        _check_reduction(inputs[0], self._op, False)
        order, name = self._part(f"dense/{dtype}")
        node = Node("allreduce", op=self._op, name=name, group=self._group)
        with self._after_first():
            results = node.run(
                {"inputs": inputs},
                describe=lambda: (f"{order}/{node.order('', '')}", _describe(self._entries)),
                plan="gradients",
                detail=self._detail,
            )
        self._done(results[0])
        for place, result in zip(places, keep_shapes(inputs, results)):
            self._results[place] = result

    def _reduce_sparse(self, number: int, place: int) -> None:
        slices = self._entries[place]
        merged, indices = _merge(slices)
        with self._after_first():
            order, name = self._part(f"sparse/{number:06d}/0")
            values, rows, _ = self._gather(merged, order, name)
        self._done(values)
        with self._after_first():
            order, name = self._part(f"sparse/{number:06d}/1")
            all_indices, _, _ = self._gather(indices, order, name)
        if self._op == "mean":
            values = values / tf.cast(tf.size(rows), values.dtype)
        self._results[place] = tf.IndexedSlices(values, all_indices, slices.dense_shape)

    def _gather(self, tensor: Any, order: str, name: Optional[str]) -> Tuple[Any, Any, Any]:
        node = Node("allgather", name=name, group=self._group)
        return run_gather(
            node, tensor, describe=lambda: (order, _describe(self._entries)), plan="gradients", detail=self._detail
        )

    def _done(self, result: Any) -> None:
        if self._first is None:
            self._first = result


def _describe(entries: Sequence[Any]) -> str:
    """Return a plan in words, for messages that show little more than 90 characters: what is unusual comes first."""
    none = [str(i) for i, entry in enumerate(entries) if entry is None]
    sparse = sum(isinstance(entry, tf.IndexedSlices) for entry in entries)
    dtypes = {dtype_name(entry.dtype) for entry in entries if entry is not None}
    notes = [f"None at {' '.join(none)}"] if none else []
    notes += [f"{sparse} sparse"] if sparse else []
    notes.append("/".join(sorted(dtypes)))
    shapes = [_parts(entry)[0] for entry in entries if entry is not None]
    return f"{len(entries)} gradients ({'; '.join(notes)}) {describe_shapes(shapes)}"


def _parts(entry: Any) -> List[Any]:
    return [entry.values, entry.indices] if isinstance(entry, tf.IndexedSlices) else [entry]


def _merge(slices: Any) -> Tuple[Any, Any]:
    """Return the values and indices of ``slices`` with the rows of one index summed: often many fewer to send."""
    indices, positions = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, positions, tf.size(indices))
    if slices.values.shape.ndims is not None:
        values.set_shape([None] + slices.values.shape.as_list()[1:])
    return values, indices
