"""Calls that the C engine has prepared: plans, and the short way for calls that come again with other arrays."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import numpy as np

from npucoll import _ffi, calls
from npucoll._ffi import ffi, lib
from npucoll.engines.base import Call, EnginePlan, closed_plan
from npucoll.engines.descriptor import Descriptor

__all__ = ["NativePlan", "ShortWay"]

_BYTES = ffi.typeof("char[]")
# More than a program has; those that were left out are made anew.
_MOST_FORMS = 512


def _prepare(comm: Any, descriptors: Sequence[Descriptor]) -> Any:
    """Return an ``npc_plan *`` of these filled descriptors, which must stay as long as it is run on its own buffers."""
    descs = ffi.new("npc_desc[]", len(descriptors))
    for i, descriptor in enumerate(descriptors):
        descs[i] = descriptor.desc[0]
    plan, error = ffi.new("npc_plan **"), _ffi.new_error()
    _ffi.check(lib.npc_plan_new(comm, descs, len(descriptors), plan, error), error)
    return ffi.gc(plan[0], lib.npc_plan_free)


class NativePlan(EnginePlan):
    """A plan of the C engine."""

    __slots__ = ("_descriptors", "_error", "_provided", "run")

    def __init__(self, comm: Any, planned: Sequence[Call]) -> None:
        self._provided = False
        self._descriptors = [Descriptor(comm) for _ in planned]
        for descriptor, call in zip(self._descriptors, planned):
            descriptor.fill(call)
        self._error = _ffi.new_error()
        run = self._runner(_prepare(comm, self._descriptors))
        self.run = run if not any(call.shared for call in planned) else self._first_runner(run)

    def _runner(self, plan: Any) -> Callable[[], None]:
        """Return the function that runs the plan: as little Python as there can be."""
        native_run, error = lib.npc_plan_run, self._error

        def run() -> None:
            status = native_run(plan, error)
            if status:
                _ffi.check(status, error)

        return run

    def _first_runner(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return a function that also takes the shared results, which come to be in the first run."""

        def run_first() -> None:
            run()
            if not self._provided:
                self._provided = True
                for descriptor in self._descriptors:
                    descriptor.provide()

        return run_first

    def close(self) -> None:
        self._descriptors = []
        self.run = closed_plan


class ShortWay:
    """Prepared forms of unnamed calls with one input and one output.

    A training script makes the same few calls again and again. All that a call's arguments can tell is checked when a
    form is made; what is left are the two addresses.
    """

    def __init__(self, comm: Any, size: int) -> None:
        self._comm = comm
        self._size = size
        # By kind, reduction or root, dtype and shape: the prepared call, and the shape of its output.
        self._forms: Dict[Tuple[Any, ...], Tuple[Any, Tuple[int, ...]]] = {}
        # Of the thread that makes the call: others are turned away before they could write to it.
        self._error = _ffi.new_error()

    def run(
        self,
        kind: str,
        argument: Any,
        x: Any,
        out: Any,
        _run_on: Any = lib.npc_plan_run_on,
        _from_buffer: Any = ffi.from_buffer,
        _bytes: Any = _BYTES,
    ) -> bool:
        """Make the call, or return False where it must go the long way."""
        try:
            dtype = x.dtype
            form, shape = self._forms[kind, argument, dtype, x.shape]
            if out.dtype is not dtype or out.shape != shape:
                return False
            # NumPy refuses what is not C-contiguous or, for the second, not writable.
            status = _run_on(form, _from_buffer(x), _from_buffer(_bytes, out, True), self._error)
        except KeyError:
            form = self._make(kind, argument, x, out)
            return form is not None and self.run(kind, argument, x, out)
        except (AttributeError, BufferError, TypeError, ValueError):
            return False
        if status > 0:
            _ffi.check(status, self._error)
        return not status

    def close(self) -> None:
        """Let go of the forms, and so of the communicator."""
        self._forms.clear()

    def _make(self, kind: str, argument: Any, x: Any, out: Any) -> Optional[Any]:
        if not isinstance(x, np.ndarray) or not isinstance(out, np.ndarray):
            return None
        call = calls.short(kind, argument, x, out, self._size)
        if call is None or not call.outputs or call.inputs[0] is not x or call.outputs[0] is not out:
            return None
        descriptor = Descriptor(self._comm)
        descriptor.fill(call)
        if len(self._forms) >= _MOST_FORMS:
            self._forms.clear()
        form = _prepare(self._comm, [descriptor])
        self._forms[kind, argument, x.dtype, x.shape] = form, out.shape
        return form
