"""The wrapper: finds the optimizer that updates the weights and puts the averaging of gradients into it."""

from __future__ import annotations

from typing import Any, Callable, Dict

from npucoll import ConfigError, UnsupportedError
from npucoll_keras import compat, disguise, jit, loss_scale
from npucoll_keras.compat import Generation
from npucoll_keras.hooking import keras2, keras3, tf1, train

__all__ = ["KerasDistributeOptimizer", "npu_distributed_optimizer_wrapper"]

_METHODS: Dict[Generation, Callable[[Any, disguise.Hook], Dict[str, Callable[..., Any]]]] = {
    Generation.KERAS3: keras3.methods,
    Generation.KERAS2: keras2.methods,
    Generation.LEGACY: keras2.legacy_methods,
    Generation.TF1: tf1.methods,
    Generation.TRAIN: train.methods,
}


def npu_distributed_optimizer_wrapper(optimizer: Any) -> Any:
    """Make ``optimizer`` average its gradients over all ranks, once a step, and return the same object.

    ``optimizer``: a Keras optimizer (TensorFlow 1.15's, Keras 2's new and legacy ones, tf_keras's, Keras 3's), a
    LossScaleOptimizer around one, an optimizer of ``tf.compat.v1.train`` that is given to Keras, or the name of an
    optimizer of ``tf.keras`` such as "adam". Wrap before the model is trained; before or after ``compile`` does not
    matter. Wrapping again changes nothing. What is saved of a wrapped optimizer is the plain one.

    Gradients may be dense, IndexedSlices or None. They are clipped after they are averaged. ConfigError for an unknown
    name, UnsupportedError for any other object and for Keras 3 on another backend than TensorFlow.
    """
    if isinstance(optimizer, str):
        optimizer = _by_name(optimizer)
    inner = compat.innermost(optimizer)
    generation = compat.generation_of(inner)
    if generation is None:
        raise UnsupportedError(_refusal(optimizer))
    if generation is Generation.KERAS3:
        _check_backend(inner)
    disguise.put_on(inner, _METHODS[generation])
    loss_scale.reduce_before_check(generation)
    jit.guard()
    return optimizer


class _Wrapped(type):
    """Makes ``isinstance(optimizer, KerasDistributeOptimizer)`` true for every wrapped optimizer."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return compat.generation_of(instance) is not None and disguise.hook_of(compat.innermost(instance)) is not None


class KerasDistributeOptimizer(metaclass=_Wrapped):
    """The wrapper under the name of a class: ``KerasDistributeOptimizer(optimizer)`` returns ``optimizer``, wrapped.

    ``name`` is accepted and not used: what is saved keeps the optimizer's own. Hyperparameters belong to the optimizer
    itself; other arguments are an UnsupportedError.
    """

    def __new__(cls, optimizer: Any, name: str = "NpuKerasOptimizer", **kwargs: Any) -> Any:
        """Return ``optimizer`` after :func:`npu_distributed_optimizer_wrapper`."""
        if kwargs:
            raise UnsupportedError(
                f"KerasDistributeOptimizer does not know {', '.join(sorted(kwargs))}; give hyperparameters to the "
                "optimizer that is wrapped"
            )
        return npu_distributed_optimizer_wrapper(optimizer)


def _by_name(name: str) -> Any:
    try:
        return compat.default_keras().optimizers.get(name)
    except ValueError as error:
        raise ConfigError(
            f"tf.keras knows no optimizer {name!r}: give one of its names, such as 'adam' or 'sgd'"
        ) from error


def _refusal(optimizer: Any) -> str:
    text = (
        f"cannot wrap {optimizer!r}: expected an optimizer of tf.keras, tf_keras or Keras 3, a legacy Keras optimizer, "
        "one of tf.compat.v1.train, a LossScaleOptimizer around one of these, or the name of one of Keras's"
    )
    if isinstance(optimizer, type):
        text += f"; this is a class: make an object of it, {optimizer.__name__}(…)"
    return text


def _check_backend(optimizer: Any) -> None:
    import keras

    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise UnsupportedError(
            f"Keras runs on the backend {backend!r}; npucoll-keras needs TensorFlow's: set KERAS_BACKEND=tensorflow "
            "before Keras is imported"
        )
