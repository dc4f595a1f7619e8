"""The engine of one host: the C engine over shared memory."""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Optional, Sequence, Set

import numpy as np

from npucoll import _ffi
from npucoll._ffi import ffi, lib
from npucoll.bootstrap import rendezvous
from npucoll.engines.base import Call, Capabilities, Engine, EnginePlan, Work, World
from npucoll.engines.descriptor import Descriptor, call_key
from npucoll.engines.memory import new_array
from npucoll.engines.prepared import NativePlan, ShortWay
from npucoll.errors import NotInitialized

__all__ = ["NativeEngine", "open_engine"]


def _with_members(name: str, ranks: Sequence[int]) -> str:
    """Return what tells groups of one name apart: the name and the members, as ranks of the world."""
    return f"{name}:{','.join(map(str, ranks))}"


class NativeWork(Work):
    """A submitted call. The engine keeps it, and so its buffers, until it is complete."""

    def __init__(self, engine: NativeEngine, descriptor: Descriptor, request: Any, what: str) -> None:
        self._engine = engine
        self._descriptor = descriptor
        self._what = what
        self._request = request
        self._lock = threading.Lock()
        self._outcome: Optional[List[np.ndarray]] = None
        self._failure: Optional[BaseException] = None

    def wait(self, timeout: Optional[float] = None) -> Any:
        if not self._finish(-1 if timeout is None else max(0, int(timeout * 1000))):
            raise TimeoutError(f"{self._what} is not complete after {timeout} s; it goes on, wait for it again")
        if self._failure is not None:
            raise self._failure
        return self._outcome

    def done(self) -> bool:
        return self._finish(0)

    def _finish(self, timeout_ms: int) -> bool:
        """Wait at most ``timeout_ms`` and return whether the call is complete."""
        with self._lock:
            if self._request is None:
                return True
            descriptor = self._descriptor
            status = lib.npc_request_wait(self._request, timeout_ms, descriptor.error)
            if status == -1:
                return False
            if status == lib.NPC_ERR_INTERRUPTED:
                _ffi.check(status, descriptor.error)
            try:
                self._outcome = descriptor.take(status)
            except BaseException as failure:
                self._failure = failure
            lib.npc_request_free(self._request)
            self._request = None
        self._engine.forget(self)
        return True


class NativeEngine(Engine):
    """One communicator of the C engine. It owns the native handle and the meeting of its ranks."""

    name = "native"
    capabilities = Capabilities(keyed=True, reproducible=True, wide_half=True, abortable=True)

    def __init__(self, world: World, ranks: Sequence[int], scope: str) -> None:
        self._world = world
        self._ranks = list(ranks)
        self._scope = scope
        super().__init__(self._ranks.index(world.identity.rank), len(self._ranks))
        self._groups: Dict[str, int] = {}
        self._pending: Set[NativeWork] = set()
        self._idle: List[Descriptor] = []
        # The id under which native code of plugins finds this communicator; 0 is the world.
        self._ident = 0 if scope == "world" else call_key(_with_members(scope, self._ranks))
        # It holds the rank's claim on its place, so that no second process can take it.
        self._meeting = rendezvous.meet(
            world.identity,
            generation=world.generation,
            scope=scope,
            members=None if scope == "world" else self._ranks,
            timeout=world.connect_timeout,
        )
        try:
            self._comm = _ffi.open_comm(
                self._meeting.fd,
                self.rank,
                self.size,
                ident=self._ident,
                name=scope,
                timeout=world.timeout,
                ranks_on_host=world.identity.local_size,
            )
        except BaseException:
            self._meeting.close()
            raise
        self._short = ShortWay(self._comm, self.size)
        self.run_on = self._short.run  # type: ignore[method-assign]  # one frame less

    def run(self, call: Call) -> List[np.ndarray]:
        comm, descriptor = self._handle(), self._borrow()
        descriptor.fill(call)
        try:
            return descriptor.take(lib.npc_comm_run(comm, descriptor.desc, descriptor.error))
        finally:
            self._idle.append(descriptor)

    def submit(self, call: Call) -> Work:
        comm, descriptor = self._handle(), self._borrow()
        descriptor.fill(call)
        request = ffi.new("npc_request **")
        _ffi.check(lib.npc_request_start(comm, descriptor.desc, request, descriptor.error), descriptor.error)
        work = NativeWork(self, descriptor, request[0], call.describe())
        self._pending.add(work)
        return work

    def _borrow(self) -> Descriptor:
        # Two threads may look at once; pop is atomic, and who finds none makes one.
        try:
            return self._idle.pop()
        except IndexError:
            return Descriptor(self._handle())

    def forget(self, work: NativeWork) -> None:
        """Let go of a complete call."""
        self._pending.discard(work)

    def group(self, ranks: Sequence[int], name: str) -> Engine:
        # A group's identity is its name, its members (the meeting hashes them), and how often it was created.
        world_ranks = [self._ranks[rank] for rank in ranks]
        label = f"{self._scope}/{name}" if self._scope != "world" else name
        identity = _with_members(label, world_ranks)
        created = self._groups.get(identity, 0)
        self._groups[identity] = created + 1
        return NativeEngine(self._world, world_ranks, label if created == 0 else f"{label}#{created}")

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        return new_array(self._handle(), shape, dtype)

    def plan(self, calls: Sequence[Call]) -> EnginePlan:
        return NativePlan(self._handle(), calls)

    def abort(self, text: str) -> None:
        if self._comm is not None:
            lib.npc_comm_abort(self._comm, text.encode())

    def close(self) -> None:
        comm, self._comm = self._comm, None
        if comm is None:
            return
        self._short.close()
        lib.npc_comm_close(comm)
        for work in list(self._pending):
            work.done()  # Every submitted call has completed by now, and frees its request.
        self._meeting.close()

    def native_handle(self) -> Optional[int]:
        return self._ident

    def _handle(self) -> Any:
        if self._comm is None:
            raise NotInitialized("this communicator is closed; call npucoll.init() for a new one")
        return self._comm


def open_engine(world: World) -> Engine:
    """Meet the other ranks of this host and open the world's communicator."""
    return NativeEngine(world, range(world.identity.size), "world")
