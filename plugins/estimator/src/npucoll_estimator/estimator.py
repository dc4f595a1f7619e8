"""``NPUEstimator``: an Estimator that trains on all ranks, of which the first one writes.

1. ``train`` is called by every rank. First the ranks exchange what they found: rank 0's global step decides for all
   whether ``max_steps`` is reached, and its temporary directory becomes everybody's where no ``model_dir`` was given.
2. The broadcast hook comes before all other hooks, so that those already see the variables of rank 0.
3. The other ranks write neither checkpoints nor summaries, so that one ``model_dir`` serves them all. When training
   ends they wait for rank 0, which may still be saving: after ``train`` every rank finds the same checkpoint.
4. A rank that ends its training early would leave the others waiting: even.py makes that an error.
5. ``evaluate`` and ``predict`` only read, and need no other rank.
"""

from __future__ import annotations

import tempfile
from typing import Any, Callable, Optional, Sequence

import tensorflow.compat.v1 as tf

import npucoll
import npucoll_tensorflow
from npucoll_estimator.even import EvenSteps
from npucoll_estimator.run_config import STRATEGIES, NPURunConfig, refuse_strategies
from npucoll_estimator.spec import HostCallHook
from npucoll_tf1 import NPUBroadcastGlobalVariablesHook

__all__ = ["NPUEstimator"]

BEFORE, AFTER = "npucoll_estimator: before train", "npucoll_estimator: after train"


class NPUEstimator(tf.estimator.Estimator):  # type: ignore[misc]  # TensorFlow has no types
    """A ``tf.estimator.Estimator`` whose ``train`` works on all ranks together.

    ``model_fn`` wraps its optimizer with ``npu_distributed_optimizer_wrapper`` and returns an EstimatorSpec or an
    NPUEstimatorSpec. ``config`` is an NPURunConfig, or a RunConfig without a tf.distribute strategy (else ValueError).
    All ranks use the same ``model_dir``. ``job_start_file`` is accepted and has no meaning.

    Every rank calls ``train``, or ``tf.estimator.train_and_evaluate``, where rank 0 evaluates and the others wait for
    it; the metrics are returned on rank 0. ``evaluate`` and ``predict`` may be called by any of them. Only rank 0
    writes checkpoints and summaries, and runs ``training_chief_hooks``, saving listeners and a ``host_call``, unless
    the configuration says ``save_on_all_ranks=True``.
    """

    # How often this process has trained: a number that is the same on all ranks.
    _trainings = 0

    def __init__(
        self,
        model_fn: Optional[Callable[..., Any]] = None,
        model_dir: Optional[str] = None,
        config: Any = None,
        params: Any = None,
        job_start_file: str = "",
        warm_start_from: Any = None,
    ) -> None:
        config = NPURunConfig() if config is None else config
        if isinstance(config, tf.estimator.RunConfig):
            _check(config)
        self._model_dir: str
        self._config: Any
        self._broadcasts = not getattr(config, "horovod_mode", False)
        self._writes = npucoll.rank() == 0 or getattr(config, "save_on_all_ranks", False)
        self._temporary = model_dir is None and getattr(config, "model_dir", None) is None
        if not self._writes and isinstance(config, tf.estimator.RunConfig):
            config = config.replace(
                save_checkpoints_steps=None, save_checkpoints_secs=None, save_summary_steps=0, log_step_count_steps=None
            )
        super().__init__(
            model_fn=model_fn, model_dir=model_dir, config=config, params=params, warm_start_from=warm_start_from
        )

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Optional[Sequence[Any]] = None,
        steps: Optional[int] = None,
        max_steps: Optional[int] = None,
        saving_listeners: Optional[Sequence[Any]] = None,
    ) -> NPUEstimator:
        """Train as an Estimator does, on all ranks together; every rank calls this with the same step counts.

        Errors of collectives are npucoll's own: MismatchError, PeerLost, CollectiveTimeout.
        """
        arguments = {"steps": steps, "max_steps": max_steps, "saving_listeners": saving_listeners}
        if not self._writes:
            arguments["saving_listeners"] = None
        hooks = list(hooks or ())
        if npucoll.size() == 1:
            super().train(input_fn, hooks=hooks, **arguments)
            return self
        start = self._agree()
        if max_steps is not None and start >= max_steps:
            tf.logging.info("Skipping training since max_steps has already saved.")
            return self
        comm = npucoll.communicator()
        NPUEstimator._trainings += 1
        try:
            with EvenSteps(comm, NPUEstimator._trainings) as even:
                first = [NPUBroadcastGlobalVariablesHook(0)] if self._broadcasts else []
                super().train(input_fn, hooks=[*first, even, *hooks], **arguments)
                comm.barrier(name=AFTER)
        except tf.errors.OpError as error:
            ours = npucoll_tensorflow.translate(error)
            if ours is None:
                raise
            raise ours from error
        return self

    def _agree(self) -> int:
        """Wait for the other ranks, take over rank 0's temporary directory, and return rank 0's global step."""
        latest = tf.train.latest_checkpoint(self._model_dir)
        step = 0
        if latest is not None:
            reader = tf.train.NewCheckpointReader(latest)
            step = int(reader.get_tensor("global_step")) if reader.has_tensor("global_step") else 0
        first = npucoll.communicator().allgather_object((self._model_dir, step), name=BEFORE)[0]
        if self._temporary and not getattr(self._config, "save_on_all_ranks", False):
            self._model_dir = first[0]
            self._config = self._config.replace(model_dir=first[0])
        return first[1]

    def _call_model_fn(self, features: Any, labels: Any, mode: str, config: Any) -> Any:
        """Call the user's function, and leave on other ranks what is for the first one."""
        spec = super()._call_model_fn(features, labels, mode, config)
        if mode != tf.estimator.ModeKeys.TRAIN:
            return spec
        if not self._writes:
            return spec._replace(training_chief_hooks=())
        host_call = getattr(spec, "host_call", None)
        if host_call is not None and npucoll.rank() == 0:
            return spec._replace(training_hooks=(*spec.training_hooks, HostCallHook(host_call)))
        return spec

    def _evaluate_run(
        self, checkpoint_path: Any, scaffold: Any, update_op: Any, eval_dict: Any, all_hooks: Any, output_dir: str
    ) -> Any:
        """Evaluate; what other ranks than the first would write for TensorBoard goes nowhere."""
        arguments = (checkpoint_path, scaffold, update_op, eval_dict, all_hooks)
        if self._writes:
            return super()._evaluate_run(*arguments, output_dir)
        with tempfile.TemporaryDirectory(prefix="npucoll-eval-") as nowhere:
            return super()._evaluate_run(*arguments, nowhere)

    def _assert_members_are_not_overridden(self) -> None:
        """Allow this class to override ``train``; Estimator asks this method whether a subclass may."""


def _check(config: Any) -> None:
    refuse_strategies(
        {name.lstrip("_"): getattr(config, name, None) for name in (*STRATEGIES, "_experimental_distribute")}
    )
    if config.cluster_spec:
        raise ValueError(
            "the configuration describes a TensorFlow cluster (from TF_CONFIG); npucoll's ranks need none: "
            "use NPURunConfig"
        )
