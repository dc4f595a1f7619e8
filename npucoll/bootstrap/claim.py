"""A rank's claim on its place: a name that one process can hold, so that nobody takes the same rank twice."""

from __future__ import annotations

import os
import select
import socket
import time
from typing import Optional

from npucoll.bootstrap.forks import close_in_child
from npucoll.bootstrap.identity import Identity
from npucoll.bootstrap.sockets import Peer, Taken, Wire, listen, rank_name
from npucoll.errors import ConfigError

__all__ = ["Claim"]

# How long a new process waits for the old holder of its rank to go: a crashed job that is restarted at once has ranks
# that the launcher is still ending (3 s of grace, then 1 s for SIGTERM).
RESTART_SECONDS = 6.0


class Claim:
    """The name of a rank, held by this process until ``close``. A forked child does not hold it.

    Who finds the name taken says so to the holder. A holder that is still meeting the others then fails too: nobody
    can know which of the two was meant. One that has met them already does not look any more.
    """

    def __init__(self, identity: Identity, sock: socket.socket) -> None:
        self._identity = identity
        self._socket = sock
        close_in_child(self)

    @classmethod
    def take(cls, identity: Identity, timeout: float) -> Claim:
        """Claim the rank; waits a few seconds for a holder that may be about to end.

        Raises:
            ConfigError: another process has the rank, and keeps it.
        """
        name = rank_name(identity.job, identity.size, identity.rank)
        deadline = time.monotonic() + min(timeout, RESTART_SECONDS)
        while True:
            try:
                return cls(identity, listen(name))
            except Taken as taken:
                wire, holder = taken.wire, taken.peer
            try:
                _refuse_relative(identity, holder)
                wire.send({"duplicate": os.getpid()})
                _wait_for_end(identity, wire, deadline)
            finally:
                wire.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def check(self) -> None:
        """Answer processes that want the same rank. Never blocks.

        Raises:
            ConfigError: there was one.
        """
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            sock.setblocking(False)
            wire = Wire(sock)
            try:
                if wire.peer.uid == os.geteuid():
                    wire.send({"taken": os.getpid()})
                    raise _twice(self._identity, wire.peer.pid)
            finally:
                wire.close()

    def close(self) -> None:
        """Give the rank's name back. May be called again."""
        self._socket.close()


def _wait_for_end(identity: Identity, wire: Wire, deadline: float) -> None:
    """Return when the holder at the other end of ``wire`` gives the name up; raise where it does not."""
    pid = wire.peer.pid
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ConfigError(
                f"rank {identity.rank} of {_job(identity)} is already taken by process {pid}{_command(pid)}, "
                f"which goes on; this is process {os.getpid()}. Give every process its own rank, and every job its own "
                "JOB_ID"
            )
        if select.select([wire], [], [], left)[0]:
            messages = wire.receive()
            if messages is None:
                return
            if any("taken" in message for message in messages):
                raise _twice(identity, pid)


def _refuse_relative(identity: Identity, holder: Peer) -> None:
    """Raise at once where waiting is pointless: the holder is this process or started it."""
    if holder.pid == os.getpid():
        raise ConfigError(
            f"this process (pid {holder.pid}) is rank {identity.rank} of {_job(identity)} already: "
            "call npucoll.shutdown() first"
        )
    pid: Optional[int] = os.getppid()
    while pid is not None and pid > 1:
        if pid == holder.pid:
            raise ConfigError(
                f"rank {identity.rank} of {_job(identity)} is already taken by process {pid}, which started this one "
                f"(pid {os.getpid()}) and passed its variables on ({identity.detail}): unset them in child processes"
            )
        pid = _parent(pid)


def _twice(identity: Identity, other: int) -> ConfigError:
    return ConfigError(
        f"rank {identity.rank} of {_job(identity)} was started twice: process {os.getpid()} and process "
        f"{other}{_command(other)}. Give every process its own rank, and every job its own JOB_ID"
    )


def _job(identity: Identity) -> str:
    return f"the job of {identity.size} ranks ({identity.source}: {identity.detail})"


def _parent(pid: int) -> Optional[int]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    text = " ".join(words).strip()
    return f" ({text[:80]})" if text else ""
