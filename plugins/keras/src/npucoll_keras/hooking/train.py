"""Optimizers of tf.train (tf.compat.v1.train) given to Keras: ``compute_gradients`` reduces."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

from npucoll_keras import reduction
from npucoll_keras.disguise import Hook
from npucoll_keras.hooking import unreduced

__all__ = ["methods"]


def methods(plain: Any, hook: Hook) -> Dict[str, Callable[..., Any]]:
    """Return ``compute_gradients``, and ``apply_gradients`` for those who do not call it (Keras's eager loops)."""

    def compute_gradients(self: Any, *args: Any, **kwargs: Any) -> List[Any]:
        pairs = reduction.mean_pairs(plain.compute_gradients(self, *args, **kwargs))
        hook.note(gradient for gradient, _ in pairs)
        return pairs

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        return plain.apply_gradients(self, unreduced.settle(list(grads_and_vars), hook), *args, **kwargs)

    return {"compute_gradients": compute_gradients, "apply_gradients": apply_gradients}
