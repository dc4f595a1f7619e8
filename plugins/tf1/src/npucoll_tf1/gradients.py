"""Averaging gradients, and telling gradients that were averaged from those that were not.

1. Every reduction of this mode goes through :func:`reduce`, which remembers its results: eager tensors by identity, and
   that a graph has a reduction at all.
2. A wrapped optimizer asks :func:`settle` what to do with the gradients that ``apply_gradients`` is handed. In eager
   mode those that no reduction made are averaged there. Averaging what is equal on all ranks leaves it as it is, so a
   gradient that was averaged and then, say, clipped comes to no harm.
3. In a graph nothing is added: scripts reduce by themselves, then apply, and accumulated gradients come from
   variables, so that nobody can tell. But a graph without any reduction trains each rank alone, and that is warned
   about.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any, Iterable, List, Sequence, Tuple

import tensorflow.compat.v1 as tf

import npucoll
import npucoll_tensorflow
from npucoll.errors import ConfigError
from npucoll_tf1.groups import WORLD, communicator_of

__all__ = ["average", "npu_allreduce", "settle"]

REDUCTIONS = ("mean", "sum", "min", "max", "prod")

UNREDUCED = (
    "the wrapped optimizer applies gradients in a graph in which nothing was reduced over the ranks, so the ranks will "
    "drift apart; compute them with its compute_gradients() or minimize(), or pass them through npu_allreduce() first"
)


class Reduced:
    """What has been reduced: eager tensors, and the graphs that hold a reduction. It keeps neither alive."""

    def __init__(self) -> None:
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._tensors: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def add(self, values: Iterable[Any]) -> None:
        """Remember results of a reduction."""
        if not tf.executing_eagerly():
            self._graphs.add(tf.get_default_graph())
            return
        for value in values:
            if value is not None:
                self._tensors[id(value)] = value

    def has_tensor(self, value: Any) -> bool:
        """Tell whether ``value``, an eager tensor, is the result of a reduction."""
        return self._tensors.get(id(value)) is value

    def has_graph(self) -> bool:
        """Tell whether the current graph, or one around it, holds a reduction."""
        graph = tf.get_default_graph()
        while graph is not None:
            if graph in self._graphs:
                return True
            graph = getattr(graph, "outer_graph", None)
        return False


_reduced = Reduced()


def npu_allreduce(
    values: Any, reduction: str = "mean", fusion: int = 1, fusion_id: int = -1, group: str = WORLD
) -> Any:
    """Reduce one tensor, or a list or tuple of them, over the ranks of ``group``: gradients, mostly.

    ``values`` may hold IndexedSlices, whose rows are gathered (their number may differ between ranks), and None, which
    stays None in place. ``reduction`` is "mean", "sum", "min", "max" or "prod". A list or a tuple gives a list, a
    tensor a tensor. The results of a list become available once all its inputs are there, so variables may be updated
    with them while no gradient still reads them. ``fusion`` and ``fusion_id`` are accepted; npucoll fuses by itself.
    """
    if reduction not in REDUCTIONS:
        raise ConfigError(f"reduction must be one of {', '.join(REDUCTIONS)}, found {reduction!r}")
    several = isinstance(values, (list, tuple))
    results = reduce(values if several else [values], reduction, group)
    return results if several else results[0]


def average(gradients_and_variables: Iterable[Tuple[Any, Any]]) -> List[Tuple[Any, Any]]:
    """Return the pairs with each gradient averaged over all ranks; a gradient of None stays, in place."""
    pairs = list(gradients_and_variables)
    averaged = reduce([gradient for gradient, _ in pairs], "mean", WORLD)
    return [(gradient, variable) for gradient, (_, variable) in zip(averaged, pairs)]


def settle(gradients_and_variables: Iterable[Tuple[Any, Any]]) -> List[Tuple[Any, Any]]:
    """Return the pairs as they may be applied: averaged where nobody did so and it can be told."""
    pairs = list(gradients_and_variables)
    if npucoll.size() == 1:
        return pairs
    if not tf.executing_eagerly():
        if not _reduced.has_graph():
            warnings.warn(UNREDUCED, RuntimeWarning, stacklevel=3)
        return pairs
    if all(gradient is None or _reduced.has_tensor(gradient) for gradient, _ in pairs):
        return pairs
    return average(pairs)


def reduce(values: Sequence[Any], reduction: str, group: str) -> List[Any]:
    """Reduce tensors, IndexedSlices and Nones over the ranks of ``group``, together."""
    results = list(npucoll_tensorflow.reduce_gradients(list(values), reduction, group=communicator_of(group)))
    _reduced.add(results)
    return results
