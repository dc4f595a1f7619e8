"""Gradients that reach ``apply_gradients`` although nobody reduced them.

Where ``compute_gradients`` or ``get_gradients`` reduce, ``apply_gradients`` gets either their results or gradients that
the script made by itself, in a tape or with ``tf.gradients``.

1. Eagerly and in functions such gradients are reduced: should the script have done so already, all ranks hold the same
   values, and their mean is that value.
2. In a session's graph scripts reduce by hand (``npu_allreduce``), so nothing is added; a warning says it where no
   operation of ours stands above the gradient.
"""

from __future__ import annotations

import warnings
from typing import Any, List

import tensorflow as tf

import npucoll
from npucoll_keras import compat, reduction
from npucoll_keras.disguise import Hook

__all__ = ["settle"]


def settle(pairs: List[Any], hook: Hook) -> List[Any]:
    """Return ``pairs`` of (gradient, variable) as ``apply_gradients`` should use them."""
    gradients = [pair[0] for pair in pairs]
    if hook.suppressed or hook.knows(gradients):
        return pairs
    if compat.eager_outside_functions():
        return reduction.mean_pairs(pairs)
    if npucoll.size() > 1 and not all(one is None or _reduced_above(one) for one in gradients):
        warnings.warn(
            "apply_gradients() of a wrapped optimizer got gradients that no rank reduced: ranks will drift apart. "
            "Compute them with the optimizer's compute_gradients(), get_gradients() or minimize(), or pass them "
            "through npu_allreduce() first",
            RuntimeWarning,
            stacklevel=4,
        )
    return pairs


def _reduced_above(gradient: Any) -> bool:
    """Return whether an operation of npucoll is among those that ``gradient`` is computed from."""
    if isinstance(gradient, tf.IndexedSlices):
        gradient = gradient.values
    seen = {gradient.op}
    pending = [gradient.op]
    while pending:
        op = pending.pop()
        if op.type.startswith("Npucoll"):
            return True
        above = [tensor.op for tensor in op.inputs if tensor.op not in seen]
        seen.update(above)
        pending.extend(above)
    return False
