"""The engine of one rank, in NumPy alone: for machines where the native engine is absent."""

from __future__ import annotations

import collections
from typing import Any, Deque, Dict, List, Optional, Sequence

import numpy as np

from npucoll.engines.base import Call, Capabilities, Engine, Work, World
from npucoll.errors import ConfigError, NotInitialized, UnsupportedError

__all__ = ["SingleEngine", "open_engine"]


class _Done(Work):
    """A call that was complete when it was submitted."""

    def __init__(self, outputs: List[np.ndarray]) -> None:
        self._outputs = outputs

    def wait(self, timeout: Optional[float] = None) -> Any:
        return self._outputs

    def done(self) -> bool:
        return True


class SingleEngine(Engine):
    """Every collective of a communicator with one rank."""

    name = "single"
    capabilities = Capabilities(keyed=True, reproducible=True, wide_half=True, abortable=True)

    def __init__(self) -> None:
        super().__init__(0, 1)
        self._closed = False
        self._mail: Dict[int, Deque[np.ndarray]] = {}

    def run(self, call: Call) -> List[np.ndarray]:
        if self._closed:
            raise NotInitialized("this communicator is closed; call npucoll.init() for a new one")
        if call.kind == "barrier":
            return []
        if call.kind == "send":
            self._mail.setdefault(call.tag, collections.deque()).append(call.inputs[0].copy())
            return []
        if call.kind == "recv":
            return self._receive(call)
        self._check(call)
        scale = call.prescale * call.postscale if call.kind in ("allreduce", "reduce", "reduce_scatter") else 1.0
        if call.outputs is None:
            call.allocate(call.inputs[0].shape, call.inputs[0].dtype)
        if call.shared and not call.outputs:
            call.outputs = [np.empty_like(source) for source in call.inputs]
        outputs = call.outputs or []
        for output in outputs if call.shared else ():
            output.flags.writeable = True
        for source, target in zip(call.inputs, outputs):
            # float64 covers the float32 accumulation that half precision asks for; one rounding at the end.
            np.copyto(target, source if scale == 1.0 else source * np.float64(scale), casting="unsafe")
            if call.shared:
                target.flags.writeable = False
        return call.finish()

    def submit(self, call: Call) -> Work:
        return _Done(self.run(call))

    def group(self, ranks: Sequence[int], name: str) -> Engine:
        return SingleEngine()

    def close(self) -> None:
        self._closed = True

    @staticmethod
    def _check(call: Call) -> None:
        if call.op is None:
            return
        kind = call.inputs[0].dtype.kind
        if kind == "b" and call.op in ("sum", "mean"):
            raise UnsupportedError(f"{call.op} is not defined for bool; use max (any), min (all), or cast")
        if kind == "c" and call.op in ("min", "max"):
            raise UnsupportedError(
                f"{call.op} is not defined for {call.inputs[0].dtype}: complex numbers have no order"
            )
        if kind in "biu" and (call.prescale != 1.0 or call.postscale != 1.0):
            raise UnsupportedError(f"scaling is not defined for {call.inputs[0].dtype}; cast to a float type")

    def _receive(self, call: Call) -> List[np.ndarray]:
        letters = self._mail.get(call.tag)
        if not letters:
            raise ConfigError(f"recv(0, tag={call.tag}) on the only rank would wait for ever: nothing was sent to it")
        letter = letters.popleft()
        if call.outputs:
            np.copyto(call.outputs[0], letter)
        else:
            call.outputs = [letter]
        return call.finish()


def open_engine(world: World) -> Engine:
    """Open the engine; more than one rank is refused in words."""
    size = world.identity.size
    if size != 1:
        raise ConfigError(f"engine 'single' is for one rank, this job has {size}; use engine 'native'")
    return SingleEngine()
