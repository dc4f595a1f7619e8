"""Notices that one rank has ended its training while others wait for it in a step, which would last until the deadline.

1. Each rank counts its steps, and tells all others its number when its training ends.
2. A rank that has been in one step for a while, after it heard that another ended before that step, waits in vain:
   nobody will come. It says so, and ends the communicator, so that every rank raises.
3. A step in which no collective runs is not held up, so ranks that train apart from each other may differ.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any, Dict, Optional, Tuple, Type

import numpy as np
import tensorflow.compat.v1 as tf

import npucoll

__all__ = ["EvenSteps"]

# Messages of this module carry tags from here on, one for each training.
FIRST_TAG = 0x6E707500
FOREVER = 1e9
LOOK_SECONDS = 0.25
STUCK_SECONDS = 3.0


class EvenSteps(tf.train.SessionRunHook):  # type: ignore[misc]  # TensorFlow has no types
    """A hook for one training of all ranks of ``comm``, and a context around it; ``number``: which training it is."""

    def __init__(self, comm: npucoll.Communicator, number: int) -> None:
        self._comm = comm
        self._tag = FIRST_TAG + number
        self._finished = 0
        self._running_since: Optional[float] = None
        self._left = threading.Event()
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        self._news: Dict[int, Any] = {rank: comm.recv_async(rank, tag=self._tag, timeout=FOREVER) for rank in others}
        self._watch = threading.Thread(target=self._look, name="npucoll_estimator", daemon=True)

    def __enter__(self) -> EvenSteps:
        self._watch.start()
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._left.set()
        self._watch.join()

    def before_run(self, run_context: Any) -> None:
        self._running_since = time.monotonic()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._finished += 1
        self._running_since = None

    def end(self, session: Any) -> None:
        self._left.set()
        for rank in self._news:
            self._comm.send(np.array([self._finished], np.int64), rank, tag=self._tag)

    def _look(self) -> None:
        while not self._left.wait(LOOK_SECONDS):
            since = self._running_since
            if since is None or time.monotonic() - since < STUCK_SECONDS:
                continue
            ended = self._ended_before(self._finished + 1)
            # Only if the step is still the same does what was heard say anything about it.
            if ended is not None and self._running_since == since and not self._comm.closed:
                self._comm.engine.abort(
                    f"rank {ended[0]} ended its training after {ended[1]} steps, while rank {self._comm.rank} is in "
                    f"step {self._finished + 1}: give all ranks the same number of steps (repeat() the dataset, and "
                    "pass steps or max_steps)"
                )
                return

    def _ended_before(self, step: int) -> Optional[Tuple[int, int]]:
        """Return a rank that ended before ``step``, and its number of steps; None where none is known."""
        for rank, work in self._news.items():
            if work.done():
                try:
                    count = int(work.wait()[0])
                except npucoll.NpucollError:
                    # The rank is gone, or npucoll was shut down: the step itself will fail with that.
                    return None
                if count < step:
                    return rank, count
        return None
