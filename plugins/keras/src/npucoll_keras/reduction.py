"""The mean of gradients over all ranks, in the three forms in which optimizers pass gradients."""

from __future__ import annotations

from typing import Any, Iterable, List, Tuple

import tensorflow as tf

import npucoll_tensorflow

__all__ = ["mean", "mean_of_distinct_rows", "mean_pairs"]


def mean(gradients: Iterable[Any]) -> List[Any]:
    """Return the gradients averaged over all ranks. Dense, IndexedSlices or None, each in its place."""
    listed = list(gradients)
    return list(npucoll_tensorflow.reduce_gradients(listed, op="mean")) if listed else listed


def mean_of_distinct_rows(gradients: Iterable[Any]) -> List[Any]:
    """Return :func:`mean`, with the rows of several ranks for one index added up.

    The optimizers of Keras 3 do not add them up themselves. Adam then squares each by itself, so training would depend
    on the number of ranks.
    """
    return [_distinct(one) if isinstance(one, tf.IndexedSlices) else one for one in mean(gradients)]


def mean_pairs(pairs: Iterable[Tuple[Any, Any]]) -> List[Tuple[Any, Any]]:
    """Return (gradient, variable) pairs with the gradients averaged over all ranks."""
    listed = list(pairs)
    return [(gradient, pair[1]) for gradient, pair in zip(mean(pair[0] for pair in listed), listed)]


def _distinct(slices: Any) -> Any:
    indices, positions = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, positions, tf.size(indices))
    return tf.IndexedSlices(values, indices, slices.dense_shape)
