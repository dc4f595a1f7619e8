"""``NPURunConfig``: a ``tf.estimator.RunConfig`` with the device's keywords."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import os
import warnings
from typing import Any, Dict, Iterator, Optional

import tensorflow.compat.v1 as tf

__all__ = ["STRATEGIES", "NPURunConfig", "refuse_strategies"]

#: The arguments of a RunConfig that hand the training to a tf.distribute strategy.
STRATEGIES = ("train_distribute", "eval_distribute", "experimental_distribute")

STEPS_BETWEEN_CHECKPOINTS = 100


class NPURunConfig(tf.estimator.RunConfig):  # type: ignore[misc]  # TensorFlow has no types
    """The configuration of an ``NPUEstimator``, or of any Estimator: a ``tf.estimator.RunConfig``.

    ``model_dir``, ``session_config``, ``save_summary_steps``, ``keep_checkpoint_max`` and the like mean what they mean
    there. ``save_checkpoints_steps``: None, with ``save_checkpoints_secs`` None too, is every 100 steps; 0 is never.
    ``save_on_all_ranks=True`` lets every rank write checkpoints and summaries, for ranks that have a ``model_dir``
    each; else an NPUEstimator has rank 0 alone write. ``horovod_mode=True`` says that the script broadcasts the
    variables by itself. Every other keyword describes a device: it is kept as an attribute and has no effect on other
    machines, and so ``iterations_per_loop``, since each run of a session is one step here.

    A tf.distribute strategy (``distribute``, ``train_distribute``, ``eval_distribute``, ``experimental_distribute``)
    is a ValueError: npucoll does its work. Processes described by TF_CONFIG are npucoll's ranks, not a TensorFlow
    cluster.
    """

    def __init__(
        self,
        iterations_per_loop: int = 1,
        profiling_config: Any = None,
        model_dir: Optional[str] = None,
        tf_random_seed: Optional[int] = None,
        save_summary_steps: int = 0,
        save_checkpoints_steps: Optional[int] = None,
        save_checkpoints_secs: Optional[int] = None,
        session_config: Any = None,
        keep_checkpoint_max: int = 5,
        keep_checkpoint_every_n_hours: float = 10000,
        log_step_count_steps: Optional[int] = 100,
        distribute: Any = None,
        enable_data_pre_proc: bool = True,
        precision_mode: Optional[str] = None,
        enable_reduce_precision: bool = False,
        variable_format_optimize: Optional[bool] = None,
        mix_compile_mode: bool = False,
        hcom_parallel: bool = True,
        graph_memory_max_size: Any = None,
        variable_memory_max_size: Any = None,
        dump_config: Any = None,
        stream_max_parallel_num: Any = None,
        is_tailing_optimization: bool = False,
        horovod_mode: bool = False,
        graph_run_mode: int = 1,
        op_debug_level: Any = None,
        *,
        save_on_all_ranks: bool = False,
        **options: Any,
    ) -> None:
        refuse_strategies({"distribute": distribute, **options})
        if save_checkpoints_steps is None and save_checkpoints_secs is None:
            save_checkpoints_steps = STEPS_BETWEEN_CHECKPOINTS
        elif save_checkpoints_steps == 0 and save_checkpoints_secs:
            save_checkpoints_steps = None
        elif save_checkpoints_secs == 0 and save_checkpoints_steps:
            save_checkpoints_secs = None
        accepted = inspect.signature(tf.estimator.RunConfig.__init__).parameters
        own = {name: options.pop(name) for name in list(options) if name in accepted}
        with _without_cluster():
            super().__init__(
                model_dir=model_dir,
                tf_random_seed=tf_random_seed,
                save_summary_steps=save_summary_steps,
                save_checkpoints_steps=save_checkpoints_steps,
                save_checkpoints_secs=save_checkpoints_secs,
                session_config=session_config,
                keep_checkpoint_max=keep_checkpoint_max,
                keep_checkpoint_every_n_hours=keep_checkpoint_every_n_hours,
                log_step_count_steps=log_step_count_steps,
                **own,
            )
        self.iterations_per_loop = iterations_per_loop
        self.profiling_config = profiling_config
        self.enable_data_pre_proc = enable_data_pre_proc
        self.precision_mode = precision_mode
        self.enable_reduce_precision = enable_reduce_precision
        self.variable_format_optimize = variable_format_optimize
        self.mix_compile_mode = mix_compile_mode
        self.hcom_parallel = hcom_parallel
        self.graph_memory_max_size = graph_memory_max_size
        self.variable_memory_max_size = variable_memory_max_size
        self.dump_config = dump_config
        self.stream_max_parallel_num = stream_max_parallel_num
        self.is_tailing_optimization = is_tailing_optimization
        self.horovod_mode = horovod_mode
        self.graph_run_mode = graph_run_mode
        self.op_debug_level = op_debug_level
        self.save_on_all_ranks = save_on_all_ranks
        self._keep(options)

    def _keep(self, options: Dict[str, Any]) -> None:
        """Keep the device's keywords as attributes, and warn about one that looks like a mistyped one of ours."""
        ours = [name for name in inspect.signature(NPURunConfig.__init__).parameters if name not in ("self", "options")]
        for name, value in options.items():
            like = difflib.get_close_matches(name, ours, n=1, cutoff=0.9)
            if like and value is not None:
                warnings.warn(
                    f"NPURunConfig keeps {name}={value!r} without effect; did you mean {like[0]!r}?",
                    UserWarning,
                    stacklevel=3,
                )
            if not hasattr(type(self), name):
                setattr(self, name, value)


def refuse_strategies(settings: Dict[str, Any]) -> None:
    """Raise ValueError where a tf.distribute strategy is set."""
    for name in ("distribute", *STRATEGIES):
        if settings.get(name) is not None:
            raise ValueError(
                f"{name}={settings[name]!r}: npucoll replaces tf.distribute strategies; remove it, start the script "
                "once a rank (npucoll run -n 4 train.py), and wrap the optimizer with npu_distributed_optimizer_wrapper"
            )


@contextlib.contextmanager
def _without_cluster() -> Iterator[None]:
    """Hide TF_CONFIG: a RunConfig would make a TensorFlow cluster of the ranks, and wait for servers nobody starts."""
    hidden = os.environ.pop("TF_CONFIG", None)
    try:
        yield
    finally:
        if hidden is not None:
            os.environ["TF_CONFIG"] = hidden
