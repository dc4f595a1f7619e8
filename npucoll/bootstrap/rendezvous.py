"""How the ranks of one communicator meet on a host and come to share its memory.

1. Every rank claims its place in the job (claim.py), so that no rank is taken twice.
2. The lowest member leads: it listens under a name that user, job, size, scope, members and generation give.
3. The others connect as soon as somebody listens, and say who they are: protocol, version, rank, size.
4. When all are there, the leader makes the shared memory, sends everyone its descriptor, and then the word to go.
5. Until then anybody's failure is everybody's: the leader passes on what went wrong, in words. A rank that only dies
   may be started again; the others wait for it until their deadline, and then name who is absent.
"""

from __future__ import annotations

import logging
import os
import select
import time
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence

from npucoll.bootstrap.claim import Claim
from npucoll.bootstrap.forks import close_in_child
from npucoll.bootstrap.identity import Identity
from npucoll.bootstrap.sockets import Taken, Wire, connect, listen, meeting_name, ranks_seen
from npucoll.errors import CollectiveTimeout, ConfigError, NpucollError, PeerLost, UnsupportedError

__all__ = ["Meeting", "meet"]

_PROTOCOL = 1
_NOTICE_SECONDS = 10.0
_log = logging.getLogger("npucoll")


class Meeting:
    """What a meeting leaves behind: ``fd``, the shared memory, and the rank's claim on its place.

    ``close`` closes both and may be called again. Both are closed in a forked child.
    """

    def __init__(self, fd: int, claim: Optional[Claim] = None) -> None:
        self.fd = fd
        self._claim = claim
        close_in_child(self)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def meet(
    identity: Identity,
    *,
    generation: int,
    scope: str = "world",
    members: Optional[Sequence[int]] = None,
    timeout: float,
    create_area: Optional[Callable[[int], int]] = None,
) -> Meeting:
    """Wait until all members are here and return their shared memory.

    Args:
        identity: who this process is.
        generation: how often this process has begun a world; equal on all ranks.
        scope: the communicator's name; only ``"world"`` claims the rank.
        members: the ranks of a sub-group, this one among them; default: all.
        timeout: seconds to wait for the others.
        create_area: makes the shared memory for a number of ranks; default: the engine's.

    Raises:
        CollectiveTimeout: a rank is absent at the deadline of one of them; the text names it.
        ConfigError: a rank was started twice, or ranks disagree about the size, the version or the protocol.
        UnsupportedError: the ranks are on several hosts.
    """
    everyone = sorted(range(identity.size) if members is None else members)
    if identity.rank not in everyone or everyone[0] < 0 or everyone[-1] >= identity.size:
        raise ConfigError(f"rank {identity.rank} of {identity.size} cannot meet the members {everyone} of {scope!r}")
    if identity.node_count > 1:
        raise UnsupportedError(
            f"the {identity.size} ranks are on {identity.node_count} hosts ({identity.source}); the ranks of one host "
            "can meet through shared memory, beyond it takes an engine that crosses hosts"
        )
    area = _engine_area if create_area is None else create_area
    if len(everyone) == 1:
        return Meeting(area(1))
    claim = Claim.take(identity, timeout) if scope == "world" else None
    try:
        party = _Party(identity, generation, scope, everyone, timeout, claim)
        fd = _Leader(party).lead(area) if identity.rank == everyone[0] else _Member(party).join()
    except BaseException:
        if claim is not None:
            claim.close()
        raise
    return Meeting(fd, claim)


