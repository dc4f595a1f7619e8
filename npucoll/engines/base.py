"""What an engine must do: run a described call, or start it and say when it is done."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Callable, FrozenSet, List, Optional, Sequence

import numpy as np

from npucoll.errors import ConfigError, NotInitialized

if TYPE_CHECKING:
    from npucoll.bootstrap.identity import Identity

__all__ = ["Call", "CallByCall", "Capabilities", "Engine", "EnginePlan", "Work", "World", "closed_plan"]


class World:
    """What an engine is opened with: who this rank is, and how many seconds a collective and the meeting may take."""

    def __init__(
        self,
        identity: Identity,
        generation: int,
        timeout: float = 1800.0,
        connect_timeout: float = 120.0,
    ) -> None:
        self.identity = identity
        self.generation = generation
        self.timeout = timeout
        self.connect_timeout = connect_timeout


class Capabilities:
    """What an engine can do.

    ``keyed``: named calls may arrive in another order on every rank (else core runs them in one order).
    ``reproducible``: the same layout gives the same bits in every run. ``wide_half``: float16 and bfloat16 sums are
    accumulated in float32. ``abortable``: ``abort`` reaches ranks that wait. ``crosses_hosts``: ranks may live on
    several hosts. ``memory``: kinds of memory that buffers may live in.
    """

    def __init__(
        self,
        *,
        keyed: bool = False,
        reproducible: bool = False,
        wide_half: bool = False,
        abortable: bool = False,
        crosses_hosts: bool = False,
        memory: Sequence[str] = ("host",),
    ) -> None:
        self.keyed = keyed
        self.reproducible = reproducible
        self.wide_half = wide_half
        self.abortable = abortable
        self.crosses_hosts = crosses_hosts
        self.memory: FrozenSet[str] = frozenset(memory)


class Call:
    """One collective, described completely: mean and scaling belong to it, so that an engine can round once.

    ``kind`` is "barrier", "allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "reduce", "gather",
    "scatter", "send" or "recv". ``inputs`` are C-contiguous arrays of one dtype; several make a fused call (allreduce,
    broadcast, reduce). ``outputs`` are C-contiguous and writable; None where only the engine will know the size, once
    the ranks have met (then the engine fills ``outputs`` through :meth:`allocate`), and [] where this rank gets
    nothing. A ``shared`` allreduce has outputs [] until the engine fills them with read-only arrays that all ranks may
    read in place. ``root`` is also the peer of send and recv. ``shape`` is the shape the user passed, for checks and
    messages.
    """

    __slots__ = (
        "detail",
        "failure",
        "indices",
        "inputs",
        "kind",
        "name",
        "op",
        "outputs",
        "postscale",
        "prescale",
        "root",
        "shape",
        "shared",
        "splits",
        "tag",
        "targets",
        "timeout",
    )

    def __init__(
        self,
        kind: str,
        inputs: Sequence[np.ndarray] = (),
        outputs: Optional[List[np.ndarray]] = None,
        *,
        op: Optional[str] = None,
        root: int = 0,
        tag: int = 0,
        shape: Sequence[int] = (),
        prescale: float = 1.0,
        postscale: float = 1.0,
        splits: Optional[np.ndarray] = None,
        detail: int = 0,
        shared: bool = False,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> None:
        self.kind = kind
        self.inputs = list(inputs)
        self.outputs = outputs
        self.op = op
        self.root = root
        self.tag = tag
        self.shape = tuple(shape)
        self.prescale = prescale
        self.postscale = postscale
        self.splits = splits
        self.detail = detail
        self.shared = shared
        self.name = name
        self.timeout = timeout
        # Arrays in a layout that the engine cannot write to: (index of the output, the caller's array).
        self.targets: List[Any] = []
        # Which of a grouped call's arrays these are.
        self.indices: List[int] = []
        self.failure: Optional[BaseException] = None

    def allocate(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Make the one output of this call, now that its shape is known, and return it."""
        array = np.empty(tuple(shape), dtype)
        self.outputs = [array]
        return array

    def finish(self) -> List[np.ndarray]:
        """Return the results, once the engine has written the outputs, in the caller's arrays where there are some."""
        outputs = list(self.outputs or ())
        for index, target in self.targets:
            if target.size != outputs[index].size or target.dtype.name != outputs[index].dtype.name:
                raise ConfigError(
                    f"out of this {self.kind} must have shape {outputs[index].shape} and dtype {outputs[index].dtype}, "
                    f"found {target.shape} and {target.dtype}"
                )
            target[...] = outputs[index].reshape(target.shape)
            outputs[index] = target
        return outputs

    def describe(self) -> str:
        """Return the call in a person's words, for messages."""
        dtype = f" {self.inputs[0].dtype}" if self.inputs else ""
        name = f" {self.name!r}" if self.name else ""
        return f"{self.kind}{name}{dtype} {self.shape}"


