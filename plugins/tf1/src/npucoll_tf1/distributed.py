"""``NPUDistributedOptimizer``: an optimizer around another one, whose gradients are averages over all ranks."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import tensorflow.compat.v1 as tf

from npucoll.errors import ConfigError, UnsupportedError
from npucoll_tf1.gradients import average, settle
from npucoll_tf1.wrapper import Averaging, check_optimizer

__all__ = ["NPUDistributedOptimizer"]


class NPUDistributedOptimizer(Averaging, tf.train.Optimizer):  # type: ignore[misc]  # TensorFlow has no types
    """A ``tf.train.Optimizer`` that computes gradients with ``optimizer`` and averages them over all ranks.

    ``optimizer`` is also accepted under its older name, ``tf_optimizer``. ``name`` is "Distributed" and the class of
    ``optimizer`` unless it is given. Slots, variables and the application of gradients are those of ``optimizer``.
    ``is_weight_update_sharding=True``, where every rank updates some of the variables, is an UnsupportedError.
    """

    def __init__(
        self,
        optimizer: Any = None,
        is_weight_update_sharding: bool = False,
        name: Optional[str] = None,
        tf_optimizer: Any = None,
    ) -> None:
        if (optimizer is None) == (tf_optimizer is None):
            raise ConfigError(
                "NPUDistributedOptimizer takes one optimizer, as optimizer= or, in older code, tf_optimizer="
            )
        wrapped = tf_optimizer if optimizer is None else optimizer
        check_optimizer(wrapped)
        if is_weight_update_sharding:
            raise UnsupportedError(
                "is_weight_update_sharding=True is not supported: leave it out, and every rank updates all variables, "
                "which gives the same weights"
            )
        self._optimizer = wrapped
        super().__init__(use_locking=False, name=name or f"Distributed{type(wrapped).__name__}")

    def compute_gradients(self, *args: Any, **kwargs: Any) -> List[Tuple[Any, Any]]:
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        return list(pairs) if isinstance(self._optimizer, Averaging) else average(pairs)

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = grads_and_vars if isinstance(self._optimizer, Averaging) else settle(grads_and_vars)
        return self._optimizer.apply_gradients(pairs, *args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.variables(*args, **kwargs)
