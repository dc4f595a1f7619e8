"""``npu_distributed_optimizer_wrapper``: the same optimizer object, whose gradients are averages over all ranks."""

from __future__ import annotations

from typing import Any, List, Tuple, TypeVar

from npucoll.errors import UnsupportedError
from npucoll_tf1.gradients import average, settle

__all__ = ["Averaging", "check_optimizer", "npu_distributed_optimizer_wrapper"]

Optimizer = TypeVar("Optimizer")


class Averaging:
    """A mixin over a ``tf.train`` optimizer class: ``compute_gradients`` averages over all ranks."""

    def compute_gradients(self, *args: Any, **kwargs: Any) -> List[Tuple[Any, Any]]:
        """Do what the optimizer's own does, then average; returns a list of (gradient, variable), Nones in place."""
        return average(super().compute_gradients(*args, **kwargs))  # type: ignore[misc]  # the optimizer class has it

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Do what the optimizer's own does. In eager mode gradients that nobody averaged are averaged first."""
        pairs = settle(grads_and_vars)
        return super().apply_gradients(pairs, *args, **kwargs)  # type: ignore[misc]  # the optimizer class has it


def npu_distributed_optimizer_wrapper(optimizer: Optimizer) -> Optimizer:
    """Make ``optimizer`` average its gradients over all ranks, and return it: the same object.

    ``optimizer`` is a ``tf.train`` optimizer, or anything with its ``compute_gradients`` and ``apply_gradients``.
    ``compute_gradients``, and so ``minimize``, averages; ``apply_gradients`` does not, in a graph, so gradients that a
    script computes by itself go through ``npu_allreduce``. Wrapping again changes nothing. UnsupportedError for a Keras
    optimizer, which the mode ``keras`` wraps.
    """
    check_optimizer(optimizer)
    kind = type(optimizer)
    if not issubclass(kind, Averaging):
        # A class of its own instead of functions set on the object: copies, and methods that call super(), stay right.
        averaging = type(kind.__name__, (Averaging, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})
        optimizer.__class__ = averaging
    return optimizer


def check_optimizer(optimizer: Any) -> None:
    """Raise UnsupportedError unless ``optimizer`` is of the ``tf.train`` kind."""
    if isinstance(optimizer, str) or _is_keras(optimizer):
        what = f"the name {optimizer!r}" if isinstance(optimizer, str) else type(optimizer).__name__
        raise UnsupportedError(
            f"the mode 'tf1' wraps tf.train optimizers; {what} is a Keras optimizer: use npucoll.enable('keras') "
            "and its npu_distributed_optimizer_wrapper"
        )
    if isinstance(optimizer, type) or not all(
        callable(getattr(optimizer, method, None)) for method in ("compute_gradients", "apply_gradients")
    ):
        raise UnsupportedError(
            f"expected a tf.train optimizer, such as tf.compat.v1.train.AdamOptimizer(0.001), found {optimizer!r}"
        )


def _is_keras(optimizer: Any) -> bool:
    kinds = type(optimizer).__mro__
    return any({"keras", "tf_keras"}.intersection(kind.__module__.split(".")) for kind in kinds)