class Work(abc.ABC):
    """A call that was started. Its buffers must be left alone until it is done."""

    @abc.abstractmethod
    def wait(self, timeout: Optional[float] = None) -> Any:
        """Wait until the call is complete and return its result, or raise its error.

        ``timeout`` in seconds bounds this wait only: when it passes, TimeoutError is raised and the call goes on.
        """

    @abc.abstractmethod
    def done(self) -> bool:
        """Return whether ``wait`` would return at once."""


class EnginePlan(abc.ABC):
    """Calls that were checked once and are made many times, on the same buffers.

    ``run()`` makes all calls, in order, and fills the outputs of shared ones. It is an attribute, so that it can be the
    engine's own function.
    """

    __slots__ = ()

    run: Callable[[], None]

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of what the plan holds; later runs raise NotInitialized."""


def closed_plan() -> None:
    """Run a plan that was closed."""
    raise NotInitialized("this plan is closed; make a new one")


class CallByCall(EnginePlan):
    """A plan that makes its calls one by one through ``run``, which takes a Call."""

    def __init__(self, run: Callable[[Call], Any], calls: Sequence[Call]) -> None:
        self._run = run
        self._calls = list(calls)
        self.run = self._run_all

    def _run_all(self) -> None:
        for call in self._calls:
            self._run(call)

    def close(self) -> None:
        self.run = closed_plan


class Engine(abc.ABC):
    """One communicator's engine. Methods may be called from any thread; nothing blocks but ``run`` and ``wait``."""

    name: str = ""
    capabilities: Capabilities = Capabilities()

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    @abc.abstractmethod
    def run(self, call: Call) -> List[np.ndarray]:
        """Perform ``call`` and return its outputs."""

    @abc.abstractmethod
    def submit(self, call: Call) -> Work:
        """Start ``call``; its Work's ``wait`` returns the outputs."""

    @abc.abstractmethod
    def group(self, ranks: Sequence[int], name: str) -> Engine:
        """Return the engine of the sub-communicator of ``ranks`` (sorted ranks of this one, among them this rank)."""

    @abc.abstractmethod
    def close(self) -> None:
        """Leave. Local, never blocks; later calls raise NotInitialized."""

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Return a new array that collectives work on at the lowest cost. Engines without such memory give any."""
        return np.empty(tuple(shape), dtype)

    def plan(self, calls: Sequence[Call]) -> EnginePlan:
        """Return a plan of ``calls``, which have no name and all their outputs. Local."""
        return CallByCall(self.run, calls)

    def run_on(self, kind: str, argument: Any, x: np.ndarray, out: np.ndarray) -> bool:
        """Make an unnamed call straight from ``x`` to ``out``, if this engine has a short way for such arrays.

        ``argument`` is the reduction or the root. Returns False where it has none; then nothing has happened.
        """
        return False

    def abort(self, text: str) -> None:
        """End the communicator on all ranks, because of ``text``. Engines that cannot do that do nothing."""

    def native_handle(self) -> Optional[int]:
        """Return the id by which ``npc_api.comm_acquire`` finds this communicator, None without a native engine."""
        return None
