"""The user's object: rank, size, and every collective."""

from __future__ import annotations

import functools
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np

from npucoll import buffers, calls, objects
from npucoll.engines.base import Call, CallByCall, Engine
from npucoll.errors import ConfigError, NotInitialized
from npucoll.plans import Plan, PlannedCall, Recorder, Step
from npucoll.types import dtype_code
from npucoll.work import CallWork, GroupWork, ObservedWork

if TYPE_CHECKING:
    from npucoll.engines.base import Work

__all__ = ["Communicator"]

# Told about each finished collective: the communicator's name, the call, its seconds, and its error or None.
Observer = Callable[[str, Call, float, Optional[BaseException]], None]


class Communicator:
    """The ranks that work together, and the collectives between them.

    Every collective is called by all ranks of the communicator. Calls without ``name`` match by their number, so every
    rank makes them in the same order, from one thread at a time; calls with a ``name`` match by it, in any order, from
    any thread. Arguments that all share:

    - ``x``: a NumPy array, a scalar, or anything with the buffer protocol, ``__array__`` or DLPack on the host; any
      layout. It may be reused when the call returns.
    - ``out``: a writable array for the result; ``out is x`` works in place. Without it a new C-contiguous array is
      made.
    - ``timeout``: seconds after which the collective fails on all ranks and the communicator ends.

    Errors: MismatchError on every rank where ranks disagree about kind, dtype, shape, op or root (the communicator goes
    on); CollectiveTimeout and PeerLost (the communicator has ended, later calls repeat the cause); UnsupportedError for
    a dtype that the op is not defined for; ConfigError for arguments that this rank alone can see to be wrong;
    NotInitialized after ``close`` or in a forked child.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        name: str = "world",
        local_rank: int = 0,
        local_size: int = 1,
        observer: Optional[Observer] = None,
        on_close: Optional[Callable[[Communicator], None]] = None,
    ) -> None:
        self._engine: Optional[Engine] = engine
        self._rank, self._size = engine.rank, engine.size
        self._name = name
        self._local_rank, self._local_size = local_rank, local_size
        self._observer = observer
        # The engine's short way for calls that it can make from the arrays alone; observers want the whole call.
        self._short: Optional[Callable[..., bool]] = engine.run_on if observer is None else None
        self._on_close = on_close
        # All groups that come from this communicator, those of groups included: they end with it.
        self._groups: weakref.WeakSet[Communicator] = weakref.WeakSet()
        self._is_group = False

    # -- identity

    @property
    def rank(self) -> int:
        """This process's number in the communicator, 0 to ``size - 1``."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of ranks in the communicator."""
        return self._size

    @property
    def local_rank(self) -> int:
        """This process's number among the communicator's ranks on its host."""
        return self._local_rank

    @property
    def local_size(self) -> int:
        """Number of the communicator's ranks on this host."""
        return self._local_size

    @property
    def name(self) -> str:
        """``"world"``, or the group's name."""
        return self._name

    @property
    def engine(self) -> Engine:
        """The engine that moves the bytes."""
        if self._engine is None:
            raise NotInitialized(
                f"communicator {self._name!r} is closed (npucoll was shut down); call npucoll.init() for a new one"
            )
        return self._engine

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._engine is None

    def __repr__(self) -> str:
        state = "closed" if self._engine is None else f"engine {self._engine.name!r}"
        return f"<Communicator {self._name!r}: rank {self._rank} of {self._size}, {state}>"

    # -- reductions

    def allreduce(
        self,
        x: Any,
        op: str = "sum",
        *,
        out: Optional[np.ndarray] = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
        shared: bool = False,
    ) -> np.ndarray:
        """Reduce ``x`` over all ranks, element by element; every rank gets the same bits.

        ``op`` is "sum", "mean", "min", "max" or "prod". Inputs are multiplied by ``prescale`` and the reduction by
        ``postscale``, before the one rounding at the end (float16 and bfloat16 accumulate in float32). An integer mean
        truncates toward zero. Shape and dtype are those of ``x``, and equal on all ranks.

        ``shared``: the result is a read-only array, in memory that all ranks read where that pays, so that nothing is
        copied out. The memory is free again when all ranks have dropped it.
        """
        short = self._short
        plain = prescale == 1.0 == postscale and name is None is timeout and not shared
        if out is not None and plain and short and short("allreduce", op, x, out):
            return out
        return self._one(calls.allreduce(x, op, out, prescale, postscale, name, timeout, shared))

    def allreduce_(self, x: Any, op: str = "sum", **options: Any) -> Any:
        """Do :meth:`allreduce` in place and return ``x``, which must be writable."""
        array = buffers.as_in_place(x)
        self.allreduce(array, op, out=array, **options)
        return x

    def allreduce_async(self, x: Any, op: str = "sum", **options: Any) -> Work:
        """Start :meth:`allreduce`; ``x`` must be left alone until the Work is done."""
        options = _defaults(options, out=None, prescale=1.0, postscale=1.0, shared=False)
        return self._start(calls.allreduce(x, op, **options))

    def grouped_allreduce(
        self,
        xs: Sequence[Any],
        op: str = "sum",
        *,
        out: Optional[Sequence[np.ndarray]] = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
        shared: bool = False,
    ) -> List[np.ndarray]:
        """Do :meth:`allreduce` for a list of arrays, one fused operation for each dtype; returns the results."""
        grouped = calls.grouped_allreduce(xs, op, out, prescale, postscale, name, timeout, shared)
        return calls.ungroup({first: self._run(call) for first, call in grouped.items()}, grouped)

    def grouped_allreduce_async(self, xs: Sequence[Any], op: str = "sum", **options: Any) -> Work:
        """Start :meth:`grouped_allreduce`."""
        options = _defaults(options, out=None, prescale=1.0, postscale=1.0, shared=False)
        grouped = calls.grouped_allreduce(xs, op, **options)
        return GroupWork({first: self._submit(call) for first, call in grouped.items()}, grouped)

    def reduce(
        self,
        x: Any,
        root: int = 0,
        op: str = "sum",
        *,
        out: Optional[np.ndarray] = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> Optional[np.ndarray]:
        """Do :meth:`allreduce` with the result on ``root`` only; the other ranks get None."""
        call = calls.reduce(x, root, op, self._rank, self._size, out, prescale, postscale, name, timeout)
        return self._one(call)

    def reduce_async(self, x: Any, root: int = 0, op: str = "sum", **options: Any) -> Work:
        """Start :meth:`reduce`."""
        options = _defaults(options, out=None, prescale=1.0, postscale=1.0)
        return self._start(calls.reduce(x, root, op, self._rank, self._size, **options))

    def reduce_scatter(
        self,
        x: Any,
        op: str = "sum",
        *,
        out: Optional[np.ndarray] = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> np.ndarray:
        """Reduce ``x`` over all ranks and return this rank's block of it along dimension 0.

        Dimension 0 is a multiple of ``size``; the result has shape ``(x.shape[0] // size, *x.shape[1:])``.
        """
        short = self._short
        plain = prescale == 1.0 == postscale and name is None is timeout
        if out is not None and plain and short and short("reduce_scatter", op, x, out):
            return out
        return self._one(calls.reduce_scatter(x, op, self._size, out, prescale, postscale, name, timeout))

    def reduce_scatter_async(self, x: Any, op: str = "sum", **options: Any) -> Work:
        """Start :meth:`reduce_scatter`."""
        options = _defaults(options, out=None, prescale=1.0, postscale=1.0)
        return self._start(calls.reduce_scatter(x, op, self._size, **options))

    # -- moving data

    def broadcast(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Optional[np.ndarray] = None,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> np.ndarray:
        """Return ``root``'s ``x`` on every rank; shape and dtype of ``x`` are equal on all ranks."""
        short = self._short
        if short and out is not None and name is None is timeout and short("broadcast", root, x, out):
            return out
        return self._one(calls.broadcast(x, root, self._size, out, name, timeout))

    def broadcast_(self, x: Any, root: int = 0, **options: Any) -> Any:
        """Overwrite ``x``, which must be writable, with ``root``'s, and return it."""
        array = buffers.as_in_place(x)
        self.broadcast(array, root, out=array, **options)
        return x

    def broadcast_async(self, x: Any, root: int = 0, **options: Any) -> Work:
        """Start :meth:`broadcast`."""
        return self._start(calls.broadcast(x, root, self._size, **_defaults(options, out=None)))

    def allgather(
        self,
        x: Any,
        *,
        out: Optional[np.ndarray] = None,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> np.ndarray:
        """Concatenate every rank's ``x`` along dimension 0, which may differ between ranks; a scalar is one row."""
        short = self._short
        if short and out is not None and name is None is timeout and short("allgather", None, x, out):
            return out
        return self._one(calls.allgather(x, out, name, timeout))

    def allgather_async(self, x: Any, **options: Any) -> Work:
        """Start :meth:`allgather`."""
        return self._start(calls.allgather(x, **_defaults(options, out=None)))

    def gather(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Optional[np.ndarray] = None,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> Optional[np.ndarray]:
        """Do :meth:`allgather` with the result on ``root`` only; the other ranks get None."""
        return self._one(calls.gather(x, root, self._rank, self._size, out, name, timeout))

    def gather_async(self, x: Any, root: int = 0, **options: Any) -> Work:
        """Start :meth:`gather`."""
        return self._start(calls.gather(x, root, self._rank, self._size, **_defaults(options, out=None)))

    def scatter(
        self,
        x: Any = None,
        root: int = 0,
        *,
        out: Optional[np.ndarray] = None,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> np.ndarray:
        """Return block ``rank``, along dimension 0, of ``root``'s ``x``; the other ranks need not pass ``x``.

        Dimension 0 of the root's ``x`` is a multiple of ``size``.
        """
        return self._one(calls.scatter(x, root, self._rank, self._size, out, name, timeout))

    def scatter_async(self, x: Any = None, root: int = 0, **options: Any) -> Work:
        """Start :meth:`scatter`."""
        return self._start(calls.scatter(x, root, self._rank, self._size, **_defaults(options, out=None)))

    def alltoall(
        self,
        x: Any,
        splits: Optional[Sequence[int]] = None,
        *,
        out: Optional[np.ndarray] = None,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> np.ndarray:
        """Send rows of ``x`` to each rank and return what came, rank after rank.

        ``splits`` holds ``size`` numbers of rows that add up to ``x.shape[0]``; without it, dimension 0 is shared
        evenly.
        """
        short = self._short
        plain = splits is None and name is None is timeout
        if out is not None and plain and short and short("alltoall", None, x, out):
            return out
        return self._one(calls.alltoall(x, splits, self._size, out, name, timeout))

    def alltoall_async(self, x: Any, splits: Optional[Sequence[int]] = None, **options: Any) -> Work:
        """Start :meth:`alltoall`."""
        return self._start(calls.alltoall(x, splits, self._size, **_defaults(options, out=None)))

    # -- two ranks

    def send(
        self, x: Any, to: int, tag: int = 0, *, name: Optional[str] = None, timeout: Optional[float] = None
    ) -> None:
        """Send ``x`` to rank ``to``, which calls :meth:`recv` with the same ``tag``. May wait for it to make room."""
        self._run(calls.send(x, to, tag, self._size, name, timeout))

    def send_async(self, x: Any, to: int, tag: int = 0, **options: Any) -> Work:
        """Start :meth:`send`."""
        return self._start(calls.send(x, to, tag, self._size, **_defaults(options)))

    def recv(
        self,
        source: int,
        tag: int = 0,
        *,
        out: Optional[np.ndarray] = None,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> np.ndarray:
        """Return the next array that rank ``source`` sent with ``tag``; shape and dtype come with it."""
        return self._one(calls.receive(source, tag, self._size, out, name, timeout))

    def recv_async(self, source: int, tag: int = 0, **options: Any) -> Work:
        """Start :meth:`recv`."""
        return self._start(calls.receive(source, tag, self._size, **_defaults(options, out=None)))

    # -- control

    def barrier(self, timeout: Optional[float] = None, *, name: Optional[str] = None) -> None:
        """Return when every rank has called it."""
        self._run(calls.barrier(name, timeout))

    def barrier_async(self, timeout: Optional[float] = None, *, name: Optional[str] = None) -> Work:
        """Start :meth:`barrier`."""
        return self._start(calls.barrier(name, timeout))

    def empty(self, shape: Union[int, Sequence[int]], dtype: Any = np.float32) -> np.ndarray:
        """Return a new array in communication memory, with arbitrary content.

        All ranks of this communicator can read it, so its collectives copy nothing in, and :meth:`allreduce_` writes
        each result once. Otherwise it is an array like any other, which outlives the communicator. Local: the other
        ranks need not call it.
        """
        dimensions = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        dtype = np.dtype(dtype)
        dtype_code(dtype)
        if any(length < 0 for length in dimensions):
            raise ConfigError(f"a shape has no negative dimensions, found {dimensions}")
        return self.engine.empty(dimensions, dtype)

    def plan(self, planned: Sequence[PlannedCall]) -> Plan:
        """Prepare a list of collectives on fixed buffers, made by ``npucoll.call``; ``run`` makes them, in order.

        A run checks and allocates nothing, so it is the fastest way to make small calls again and again. Its calls are
        numbered as if they were made one by one, so another rank may also make them so. Local.
        """
        recorder = Recorder(self._rank, self._size)
        comm, steps = Communicator(recorder, name=self._name), []
        for one in planned:
            if not isinstance(one, PlannedCall):
                raise ConfigError(f"a plan is a list of npucoll.call(...), found {type(one).__name__}")
            start = len(recorder.calls)
            returned = getattr(comm, one.kind)(*one.args, **one.kwargs)
            steps.append(Step(recorder.calls[start:], returned))
        if not recorder.calls:
            raise ConfigError("a plan needs at least one collective")
        if self._observer is not None:
            return Plan(CallByCall(self._run, recorder.calls), steps)
        return Plan(self.engine.plan(recorder.calls), steps)

    def broadcast_object(
        self, obj: Any = None, root: int = 0, *, name: Optional[str] = None, timeout: Optional[float] = None
    ) -> Any:
        """Return a copy of ``root``'s object, which is pickled on the way; the other ranks' is ignored."""
        return objects.broadcast(self, obj, root, name, timeout)

    def allgather_object(self, obj: Any, *, name: Optional[str] = None, timeout: Optional[float] = None) -> List[Any]:
        """Return the list of every rank's object, pickled on the way."""
        return objects.allgather(self, obj, name, timeout)

    def assert_in_sync(self, arrays: Union[Mapping[str, Any], Sequence[Any]]) -> None:
        """Raise MismatchError on every rank unless all ranks hold the same bits in ``arrays``, naming what differs."""
        objects.assert_in_sync(self, arrays)

    def group(self, ranks: Sequence[int], name: Optional[str] = None) -> Optional[Communicator]:
        """Make a sub-communicator of ``ranks`` (numbers of this one, sorted); None where this rank is not among them.

        Only members call it, or all ranks do. Members that make several groups make them in the same order, unless the
        groups' names differ.
        """
        members = sorted(ranks)
        if not members or len(set(members)) != len(members) or members[0] < 0 or members[-1] >= self._size:
            raise ConfigError(f"ranks must be different numbers from 0 to {self._size - 1}, found {list(ranks)!r}")
        if name == "world":
            raise ConfigError("'world' is the communicator of all ranks; give the group another name")
        if self._rank not in members:
            return None
        label = name if name is not None else "group"
        engine = self.engine.group(members, label)
        made = Communicator(
            engine,
            name=label,
            local_rank=engine.rank,
            local_size=engine.size,
            observer=self._observer,
        )
        made._is_group, made._groups = True, self._groups
        self._groups.add(made)
        return made

    def abort(self, text: str) -> None:
        """End the communicator, and all groups if it is the one of all ranks: peers get a PeerLost with ``text``."""
        for comm in [self] if self._is_group else [self, *self._groups]:
            if comm._engine is not None:
                comm._engine.abort(text)

    def close(self) -> None:
        """Leave the communicator, and its groups if it is the one of all ranks. Local, never blocks; results stay."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close(self)
        for comm in [self] if self._is_group else [*self._groups, self]:
            comm._leave()

    def _leave(self) -> None:
        engine, self._engine, self._short = self._engine, None, None
        if engine is not None:
            engine.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()

    def __del__(self) -> None:
        self._leave()

    # -- running a call

    def _run(self, call: Call) -> List[np.ndarray]:
        if self._observer is None:
            return self.engine.run(call)
        start, failure = time.perf_counter(), None
        try:
            return self.engine.run(call)
        except BaseException as error:
            failure = error
            raise
        finally:
            self._observer(self._name, call, time.perf_counter() - start, failure)

    def _one(self, call: Call) -> Any:
        outputs = self._run(call)
        return outputs[0] if outputs else None

    def _start(self, call: Call) -> Work:
        return CallWork(self._submit(call))

    def _submit(self, call: Call) -> Work:
        work = self.engine.submit(call)
        if self._observer is None:
            return work
        return ObservedWork(work, functools.partial(self._observer, self._name, call))


def _defaults(options: Dict[str, Any], **defaults: Any) -> Dict[str, Any]:
    """Return the keyword arguments of a collective with its defaults filled in; an unknown one is a TypeError."""
    defaults.update(name=None, timeout=None)
    unknown = set(options) - set(defaults)
    if unknown:
        raise TypeError(f"unknown argument {sorted(unknown)[0]!r}; known are {', '.join(defaults)}")
    defaults.update(options)
    return defaults
