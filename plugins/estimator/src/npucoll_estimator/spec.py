"""``NPUEstimatorSpec``: what a ``model_fn`` returns, with a ``host_call``."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow.compat.v1 as tf

__all__ = ["HostCallHook", "NPUEstimatorSpec"]


class NPUEstimatorSpec(tf.estimator.EstimatorSpec):  # type: ignore[misc]  # TensorFlow has no types
    """A ``tf.estimator.EstimatorSpec`` with one more argument.

    ``host_call`` is ``(function, tensors)``: while training, rank 0 of an NPUEstimator calls ``function`` with the
    tensors (a list by position, a dict by name) as it builds its graph, and runs the operations that come back with
    every step.
    """

    def __new__(
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Any = None,
        export_outputs: Any = None,
        training_chief_hooks: Any = None,
        training_hooks: Any = None,
        scaffold: Any = None,
        evaluation_hooks: Any = None,
        prediction_hooks: Any = None,
        host_call: Any = None,
    ) -> NPUEstimatorSpec:
        """Check ``host_call``, and the rest as an EstimatorSpec does."""
        if host_call is not None and not (
            isinstance(host_call, (list, tuple)) and len(host_call) == 2 and callable(host_call[0])
        ):
            raise ValueError(f"host_call must be (function, tensors), found {host_call!r}")
        spec = super().__new__(
            cls,
            mode=mode,
            predictions=predictions,
            loss=loss,
            train_op=train_op,
            eval_metric_ops=eval_metric_ops,
            export_outputs=export_outputs,
            training_chief_hooks=training_chief_hooks,
            training_hooks=training_hooks,
            scaffold=scaffold,
            evaluation_hooks=evaluation_hooks,
            prediction_hooks=prediction_hooks,
        )
        spec.host_call = host_call
        return spec


class HostCallHook(tf.train.SessionRunHook):  # type: ignore[misc]  # TensorFlow has no types
    """Runs what a ``host_call`` returned with every step."""

    def __init__(self, host_call: Any) -> None:
        function, tensors = host_call
        returned = function(**tensors) if isinstance(tensors, dict) else function(*tensors)
        self._operations: Optional[Any] = returned

    def before_run(self, run_context: Any) -> Any:
        return None if self._operations is None else tf.train.SessionRunArgs(self._operations)
