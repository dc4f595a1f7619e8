"""Calls that the C engine has prepared: plans, and the short way for calls that come again with other arrays."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from npucoll import _ffi, calls
from npucoll._ffi import ffi, lib
from npucoll.engines.base import Call, EnginePlan
from npucoll.engines.descriptor import Descriptor
from npucoll.errors import NotInitialized

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

    __slots__ = ("_comm", "_descriptors", "_error", "_plan", "_unfilled")

    def __init__(self, comm: Any, planned: Sequence[Call]) -> None:
        self._comm = comm
        self._descriptors = [Descriptor(comm) for _ in planned]
        for descriptor, call in zip(self._descriptors, planned):
            descriptor.fill(call)
        self._error = _ffi.new_error()
        self._plan = _prepare(comm, self._descriptors)
        self._unfilled = any(call.shared for call in planned)

    def run(self, _run: Any = lib.npc_plan_run) -> None:
        status = _run(self._plan, self._error)
        if status or self._unfilled:
            self._finish(status)

    def _finish(self, status: int) -> None:
        if self._plan == ffi.NULL:
            raise NotInitialized("this plan is closed; make a new one")
        _ffi.check(status, self._error)
        for descriptor in self._descriptors:
            descriptor.provide()
        self._unfilled = False

    def close(self) -> None:
        self._plan = ffi.NULL
        self._descriptors = []


class ShortWay:
    """Prepared forms of unnamed calls with one input and one output.

    A training script makes the same few calls again and again. All that a call's arguments can tell is checked when a
    form is made; what is left are the two addresses.
    """

    def __init__(self, comm: Any, size: int) -> None:
        self._comm = comm
        self._size = size
        self._forms: Dict[Tuple[Any, ...], Any] = {}
        self._errors: List[Any] = []

    def run(
        self,
        kind: str,
        argument: Any,
        x: np.ndarray,
        out: np.ndarray,
        _run_on: Any = lib.npc_plan_run_on,
        _from_buffer: Any = ffi.from_buffer,
    ) -> bool:
        """Make the call, or return False where it must go the long way."""
        dtype = x.dtype
        if out.dtype is not dtype:
            return False
        form = self._forms.get((kind, argument, dtype, x.shape, out.shape))
        if form is None:
            form = self._make(kind, argument, x, out)
            if form is None:
                return False
        try:
            # NumPy refuses what is not C-contiguous or, for the second, not writable.
            source, target = _from_buffer(x), _from_buffer(_BYTES, out, True)
        except (ValueError, BufferError, TypeError):
            return False
        errors = self._errors
        error = errors.pop() if errors else _ffi.new_error()
        status = _run_on(form, source, target, error)
        if status > 0:
            _ffi.check(status, error)
        errors.append(error)
        return status == 0

    def _make(self, kind: str, argument: Any, x: np.ndarray, out: np.ndarray) -> Optional[Any]:
        call = calls.short(kind, argument, x, out, self._size)
        if call is None or call.outputs is None or call.inputs[0] is not x or call.outputs[0] is not out:
            return None
        descriptor = Descriptor(self._comm)
        descriptor.fill(call)
        if len(self._forms) >= _MOST_FORMS:
            self._forms.clear()
        form = self._forms[(kind, argument, x.dtype, x.shape, out.shape)] = _prepare(self._comm, [descriptor])
        return form
