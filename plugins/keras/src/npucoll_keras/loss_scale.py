"""LossScaleOptimizer: all ranks see an overflow that happened on one.

1. Keras 2 reduces before it looks for infinities; nothing to do.
2. Keras 3, and TensorFlow 1.15 in eager mode, look first, on this rank alone. The rank that overflowed would skip the
   step and with it the reduction that the others wait in. So the LossScaleOptimizer itself reduces, the scaled
   gradients, before it looks, and the inner optimizer's hook lets them pass. One rank's infinity is infinite in the
   mean of all ranks.
3. Keras may make the LossScaleOptimizer in ``compile``, out of our sight; so it is the class that is changed, once, and
   it acts as before for an inner optimizer that is not wrapped.
"""

from __future__ import annotations

import functools
from typing import Any

from npucoll_keras import compat, reduction
from npucoll_keras.compat import Generation
from npucoll_keras.disguise import hook_of

__all__ = ["reduce_before_check"]


def reduce_before_check(generation: Generation) -> None:
    """Make the LossScaleOptimizers of ``generation`` reduce before they look for overflow; again: does nothing."""
    for keras in compat.installed():
        for scaler in keras.loss_scale:
            if generation is Generation.KERAS3 and hasattr(keras.optimizers[0], "stateless_apply"):
                _patch(scaler, "apply", _reducing_apply)
            elif generation is Generation.TF1:
                _patch(scaler, "apply_gradients", _reducing_apply_gradients)


def _patch(owner: Any, name: str, make: Any) -> None:
    original = getattr(owner, name)
    if not hasattr(original, "_npucoll_original"):
        patched: Any = functools.wraps(original)(make(original))
        patched._npucoll_original = original
        setattr(owner, name, patched)


def _reducing_apply(original: Any) -> Any:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        hook = hook_of(compat.innermost(self))
        if hook is None or hook.suppressed:
            return original(self, grads, trainable_variables)
        reduced = reduction.mean_of_distinct_rows(grads)
        with hook.suppress():
            return original(self, reduced, trainable_variables)

    return apply


def _reducing_apply_gradients(original: Any) -> Any:
    def apply_gradients(self: Any, grads_and_vars: Any, name: Any = None) -> Any:
        hook = hook_of(compat.innermost(self))
        if hook is None or hook.suppressed:
            return original(self, grads_and_vars, name)
        pairs = list(grads_and_vars)
        if compat.eager_outside_functions():
            pairs = reduction.mean_pairs(pairs)
        with hook.suppress():
            return original(self, pairs, name)

    return apply_gradients
