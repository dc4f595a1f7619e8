"""Unix sockets in the abstract namespace: names that exist only while a process holds them, nothing on disk.

Another user may bind a name of ours first. Names therefore have suffixes 0, 1, 2, …: who binds takes the first that no
other user holds, who connects passes by those of other users. The kernel tells the user at the other end (SO_PEERCRED).
"""

from __future__ import annotations

import array
import errno
import hashlib
import json
import os
import re
import socket
import struct
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from npucoll.bootstrap.forks import close_in_child
from npucoll.errors import ConfigError

__all__ = ["Peer", "Taken", "Wire", "connect", "digest", "listen", "meeting_name", "peer_of", "rank_name", "ranks_seen"]

_SUFFIXES = 64
_ALWAYS_TRIED = 8
_BACKLOG = 4096
_SILENT_TRIES = 10


class Peer(NamedTuple):
    """The process at the other end of a connection."""

    pid: int
    uid: int


class Taken(Exception):
    """The name is held by a process of ours; ``wire`` is connected to it."""

    def __init__(self, peer: Peer, wire: Wire) -> None:
        super().__init__(f"held by process {peer.pid}")
        self.peer = peer
        self.wire = wire


class Wire:
    """A connection that carries JSON messages, one a line, and file descriptors. Never blocks."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = b""
        self.fds: List[int] = []
        self.peer = peer_of(sock)
        close_in_child(self)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Dict[str, Any], fd: Optional[int] = None) -> bool:
        """Send one message; returns False where the other end is gone."""
        ancillary = []
        if fd is not None:
            ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd])))
        try:
            # Messages are far smaller than the socket's buffer, so a short write means a peer that does not read.
            data = json.dumps(message).encode() + b"\n"
            return self._socket.sendmsg([data], ancillary, socket.MSG_NOSIGNAL) == len(data)
        except OSError:
            return False

    def receive(self) -> Optional[List[Dict[str, Any]]]:
        """Return the messages that have arrived, or None where the other end is gone or does not speak JSON."""
        room = socket.CMSG_SPACE(4 * array.array("i").itemsize)
        gone = False
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(65536, room, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                break
            except OSError:
                gone = True
                break
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds = array.array("i")
                    fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                    self.fds.extend(fds)
            if not data:
                gone = True
                break
            self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        try:
            messages = [json.loads(line.decode()) for line in lines]
        except ValueError:
            return None
        if not all(isinstance(message, dict) for message in messages):
            return None
        # What was said before the end still counts; the end itself is reported by the next call.
        return None if gone and not messages else messages

    def take_fd(self) -> Optional[int]:
        """Return a received file descriptor, now the caller's."""
        return self.fds.pop(0) if self.fds else None

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []
        self._socket.close()


def digest(*parts: object) -> str:
    """Return a short hash of this user and ``parts``."""
    text = json.dumps([os.geteuid(), *map(str, parts)])
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def rank_name(job: str, size: int, rank: int) -> str:
    """Return the name that a rank holds while it is one."""
    return f"npucoll-{digest(job)}-{size}-{rank}"


def meeting_name(job: str, size: int, generation: int, scope: str, members: Sequence[int]) -> str:
    """Return the name under which the ranks of one communicator meet."""
    return f"npucoll-{digest(job)}-{size}-meet-{digest(generation, scope, list(members))}"


def ranks_seen(job: str) -> Set[Tuple[int, int]]:
    """Return (size, rank) of every rank that is there under this job's name; empty where the system does not tell."""
    pattern = re.compile(rf"@npucoll-{digest(job)}-(\d+)-(\d+)\.\d+$")
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            found = [pattern.search(line.rstrip()) for line in file]
    except OSError:
        return set()
    return {(int(match.group(1)), int(match.group(2))) for match in found if match}


def peer_of(sock: socket.socket) -> Peer:
    """Return who is at the other end."""
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return Peer(pid, uid)


def listen(name: str) -> socket.socket:
    """Bind ``name``, listen, and return the socket (non-blocking, close-on-exec).

    Raises:
        Taken: a process of this user holds it.
        ConfigError: other users hold every suffix.
    """
    for suffix in range(_SUFFIXES):
        for _ in range(_SILENT_TRIES):
            sock = _new_socket()
            try:
                sock.bind(_address(name, suffix))
                sock.listen(_BACKLOG)
                return sock
            except OSError as error:
                sock.close()
                if error.errno != errno.EADDRINUSE:
                    raise
            state, wire = _try(name, suffix)
            if wire is not None:
                raise Taken(wire.peer, wire)
            if state == "foreign":
                break
            # Bound, but not listening: one of ours between the two calls, or gone meanwhile, or not meant for us.
            time.sleep(0.002)
    raise ConfigError(f"other users' processes hold every name like {name!r}; set another JOB_ID")


def connect(name: str) -> Optional[Wire]:
    """Connect to this user's process that listens under ``name``; None where there is none (yet)."""
    last_foreign = 0
    for suffix in range(_SUFFIXES):
        if suffix > last_foreign + _ALWAYS_TRIED:
            return None
        state, wire = _try(name, suffix)
        if wire is not None:
            return wire
        if state == "foreign":
            last_foreign = suffix
    return None


def _try(name: str, suffix: int) -> Tuple[str, Optional[Wire]]:
    sock = _new_socket()
    try:
        sock.connect(_address(name, suffix))
        peer = peer_of(sock)
    except OSError:
        sock.close()
        return "silent", None
    if peer.uid != os.geteuid():
        sock.close()
        return "foreign", None
    return "ours", Wire(sock)


def _new_socket() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    return sock


def _address(name: str, suffix: int) -> bytes:
    return f"\0{name}.{suffix}".encode()
