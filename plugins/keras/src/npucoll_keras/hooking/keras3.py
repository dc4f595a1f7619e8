"""Keras 3: ``apply`` is where every way of training meets, before clipping and before the update."""

from __future__ import annotations

from typing import Any, Callable, Dict

from npucoll_keras import reduction
from npucoll_keras.disguise import Hook

__all__ = ["methods"]


def methods(plain: Any, hook: Hook) -> Dict[str, Callable[..., Any]]:
    """Return ``apply`` with the reduction in front."""

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if not hook.suppressed:
            grads = reduction.mean_of_distinct_rows(grads)
        return plain.apply(self, grads, trainable_variables)

    return {"apply": apply}
