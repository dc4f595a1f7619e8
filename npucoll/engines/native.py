"""The engine of one host: the C engine over shared memory."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Set

import numpy as np

from npucoll import _ffi
from npucoll._ffi import ffi, lib
from npucoll.bootstrap import rendezvous
from npucoll.buffers import address
from npucoll.engines.base import Call, Capabilities, Engine, Work, World
from npucoll.errors import NotInitialized
from npucoll.types import DTYPES, dtype_from_code, reduce_code

if TYPE_CHECKING:
    from npucoll.bootstrap.identity import Identity

__all__ = ["NativeEngine", "call_key", "communicator_id", "open_engine"]

_KINDS = {
    "barrier": lib.NPC_BARRIER,
    "allreduce": lib.NPC_ALLREDUCE,
    "broadcast": lib.NPC_BROADCAST,
    "allgather": lib.NPC_ALLGATHER,
    "reduce_scatter": lib.NPC_REDUCE_SCATTER,
    "alltoall": lib.NPC_ALLTOALL,
    "reduce": lib.NPC_REDUCE,
    "gather": lib.NPC_GATHER,
    "scatter": lib.NPC_SCATTER,
    "send": lib.NPC_SEND,
    "recv": lib.NPC_RECV,
}
_DESC_SIZE = ffi.sizeof("npc_desc")


def call_key(name: str) -> int:
    """Return the 64-bit key of a named call. Never 0, which stands for the next call number."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") or 1


def communicator_id(name: str) -> int:
    """Return the id under which native code of plugins finds the communicator ``name``; 0 is the world."""
    return 0 if name == "world" else call_key(name)


class _Prepared:
    """A Call as the engine's npc_desc, with everything it points to kept alive."""

    def __init__(self, call: Call) -> None:
        self.call = call
        inputs, outputs = call.inputs, call.outputs
        desc = ffi.new("npc_desc *")
        self.desc = desc
        desc.size = _DESC_SIZE
        desc.kind = _KINDS[call.kind]
        desc.root = call.root
        if inputs:
            desc.dtype = DTYPES[inputs[0].dtype.name]
        if call.op is not None:
            desc.op = reduce_code(call.op)
            desc.prescale = call.prescale
            desc.postscale = call.postscale
        if call.tag:
            desc.tag = call.tag
        if call.detail:
            desc.detail = call.detail
        if call.timeout is not None:
            desc.timeout_ms = max(1, int(call.timeout * 1000))
        if call.name is not None:
            desc.key = call_key(call.name)
            self.name = ffi.new("char[]", call.name.encode())
            desc.name = self.name
        if inputs:
            self.inputs = ffi.new("npc_buf[]", len(inputs))
            for slot, array in zip(self.inputs, inputs):
                slot.data = ffi.cast("void *", address(array))
                slot.count = array.size
            desc.n_in = len(inputs)
            setattr(desc, "in", self.inputs)  # `in` is a keyword here
        if outputs:
            self.outputs = ffi.new("npc_buf[]", len(outputs))
            for slot, array in zip(self.outputs, outputs):
                slot.data = ffi.cast("void *", address(array))
                slot.count = array.size
            desc.n_out = len(outputs)
            desc.out = self.outputs
        if call.shape:
            self.shape = ffi.new("int64_t[]", call.shape)
            desc.ndim = len(call.shape)
            desc.shape = self.shape
        if call.splits is not None:
            self.splits = call.splits
            desc.splits = ffi.cast("int64_t *", address(call.splits))
        if outputs is None:
            self.handle = ffi.new_handle(self)
            desc.alloc = lib.npucoll_alloc
            desc.alloc_user = self.handle

    def allocate(self, dtype: int, shape: Sequence[int]) -> Any:
        """Called back by the engine when the ranks have met: make the result, return its address or NULL."""
        try:
            return ffi.cast("void *", address(self.call.allocate(shape, dtype_from_code(dtype))))
        except Exception as error:  # Whatever it is, it must not cross C; check() raises it when the call returns.
            self.call.failure = error
            return ffi.NULL

    def check(self, status: int, error: Any) -> List[np.ndarray]:
        """Raise the call's error, or return its results."""
        if status != lib.NPC_OK:
            if status == lib.NPC_ERR_MEMORY and self.call.failure is not None:
                raise self.call.failure
            _ffi.check(status, error)
        return self.call.finish()


class NativeWork(Work):
    """A submitted call. The engine keeps it, and so its buffers, until it is complete."""

    def __init__(self, engine: NativeEngine, prepared: _Prepared, request: Any) -> None:
        self._engine = engine
        self._prepared = prepared
        self._request = request
        self._lock = threading.Lock()
        self._outcome: Optional[List[np.ndarray]] = None
        self._failure: Optional[BaseException] = None

    def wait(self, timeout: Optional[float] = None) -> Any:
        if not self._finish(-1 if timeout is None else max(0, int(timeout * 1000))):
            raise TimeoutError(
                f"{self._prepared.call.describe()} is not complete after {timeout} s; it goes on, wait for it again"
            )
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
            error = _ffi.new_error()
            status = lib.npc_request_wait(self._request, timeout_ms, error)
            if status == -1:
                return False
            if status == lib.NPC_ERR_INTERRUPTED:
                _ffi.check(status, error)
            try:
                self._outcome = self._prepared.check(status, error)
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
        self._identity: Identity = world.identity
        self._world = world
        self._ranks = list(ranks)
        self._scope = scope
        super().__init__(self._ranks.index(world.identity.rank), len(self._ranks))
        self._groups: Dict[str, int] = {}
        self._pending: Set[NativeWork] = set()
        self._ident = communicator_id(scope)
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

    def run(self, call: Call) -> List[np.ndarray]:
        prepared = _Prepared(call)
        error = _ffi.new_error()
        return prepared.check(lib.npc_comm_run(self._handle(), prepared.desc, error), error)

    def submit(self, call: Call) -> Work:
        prepared = _Prepared(call)
        request, error = ffi.new("npc_request **"), _ffi.new_error()
        _ffi.check(lib.npc_request_start(self._handle(), prepared.desc, request, error), error)
        work = NativeWork(self, prepared, request[0])
        self._pending.add(work)
        return work

    def forget(self, work: NativeWork) -> None:
        """Let go of a complete call's buffers."""
        self._pending.discard(work)

    def group(self, ranks: Sequence[int], name: str) -> Engine:
        # A group's identity is its name, its members (the meeting hashes them), and how often it was created.
        world_ranks = [self._ranks[rank] for rank in ranks]
        label = f"{self._scope}/{name}" if self._scope != "world" else name
        label_of_members = f"{label}:{','.join(map(str, world_ranks))}"
        created = self._groups.get(label_of_members, 0)
        self._groups[label_of_members] = created + 1
        return NativeEngine(self._world, world_ranks, label if created == 0 else f"{label}#{created}")

    def abort(self, text: str) -> None:
        if self._comm is not None:
            lib.npc_comm_abort(self._comm, text.encode())

    def close(self) -> None:
        comm, self._comm = self._comm, None
        if comm is None:
            return
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