class _Party:
    """What leader and members both know of one meeting, and the words for what goes wrong."""

    def __init__(
        self,
        identity: Identity,
        generation: int,
        scope: str,
        members: List[int],
        timeout: float,
        claim: Optional[Claim],
    ) -> None:
        self.identity = identity
        self.scope = scope
        self.members = members
        self.claim = claim
        self.timeout = timeout
        self.name = meeting_name(identity.job, identity.size, generation, scope, members)
        self.started = time.monotonic()
        self.deadline = self.started + timeout
        self._noticed = False
        self._seen = {(identity.size, identity.rank)}

    def hello(self) -> Dict[str, Any]:
        from npucoll import __version__

        rank, size = self.identity.rank, self.identity.size
        return {"protocol": _PROTOCOL, "version": __version__, "rank": rank, "size": size, "members": self.members}

    def wait(self, things: Sequence[Any], seconds: float) -> List[Any]:
        """Return which of ``things`` have something to read, after at most ``seconds``.

        Raises:
            ConfigError: another process wants this rank too.
        """
        watched = list(things) if self.claim is None else [*things, self.claim]
        poller = select.poll()
        by_fd = {thing.fileno(): thing for thing in watched}
        for fd in by_fd:
            poller.register(fd, select.POLLIN)
        ready = [by_fd[fd] for fd, _ in poller.poll(max(0.0, seconds) * 1000)]
        if self.claim in ready and self.claim is not None:
            ready.remove(self.claim)
            self.claim.check()
        return ready

    def pause(self, absent: Sequence[int]) -> float:
        """Return how long to wait for news; says once, after a while, for whom."""
        now = time.monotonic()
        if now - self.started >= _NOTICE_SECONDS and not self._noticed:
            self._noticed = True
            self._look_around()
            _log.warning(
                "npucoll: rank %d has waited %.0f s for %s and will wait %.0f s more%s",
                self.identity.rank,
                now - self.started,
                _ranks(absent),
                max(0.0, self.deadline - now),
                self._strangers(),
            )
        # Towards the deadline, note who is there: those with the same deadline may have left when ours comes.
        close = self.deadline - min(1.0, self.timeout / 3)
        if now >= close:
            self._look_around()
            return min(0.05, self.deadline - now)
        return (close if self._noticed else min(close, self.started + _NOTICE_SECONDS)) - now

    def too_late(self, absent: Sequence[int], seconds: Optional[float] = None) -> NpucollError:
        """Return the error for a deadline that passed without ``absent``; ``seconds``: of another rank's deadline."""
        present = [rank for rank in self.members if rank not in absent]
        what = f"{self.scope!r} of {len(self.members)} ranks"
        strangers = self._strangers()
        text = (
            f"{what}: {_ranks(absent)} did not arrive within {self.timeout if seconds is None else seconds:g} s; "
            f"{_ranks(present)} {'is' if len(present) == 1 else 'are'} here "
            f"({self.identity.source}: {self.identity.detail}){strangers}"
        )
        return ConfigError(text) if strangers else CollectiveTimeout(text)

    def unseen(self) -> List[int]:
        """Return the members that were not running lately; the leader where the system does not tell."""
        seen = {rank for size, rank in self._seen if size == self.identity.size}
        return [rank for rank in self.members if rank not in seen] or self.members[:1]

    def _look_around(self) -> None:
        self._seen |= ranks_seen(self.identity.job)

    def _strangers(self) -> str:
        others = sorted(pair for pair in self._seen if pair[0] != self.identity.size)
        if not others:
            return ""
        size, rank = others[0]
        return f"; under the same job name there is a rank {rank} of {size}: ranks disagree about the number of ranks"


class _Leader:
    """The lowest member: waits for all the others and hands out the memory."""

    def __init__(self, party: _Party) -> None:
        self._party = party
        self._joined: Dict[int, Wire] = {}
        self._unknown: List[Wire] = []
        self._listener = _Listener(party)

    def lead(self, create_area: Callable[[int], int]) -> int:
        party = self._party
        try:
            while self._absent():
                if time.monotonic() >= party.deadline:
                    raise party.too_late(self._absent())
                things = [self._listener, *self._unknown, *self._joined.values()]
                for thing in party.wait(things, party.pause(self._absent())):
                    if thing is self._listener:
                        self._unknown += self._listener.accept()
                    else:
                        self._hear(thing)
            fd = create_area(len(party.members))
            try:
                self._hand_out(fd)
            except BaseException:
                os.close(fd)
                raise
            return fd
        except BaseException as error:
            self._tell(error)
            raise
        finally:
            for wire in [*self._unknown, *self._joined.values()]:
                wire.close()
            self._listener.close()

    def _absent(self) -> List[int]:
        return [rank for rank in self._party.members[1:] if rank not in self._joined]

    def _hear(self, wire: Wire) -> None:
        messages = wire.receive()
        if messages is None:
            self._drop(wire)
            return
        for message in messages:
            if "failed" in message:
                raise _error_from(message)
            if "give_up" in message:
                raise self._party.too_late(self._absent(), message["give_up"])
            self._welcome(wire, message)

    def _welcome(self, wire: Wire, hello: Dict[str, Any]) -> None:
        mine = self._party.hello()
        for key, what in (("protocol", "protocol"), ("version", "version of npucoll"), ("size", "size of the job")):
            if hello.get(key) != mine[key]:
                raise ConfigError(
                    f"process {wire.peer.pid} comes with {what} {hello.get(key)!r}, rank {mine['rank']} has "
                    f"{mine[key]!r}"
                )
        rank = hello.get("rank")
        if rank not in self._party.members[1:] or hello.get("members") != self._party.members:
            raise ConfigError(
                f"process {wire.peer.pid} comes as rank {rank!r}, which has no part in {self._party.scope!r}"
            )
        if rank in self._joined:
            raise ConfigError(
                f"rank {rank} was started twice: processes {self._joined[rank].peer.pid} and {wire.peer.pid}"
            )
        self._unknown.remove(wire)
        self._joined[rank] = wire

    def _drop(self, wire: Wire) -> None:
        if wire in self._unknown:
            self._unknown.remove(wire)
        for rank in [rank for rank, other in self._joined.items() if other is wire]:
            del self._joined[rank]
        wire.close()

    def _hand_out(self, fd: int) -> None:
        # Two rounds: nobody goes ahead with memory that another could not be given.
        for rank, wire in self._joined.items():
            if not wire.send({"area": len(self._party.members)}, fd):
                raise PeerLost(f"rank {rank} (process {wire.peer.pid}) died while the ranks met")
        for wire in self._joined.values():
            wire.send({"go": True})

    def _tell(self, error: BaseException) -> None:
        text = str(error) if isinstance(error, NpucollError) else f"rank {self._party.identity.rank}: {error!r}"
        kind = type(error).__name__ if type(error) in _TELLABLE.values() else PeerLost.__name__
        for wire in [*self._unknown, *self._joined.values()]:
            wire.send({"failed": text, "kind": kind})


