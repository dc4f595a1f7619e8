"""The callback that gives all ranks the root's variables before the first gradient.

1. Where the model's weights exist when training begins, the compiled optimizer's variables are made too, and everything
   is broadcast at once. In graph mode Keras has made them all by then.
2. A model that learns its input's shape from the first batch has no weights yet, and a custom model's further
   optimizers know only in the step which weights are theirs. For these the model's ``train_step`` is replaced for the
   time until it is first traced: it traces the real one, which makes every variable and runs nothing, then broadcasts,
   then goes on.
3. All ranks thus broadcast the same variables, though one may have restored a checkpoint and traced less than the
   others.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

import tensorflow as tf

from npucoll import ConfigError
from npucoll_keras import compat, variables

__all__ = ["NPUBroadcastGlobalVariablesCallback"]


class NPUBroadcastGlobalVariablesCallback(compat.default_keras().callbacks.Callback):  # type: ignore[misc]  # no types
    """Overwrites weights, batch-norm statistics and the optimizer's variables with those of ``root_rank``.

    The optimizer's are its slots, iterations, learning rate and loss scale. It acts once in each ``fit``, before the
    first batch trains. Give it to ``fit`` on every rank.
    """

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        self._root = int(root_rank)
        self._operations: Dict[Any, Any] = {}
        self._waiting: Optional[_FirstStep] = None

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._restore()
        # TensorFlow 1.15 has no train_step, and makes the weights before it calls us.
        if hasattr(model, "train_step") and compat.eager_outside_functions() and not _ready(model):
            self._waiting = _FirstStep(model, self._broadcast)

    def on_train_begin(self, logs: Any = None) -> None:
        if self._waiting is None:
            self._broadcast(self.model)

    def on_train_end(self, logs: Any = None) -> None:
        self._restore()

    # tf_keras asks every callback, also one whose base is Keras 3's, whether it wants to be called at each batch.
    def _implements_train_batch_hooks(self) -> bool:
        return False

    _implements_test_batch_hooks = _implements_train_batch_hooks
    _implements_predict_batch_hooks = _implements_train_batch_hooks

    def _restore(self) -> None:
        """Take back what was done to the model; a fit that raised has not done so at its end."""
        if self._waiting is not None:
            self._waiting.restore()
            self._waiting = None

    def _broadcast(self, model: Any) -> None:
        if not compat.executing_eagerly():
            self._broadcast_in_session(model)
            return
        optimizers = variables.optimizers_of(model)
        # Where there are several, a custom step decides which weights are whose.
        if len(optimizers) == 1 and optimizers[0] is getattr(model, "optimizer", None):
            variables.build_optimizer(optimizers[0], model.trainable_weights)
        variables.broadcast_variables(variables.model_variables(model), self._root)

    def _broadcast_in_session(self, model: Any) -> None:
        session = compat.graph_session()
        with session.graph.as_default():
            found = variables.model_variables(model)
            key = (session.graph, *map(id, found))
            if key not in self._operations:
                self._operations[key] = variables.broadcast_variables(found, self._root)
        # Again, for the variables that the line above may have been the first to name.
        compat.graph_session().run(self._operations[key])


class _FirstStep:
    """Stands in for a model's ``train_step`` until the first call has made the variables and broadcast them."""

    def __init__(self, model: Any, broadcast: Callable[[Any], None]) -> None:
        self._model = model
        self._broadcast = broadcast
        self._original = model.train_step
        self._of_instance = model.__dict__.get("train_step")
        self._done = False

        def train_step(*data: Any) -> Any:
            self._prepare(list(data))
            return self._original(*data)

        model.train_step = train_step
        if getattr(model, "train_function", None) is not None:
            model.make_train_function(force=True)

    def restore(self) -> None:
        """Give the model its own ``train_step`` back."""
        del self._model.__dict__["train_step"]
        if self._of_instance is not None:
            self._model.train_step = self._of_instance

    @tf.autograph.experimental.do_not_convert
    def _prepare(self, data: List[Any]) -> None:
        if self._done:
            return
        try:
            self._trace(data)
        except Exception as error:
            if not tf.executing_eagerly():
                raise
            raise ConfigError(
                "the model's variables must exist on every rank before its first step, and making them by tracing its "
                f"train_step failed ({type(error).__name__}: {error}); build the model and its optimizer before fit"
            ) from error
        with tf.init_scope():
            self._broadcast(self._model)
        self._done = True

    def _trace(self, data: List[Any]) -> None:
        specs = [tf.nest.map_structure(compat.type_spec, one) for one in data]
        # As Keras will trace it: Keras 3, the one with stateless_call, converts no control flow.
        converts = not hasattr(self._model, "stateless_call")
        tf.function(self._original, autograph=converts).get_concrete_function(*specs)


def _ready(model: Any) -> bool:
    """Return whether the variables of ``model`` exist, or can be made from what is known before the first batch."""
    layers = list(model._flatten_layers(include_self=False))
    if not (model.built or (layers and all(layer.built for layer in layers))):
        return False
    compiled = getattr(model, "optimizer", None)
    return all(one is compiled or variables.is_built(one) for one in variables.optimizers_of(model))
