"""Keras of TensorFlow 1.15: gradients are reduced where the optimizer computes them, and clipped after that.

1. Graphs: ``fit``, ``train_on_batch`` and ``get_updates`` call ``get_gradients``, ``minimize`` calls
   ``_compute_gradients``. Both clip inside. The optimizer's clipping is taken away for the call and done to the mean.
2. Eager mode: ``fit`` and tapes call ``apply_gradients`` alone, so that reduces what was not reduced before.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterable, Iterator, List

import tensorflow as tf

from npucoll_keras import reduction
from npucoll_keras.disguise import Hook
from npucoll_keras.hooking import unreduced

__all__ = ["methods"]


def methods(plain: Any, hook: Hook) -> Dict[str, Callable[..., Any]]:
    """Return the three methods; each gradient is reduced in one of them."""

    def get_gradients(self: Any, loss: Any, params: Any) -> List[Any]:
        with _unclipped(self) as clips:
            gradients = plain.get_gradients(self, loss, params)
        return _finish(gradients, clips, hook)

    def _compute_gradients(self: Any, loss: Any, var_list: Any, grad_loss: Any = None) -> List[Any]:
        with _unclipped(self) as clips:
            pairs = plain._compute_gradients(self, loss, var_list, grad_loss)
        gradients = _finish([gradient for gradient, _ in pairs], clips, hook)
        return [(gradient, variable) for gradient, (_, variable) in zip(gradients, pairs)]

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        return plain.apply_gradients(self, unreduced.settle(list(grads_and_vars), hook), *args, **kwargs)

    return {
        "get_gradients": get_gradients,
        "_compute_gradients": _compute_gradients,
        "apply_gradients": apply_gradients,
    }


def _finish(gradients: Iterable[Any], clips: Dict[str, float], hook: Hook) -> List[Any]:
    clipped = [_clip(gradient, clips) for gradient in reduction.mean(gradients)]
    hook.note(clipped)
    return clipped


@contextlib.contextmanager
def _unclipped(optimizer: Any) -> Iterator[Dict[str, float]]:
    """Take the optimizer's clipping away and give it back at the end; yields what it was."""
    clips = {name: optimizer.__dict__.pop(name) for name in ("clipnorm", "clipvalue") if name in optimizer.__dict__}
    try:
        yield clips
    finally:
        optimizer.__dict__.update(clips)


def _clip(gradient: Any, clips: Dict[str, float]) -> Any:
    if gradient is not None and "clipnorm" in clips:
        gradient = tf.clip_by_norm(gradient, clips["clipnorm"])
    if gradient is not None and "clipvalue" in clips:
        gradient = tf.clip_by_value(gradient, -clips["clipvalue"], clips["clipvalue"])
    return gradient
