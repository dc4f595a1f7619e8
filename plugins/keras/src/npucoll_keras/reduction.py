"""The mean of gradients over all ranks, in the three forms in which optimizers pass gradients."""

from __future__ import annotations

from typing import Any, Iterable, List, Tuple

import npucoll_tensorflow

__all__ = ["mean", "mean_pairs"]


def mean(gradients: Iterable[Any]) -> List[Any]:
    """Return the gradients averaged over all ranks. Dense, IndexedSlices or None, each in its place."""
    listed = list(gradients)
    return list(npucoll_tensorflow.reduce_gradients(listed, op="mean")) if listed else listed


def mean_pairs(pairs: Iterable[Tuple[Any, Any]]) -> List[Tuple[Any, Any]]:
    """Return (gradient, variable) pairs with the gradients averaged over all ranks."""
    listed = list(pairs)
    return [(gradient, pair[1]) for gradient, pair in zip(mean(pair[0] for pair in listed), listed)]
