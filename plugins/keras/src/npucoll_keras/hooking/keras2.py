"""Keras 2 and tf_keras: the method in which replicas of tf.distribute would be added up.

Clipping, weight decay and moving averages come after it, and LossScaleOptimizer calls it before it looks for overflow.
"""

from __future__ import annotations

from typing import Any, Callable, Dict

from npucoll_keras import reduction
from npucoll_keras.disguise import Hook

__all__ = ["legacy_methods", "methods"]


def methods(plain: Any, hook: Hook) -> Dict[str, Callable[..., Any]]:
    """Return ``aggregate_gradients`` of the optimizers of Keras 2.11 and later."""

    def aggregate_gradients(self: Any, grads_and_vars: Any) -> Any:
        return plain.aggregate_gradients(self, reduction.mean_pairs(grads_and_vars))

    return {"aggregate_gradients": aggregate_gradients}


def legacy_methods(plain: Any, hook: Hook) -> Dict[str, Callable[..., Any]]:
    """Return ``_aggregate_gradients`` of the optimizers of ``keras.optimizers.legacy``."""

    def _aggregate_gradients(self: Any, grads_and_vars: Any) -> Any:
        return plain._aggregate_gradients(self, reduction.mean_pairs(grads_and_vars))

    return {"_aggregate_gradients": _aggregate_gradients}
