"""The only importer of the compiled engine: opens communicators, and turns a status into an exception."""

from __future__ import annotations

from typing import Any, Dict, List, Type

from npucoll import errors
from npucoll._engine import ffi, lib
from npucoll.bootstrap import status as process_status

__all__ = ["check", "create_area", "ffi", "instructions", "lib", "native_api", "new_error", "open_comm"]

_EXCEPTIONS: Dict[int, Type[errors.NpucollError]] = {
    lib.NPC_ERR_ARGUMENT: errors.ConfigError,
    lib.NPC_ERR_MISMATCH: errors.MismatchError,
    lib.NPC_ERR_TIMEOUT: errors.CollectiveTimeout,
    lib.NPC_ERR_PEER_LOST: errors.PeerLost,
    lib.NPC_ERR_CLOSED: errors.NotInitialized,
    lib.NPC_ERR_FORKED: errors.NotInitialized,
    lib.NPC_ERR_BUSY: errors.ConfigError,
    lib.NPC_ERR_LIMIT: errors.NpucollError,
    lib.NPC_ERR_MEMORY: errors.NpucollError,
    lib.NPC_ERR_UNSUPPORTED: errors.UnsupportedError,
    lib.NPC_ERR_SYSTEM: errors.NpucollError,
}

# What a signal's handler raised while the engine asked whether to go on waits here for the interrupted call to return.
_raised: List[BaseException] = []


def _keep(exception: Any, value: Any, traceback: Any) -> int:
    _raised.append(value)
    return 1


@ffi.def_extern(onerror=_keep)
def npucoll_poll() -> int:
    # Entering Python is what lets a pending signal's handler run; if it raises, onerror interrupts the call.
    return 0


@ffi.def_extern(onerror=lambda *_: ffi.NULL)
def npucoll_alloc(user: Any, dtype: int, ndim: int, shape: Any, counts: Any) -> Any:
    return ffi.from_handle(user).allocate(dtype, [shape[i] for i in range(ndim)])


def instructions() -> str:
    """Return the instruction set that reductions use on this processor, such as ``AVX2``."""
    return str(ffi.string(lib.npc_instructions()).decode())


def new_error() -> Any:
    """Return a fresh ``npc_error *`` for one call."""
    return ffi.new("npc_error *")


def check(status: int, error: Any, doing: str = "") -> None:
    """Raise the exception that belongs to ``status``, with the engine's text and what we were doing."""
    if status == lib.NPC_OK:
        return
    if status == lib.NPC_ERR_INTERRUPTED:
        raise _raised.pop() if _raised else KeyboardInterrupt()
    text = ffi.string(error.text).decode("utf-8", "replace") if error is not None else ""
    text = text or ffi.string(lib.npc_status_text(status)).decode()
    if status == lib.NPC_ERR_PEER_LOST:
        text = process_status.explain(text)
    raise _EXCEPTIONS.get(status, errors.NpucollError)(f"{doing}: {text}" if doing else text)


def create_area(size: int) -> int:
    """Return a file descriptor of new anonymous shared memory for a communicator of ``size`` ranks."""
    fd, error = ffi.new("int *"), new_error()
    check(lib.npc_area_create(size, fd, error), error, "making the shared memory")
    return int(fd[0])


def open_comm(fd: int, rank: int, size: int, *, ident: int, name: str, timeout: float, ranks_on_host: int = 0) -> Any:
    """Open the communicator of the area ``fd`` as ``rank``; returns ``npc_comm *``. The caller keeps ``fd``."""
    options = ffi.new(
        "npc_options *",
        {
            "size": ffi.sizeof("npc_options"),
            "timeout_ms": max(1, int(timeout * 1000)),
            "ranks_on_host": ranks_on_host,
            "poll": lib.npucoll_poll,
        },
    )
    comm, error = ffi.new("npc_comm **"), new_error()
    status = lib.npc_comm_open(fd, rank, size, ident, name.encode(), options, comm, error)
    check(status, error, "opening the communicator")
    return comm[0]


def native_api() -> int:
    """Return the address of the engine's ``const npc_api`` (native/include/npucoll.h), for plugins' native code."""
    return int(ffi.cast("uintptr_t", lib.npc_api_get()))