class _Listener:
    """The leader's socket. Other users' connections are closed unread."""

    def __init__(self, party: _Party) -> None:
        while True:
            try:
                self._socket = listen(party.name)
                break
            except Taken as taken:
                # The rank is ours alone, so this is a meeting of the same name that another thread has not ended yet.
                taken.wire.close()
                if time.monotonic() >= party.deadline:
                    raise ConfigError(f"process {taken.peer.pid} leads a meeting of {party.scope!r} already") from None
                time.sleep(0.005)
        close_in_child(self)

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> List[Wire]:
        """Return the new connections of this user's processes."""
        wires: List[Wire] = []
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return wires
            sock.setblocking(False)
            wire = Wire(sock)
            if wire.peer.uid == os.geteuid():
                wires.append(wire)
            else:
                wire.close()

    def close(self) -> None:
        self._socket.close()


class _Member:
    """Any other member: finds the leader, and waits for the memory and the word to go."""

    def __init__(self, party: _Party) -> None:
        self._party = party

    def join(self) -> int:
        party = self._party
        nap = 0.0005
        while True:
            wire = connect(party.name)
            if wire is not None:
                try:
                    fd = self._attend(wire)
                finally:
                    wire.close()
                if fd is not None:
                    return fd
            if time.monotonic() >= party.deadline:
                raise party.too_late(party.unseen())
            party.wait([], min(nap, party.pause(party.members[:1])))
            nap = min(nap * 1.5, 0.02 if time.monotonic() - party.started < _NOTICE_SECONDS else 0.05)

    def _attend(self, wire: Wire) -> Optional[int]:
        """Return the shared memory, or None where the leader went away (another may come)."""
        party = self._party
        if not wire.send(party.hello()):
            return None
        area: Optional[int] = None
        try:
            while True:
                try:
                    ready = party.wait([wire], party.deadline - time.monotonic())
                except ConfigError as error:
                    wire.send({"failed": str(error), "kind": ConfigError.__name__})
                    raise
                if not ready:
                    if time.monotonic() >= party.deadline:
                        self._give_up(wire)
                    continue
                messages = wire.receive()
                if messages is None:
                    return None
                for message in messages:
                    if "failed" in message:
                        raise _error_from(message)
                    if "area" in message:
                        area = wire.take_fd()
                    elif "go" in message and area is not None:
                        given, area = area, None
                        return given
        finally:
            if area is not None:
                os.close(area)

    def _give_up(self, wire: Wire) -> NoReturn:
        # The leader knows who is absent; it tells all of us, and all of us stop waiting.
        wire.send({"give_up": self._party.timeout})
        if select.select([wire], [], [], 1.0)[0]:
            for message in wire.receive() or []:
                if "failed" in message:
                    raise _error_from(message)
        raise self._party.too_late(self._party.unseen())


_TELLABLE = {kind.__name__: kind for kind in (CollectiveTimeout, ConfigError, PeerLost, UnsupportedError)}


def _error_from(message: Dict[str, Any]) -> NpucollError:
    return _TELLABLE.get(str(message.get("kind")), PeerLost)(str(message["failed"]))


def _ranks(ranks: Sequence[int]) -> str:
    if not ranks:
        return "no rank"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _engine_area(size: int) -> int:
    from npucoll._ffi import create_area

    return create_area(size)
