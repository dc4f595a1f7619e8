"""Plans: a fixed list of collectives on fixed buffers, checked once and run many times."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from npucoll import calls
from npucoll.engines.base import Call, Engine, EnginePlan, Work
from npucoll.errors import ConfigError, NotInitialized

__all__ = ["Plan", "PlannedCall", "Recorder", "Step", "call"]

# Of scatter, ranks other than the root learn dtype and size only from the root.
_KINDS = (
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "gather",
    "grouped_allreduce",
    "reduce",
    "reduce_scatter",
)


class PlannedCall:
    """A collective that a plan will make: the name of the communicator's method, and its arguments."""

    def __init__(self, kind: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        self.kind = kind
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        return f"<PlannedCall {self.kind}>"


def call(kind: str, *args: Any, **kwargs: Any) -> PlannedCall:
    """Describe a collective for ``Communicator.plan``: ``call("allreduce", x, op="mean", out=y)``.

    ``kind`` is the name of a method of the communicator: allgather, allreduce, allreduce_, alltoall, barrier,
    broadcast, broadcast_, gather, grouped_allreduce, reduce or reduce_scatter. The arguments are those of the method,
    except ``name``. Arrays are read and written in place, so they must be C-contiguous NumPy arrays. allgather, gather
    (on the root) and alltoall need ``out``.
    """
    if kind not in _KINDS:
        raise ConfigError(f"a plan cannot hold {kind!r}; it can hold {', '.join(_KINDS)}")
    if kwargs.get("name") is not None:
        raise ConfigError(f"{kind} in a plan takes no name: the calls of a plan match by their order")
    arrays = [array for array in args[:1] if array is not None]
    if kind == "grouped_allreduce":
        arrays = list(args[0]) if args else []
    for array in arrays:
        if not _fixed(array):
            raise ConfigError(
                f"{kind} in a plan reads its input in place, so it must be a C-contiguous NumPy array; "
                f"found {_describe(array)}"
            )
    return PlannedCall(kind, args, kwargs)


def _fixed(array: Any) -> bool:
    return (
        isinstance(array, np.ndarray)
        and array.flags.c_contiguous
        and array.flags.aligned
        and bool(array.dtype.isnative)
    )


def _describe(array: Any) -> str:
    if not isinstance(array, np.ndarray):
        return type(array).__name__
    return f"an array with shape {array.shape}, strides {array.strides} and dtype {array.dtype.str}"


class Recorder(Engine):
    """An engine that makes no call, but keeps what it is told to make."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.calls: List[Call] = []

    def run(self, call: Call) -> List[Any]:
        if call.outputs is None:
            raise ConfigError(f"{call.kind} in a plan works on fixed buffers: pass out=")
        if call.targets:
            raise ConfigError(f"{call.kind} in a plan writes its result in place, so out must be C-contiguous")
        self.calls.append(call)
        return [None] * len(call.inputs) if call.shared else list(call.outputs)

    def submit(self, call: Call) -> Work:
        raise ConfigError(f"{call.kind} in a plan cannot be asynchronous")

    def group(self, ranks: Sequence[int], name: str) -> Engine:
        raise ConfigError("a plan cannot make a group")

    def close(self) -> None:
        pass


class Step:
    """One planned collective: the engine's calls that it is made of, and what it returned when it was recorded."""

    def __init__(self, made: Sequence[Call], returned: Any) -> None:
        self.made = list(made)
        self.returned = returned

    def result(self) -> Any:
        """Return what the collective returns; a shared result exists after the first run."""
        if not any(call.shared for call in self.made):
            return self.returned
        if not all(call.outputs for call in self.made):
            raise NotInitialized("a shared result of this plan exists after its first run")
        grouped = {call.indices[0]: call for call in self.made if call.indices}
        if grouped:
            return calls.ungroup({first: call.outputs or [] for first, call in grouped.items()}, grouped)
        outputs = self.made[0].outputs
        return outputs[0] if outputs else None


class Plan:
    """A list of collectives that is run again and again; made by ``Communicator.plan``. A context manager.

    ``run()`` makes all calls, in order. Every rank runs its plan equally often; errors are those of the collectives.
    """

    __slots__ = ("_planned", "_steps", "run")

    def __init__(self, planned: EnginePlan, steps: Sequence[Step]) -> None:
        self._planned = planned
        self._steps = tuple(steps)
        # The engine's own function: a method around it would take a third of the time of a small call.
        self.run = planned.run

    @property
    def results(self) -> Tuple[Any, ...]:
        """What each collective returns, in the same arrays after every run; None where this rank gets nothing.

        A shared result exists after the first run. Its content is valid until this rank starts the next one.
        """
        return tuple(step.result() for step in self._steps)

    def close(self) -> None:
        """Let go of the plan; results stay as they are."""
        self._planned.close()
        self.run = self._planned.run

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Plan of {', '.join(call.describe() for step in self._steps for call in step.made)}>"
