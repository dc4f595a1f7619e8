"""Which variables a model and its optimizers hold, in an order that is the same on all ranks, and their broadcast."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List

import tensorflow as tf

import npucoll_tensorflow
from npucoll_keras import compat
from npucoll_keras.compat import Generation

__all__ = ["broadcast_variables", "build_optimizer", "is_built", "model_variables", "optimizers_of"]


def broadcast_variables(variables: Iterable[Any], root_rank: int = 0) -> Any:
    """Overwrite ``variables`` with those of rank ``root_rank``; all ranks pass the same ones in the same order.

    Variables of TensorFlow or Keras, of any dtype, in one fused operation. Eagerly it is done on return, which is None;
    in a graph the operation that does it is returned. A list that differs between ranks is a MismatchError; a variable
    that is not initialized on the root is an error that names it, on other ranks it need not be.
    """
    return npucoll_tensorflow.broadcast_variables([_plain(one) for one in variables], root_rank)


def model_variables(model: Any) -> List[Any]:
    """Return weights, batch-norm statistics, slots, iterations, learning rates and loss scales of ``model``."""
    found = list(model.weights)
    for optimizer in optimizers_of(model):
        found.extend(_optimizer_variables(optimizer))
    return list({id(one): one for one in map(_plain, found)}.values())


def optimizers_of(model: Any) -> List[Any]:
    """Return the optimizer that ``model`` was compiled with, and those that are its attributes, by name."""
    found = [getattr(model, "optimizer", None)]
    for value in _by_name(vars(model)):
        if isinstance(value, dict):
            value = list(value.values())
        found.extend(value if isinstance(value, (list, tuple)) else [value])
    optimizers = [one for one in found if _is_optimizer(one)]
    return list({id(one): one for one in optimizers}.values())


def build_optimizer(optimizer: Any, trainable: List[Any]) -> None:
    """Create the variables of ``optimizer`` for the weights ``trainable`` where that is not done yet."""
    optimizer = _train_optimizer(optimizer)
    generation = compat.generation_of(optimizer)
    if generation in (Generation.KERAS3, Generation.KERAS2):
        if not is_built(optimizer):
            optimizer.build(trainable)
    elif generation is Generation.LEGACY:
        optimizer._create_all_weights(trainable)
    elif generation is Generation.TF1:
        inner = compat.innermost(optimizer)
        # Reading makes it.
        _ = inner.iterations
        inner._create_hypers()
        inner._create_slots(trainable)
    else:
        optimizer._create_slots(trainable)


def is_built(optimizer: Any) -> bool:
    """Return whether ``optimizer`` has made its variables, as far as it says so."""
    optimizer = compat.innermost(optimizer)
    return any(getattr(optimizer, name, False) for name in ("built", "_built", "_hypers_created"))


def _plain(variable: Any) -> Any:
    """Return the TensorFlow variable of a Keras variable."""
    if isinstance(variable, tf.Variable):
        return variable
    value = getattr(variable, "value", None)
    return variable if value is None or callable(value) else value


def _is_optimizer(value: Any) -> bool:
    return value is not None and compat.generation_of(_train_optimizer(value)) is not None


def _train_optimizer(optimizer: Any) -> Any:
    """Return the tf.train optimizer inside of what Keras makes of one, any other object as it is."""
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, tf.compat.v1.train.Optimizer) else optimizer


def _optimizer_variables(optimizer: Any) -> Iterator[Any]:
    while compat.is_loss_scale_optimizer(optimizer):
        yield from _loss_scale_variables(optimizer)
        optimizer = compat.inner_optimizer(optimizer)
    if isinstance(_train_optimizer(optimizer), tf.compat.v1.train.Optimizer):
        if optimizer is not _train_optimizer(optimizer):
            yield optimizer.iterations
        yield from _train_optimizer(optimizer).variables()
        return
    variables = optimizer.variables
    yield from variables() if callable(variables) else variables
    # Outside of Keras 3 some are not among these, such as a learning rate or Nadam's product.
    more = [*_by_name(getattr(optimizer, "_hyper", {})), *_by_name(vars(optimizer))]
    yield from (one for one in more if isinstance(one, tf.Variable))


def _by_name(attributes: Dict[str, Any]) -> List[Any]:
    return [attributes[name] for name in sorted(attributes)]


def _loss_scale_variables(optimizer: Any) -> Iterator[Any]:
    if compat.generation_of(optimizer) is Generation.KERAS3:
        yield from optimizer._variables
        return
    yield from _by_name(getattr(optimizer._loss_scale, "_weights", {}))
