"""Works that the communicator returns: an engine's Work, with the result that the collective promises."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Optional

from npucoll import calls
from npucoll.engines.base import Call, Work

__all__ = ["CallWork", "GroupWork", "ObservedWork", "Work"]


class CallWork(Work):
    """The Work of one call: its result is the call's one output, or None."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def wait(self, timeout: Optional[float] = None) -> Any:
        outputs = self._work.wait(timeout)
        return outputs[0] if outputs else None

    def done(self) -> bool:
        return self._work.done()


class ObservedWork(Work):
    """An engine's Work that tells ``observer`` once, when it is waited for, its seconds and its error or None."""

    def __init__(self, work: Work, observer: Callable[[float, Optional[BaseException]], None]) -> None:
        self._work = work
        self._observer: Optional[Callable[[float, Optional[BaseException]], None]] = observer
        self._start = time.perf_counter()

    def wait(self, timeout: Optional[float] = None) -> Any:
        try:
            outputs = self._work.wait(timeout)
        except BaseException as error:
            # A wait that was cut short leaves the call going on: there is nothing to tell yet.
            if self._work.done():
                self._tell(error)
            raise
        self._tell(None)
        return outputs

    def done(self) -> bool:
        return self._work.done()

    def _tell(self, error: Optional[BaseException]) -> None:
        observer, self._observer = self._observer, None
        if observer is not None:
            observer(time.perf_counter() - self._start, error)


class GroupWork(Work):
    """The Work of a fused call of several dtypes: its result is the list of all outputs."""

    def __init__(self, works: Dict[int, Work], grouped: Dict[int, Call]) -> None:
        self._works = works
        self._grouped = grouped

    def wait(self, timeout: Optional[float] = None) -> Any:
        deadline = None if timeout is None else time.monotonic() + timeout
        results = {}
        for first, work in self._works.items():
            results[first] = work.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return calls.ungroup(results, self._grouped)

    def done(self) -> bool:
        return all(work.done() for work in self._works.values())
