"""The Kerases of this process, and the names in them that differ between versions, each resolved once.

A process may hold several: tf.keras, tf_keras and keras. An optimizer says by its base class which it belongs to; what
the base class can do, not its version, says which generation it is.
"""

from __future__ import annotations

import enum
import sys
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple

import tensorflow as tf

__all__ = [
    "Generation",
    "default_keras",
    "eager_outside_functions",
    "executing_eagerly",
    "generation_of",
    "graph_session",
    "inner_optimizer",
    "innermost",
    "installed",
    "is_loss_scale_optimizer",
    "type_spec",
]


class Generation(enum.Enum):
    """The five kinds of optimizer that Keras accepts, told apart by the method in which gradients pass."""

    KERAS3 = "Keras 3"
    KERAS2 = "Keras 2"
    LEGACY = "Keras 2, legacy"
    TF1 = "Keras of TensorFlow 1.15"
    TRAIN = "tf.compat.v1.train"


class Keras(NamedTuple):
    """One Keras: its module and the classes that we look for."""

    module: Any
    optimizers: Tuple[type, ...]
    loss_scale: Tuple[type, ...]


def eager_outside_functions() -> bool:
    """Return whether variables act at once outside of functions: not in a graph that a session runs."""
    if tf.executing_eagerly():
        return True
    with tf.init_scope():
        return bool(tf.executing_eagerly())


def executing_eagerly() -> bool:
    """Return whether operations act at once here."""
    return bool(tf.executing_eagerly())


def graph_session() -> Any:
    """Return the session in which Keras trains in graph mode, with Keras's variables initialized."""
    return tf.compat.v1.keras.backend.get_session()


def type_spec(value: Any) -> Any:
    """Return what TensorFlow traces a function for when it is called with ``value``."""
    return tf.type_spec_from_value(value) if tf.is_tensor(value) else value


def default_keras() -> Any:
    """Return tf.keras, which is the Keras that optimizers' names and our callback belong to."""
    return tf.keras


def installed() -> List[Keras]:
    """Return the Kerases that this process has loaded, tf.keras first."""
    found: List[Keras] = []
    for module in _modules():
        optimizers = [module.optimizers.Optimizer]
        if not hasattr(optimizers[0], "stateless_apply"):
            legacy = getattr(module.optimizers, "legacy", None)
            optimizers += [legacy.Optimizer] if legacy is not None else []
        if all(one.optimizers[0] is not optimizers[0] for one in found):
            found.append(Keras(module, tuple(optimizers), tuple(_loss_scale_classes(module))))
    return found


def generation_of(optimizer: Any) -> Optional[Generation]:
    """Return the generation of ``optimizer``; None where it is no optimizer that Keras accepts."""
    for keras in installed():
        for base in keras.optimizers:
            if isinstance(optimizer, base):
                return _generation(base)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return Generation.TRAIN
    return None


def is_loss_scale_optimizer(optimizer: Any) -> bool:
    """Return whether ``optimizer`` scales the loss for another one."""
    return any(isinstance(optimizer, keras.loss_scale) for keras in installed() if keras.loss_scale)


def inner_optimizer(optimizer: Any) -> Any:
    """Return the optimizer that the LossScaleOptimizer ``optimizer`` wraps."""
    inner = getattr(optimizer, "inner_optimizer", None)
    # TensorFlow 1.15 has no public name for it.
    return optimizer._optimizer if inner is None else inner


def innermost(optimizer: Any) -> Any:
    """Return the optimizer that updates the weights."""
    while is_loss_scale_optimizer(optimizer):
        optimizer = inner_optimizer(optimizer)
    return optimizer


def _modules() -> Iterator[Any]:
    # TensorFlow from 2.16 raises ImportError for tf.keras where Keras is not installed.
    try:
        yield tf.keras
    except ImportError:
        pass
    for name in ("keras", "tf_keras"):
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "optimizers"):
            yield module


def _loss_scale_classes(module: Any) -> Iterator[type]:
    for path in (
        ("optimizers", "LossScaleOptimizer"),
        ("mixed_precision", "LossScaleOptimizer"),
        ("mixed_precision", "experimental", "LossScaleOptimizer"),
    ):
        found = module
        for name in path:
            found = getattr(found, name, None)
        if found is not None:
            yield found
            return


def _generation(base: type) -> Optional[Generation]:
    for method, generation in (
        ("stateless_apply", Generation.KERAS3),
        ("aggregate_gradients", Generation.KERAS2),
        ("_aggregate_gradients", Generation.LEGACY),
        ("get_gradients", Generation.TF1),
    ):
        if hasattr(base, method):
            return generation
    return None
