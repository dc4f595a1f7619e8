"""``NPUBroadcastGlobalVariablesHook``: the broadcast of variables, for sessions that take hooks."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow.compat.v1 as tf

from npucoll_tf1.variables import broadcast_global_variables

__all__ = ["NPUBroadcastGlobalVariablesHook"]


class NPUBroadcastGlobalVariablesHook(tf.train.SessionRunHook):  # type: ignore[misc]  # TensorFlow has no types
    """Gives every rank the global variables of ``root_rank`` when a session starts, before the first step.

    For ``tf.train.MonitoredTrainingSession`` and Estimators; put it before hooks that read variables. It makes its
    operation in ``begin``, and runs it when the session's variables are initialized or restored from a checkpoint.
    ``root_rank`` of None is rank 0; ``index`` is accepted and has no meaning.
    """

    def __init__(self, root_rank: Optional[int] = 0, index: Optional[int] = None) -> None:
        self._root = 0 if root_rank is None else root_rank
        self._operation: Any = None

    def begin(self) -> None:
        self._operation = broadcast_global_variables(self._root)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._operation)
