"""Runs a function as several ranks, each in a fresh process.

1. Every rank gets the variables of ``npucoll run`` under a job name of its own, so tests never meet each other.
2. The function is found by its module's file, so test modules need not be importable; arguments and results are
   pickled.
3. The first failure ends it: the others get a moment to report too (they may only be its victims), then all are killed
   and the failure that caused it is raised here, with every rank's output.
4. At the deadline every rank that still runs is made to dump its stacks, then all are killed.
"""

from __future__ import annotations

import multiprocessing.connection
import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import IO, Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from npucoll.errors import CollectiveTimeout, PeerLost

__all__ = ["Died", "RankFailed", "RankHang", "RankPool", "run_ranks"]

_GRACE_SECONDS = 3.0
# TensorFlow takes seconds to end, on a busy machine many.
_EXIT_SECONDS = 40.0
_OUTPUT_BYTES = 20000


class RankFailed(AssertionError):
    """A rank raised, or its process ended. The text has its traceback and every rank's output."""


class RankHang(RankFailed):
    """The deadline passed. The text has the stacks of the ranks that were still running."""


class Died(NamedTuple):
    """The result of a rank that was allowed to die, and did: its exit code, or the signal that killed it."""

    code: Optional[int]
    signal: Optional[int]


class _Failure(NamedTuple):
    rank: int
    error: Optional[BaseException]
    text: str
    victim: bool


class _Rank:
    """One worker process, its connection and its output."""

    def __init__(self, rank: int, env: Mapping[str, str]) -> None:
        self.rank = rank
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill()
        ours, theirs = socket.socketpair()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}\n"
            f"from npucoll.testing.worker import main; main({theirs.fileno()}, {os.getpid()})"
        )
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=subprocess.STDOUT,
                env=dict(env),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        finally:
            theirs.close()
        self.connection = multiprocessing.connection.Connection(ours.detach())

    def ended(self) -> str:
        code = self.process.wait()
        if code >= 0:
            return f"ended with code {code}"
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"

    def said(self) -> str:
        self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, self.output.tell() - _OUTPUT_BYTES))
        return self.output.read().decode("utf-8", "replace")

    def kill(self) -> None:
        """End the process and all of its process group."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.connection.close()
        self.output.close()


class RankPool:
    """Rank processes that stay for several calls. A context manager; after a failure the next call starts new ones.

    Args:
        n: the number of ranks.
        env: variables to add to the environment of every rank; None as a value removes one.
    """

    def __init__(self, n: int, *, env: Optional[Mapping[str, Optional[str]]] = None) -> None:
        self._size = n
        self._env = dict(env or {})
        self._ranks: List[_Rank] = []

    def run(
        self, function: Callable[..., Any], *args: Any, timeout: float = 60, may_die: Sequence[int] = ()
    ) -> List[Any]:
        """Call ``function(*args)`` on every rank; return the results, rank after rank.

        Args:
            function: defined at the top level of a module.
            args: what every rank calls it with; pickled.
            timeout: seconds for all ranks together.
            may_die: ranks whose process may end in the call; their result is a ``Died``.

        Raises:
            RankHang: the deadline passed.
            RankFailed: a rank's process ended, or its exception could not be pickled.
            Exception: what the first failing rank raised; its ``__cause__`` is a RankFailed with the details.
        """
        deadline = time.monotonic() + timeout
        file = getattr(sys.modules[function.__module__], "__file__", None)
        if "<" in function.__qualname__:
            raise TypeError(f"{function.__qualname__} is not at the top level of a module: the ranks cannot find it")
        request = (function.__module__, file and os.path.abspath(file), function.__qualname__, pickle.dumps(args))
        try:
            self._start()
            for rank in self._ranks:
                self._send(rank, request)
            return self._collect(deadline, timeout, may_die)
        except BaseException:
            self._kill()
            raise

    def close(self) -> None:
        """End the ranks as a script ends.

        Raises:
            RankFailed: the interpreter of a rank did not end well.
        """
        ranks, self._ranks = self._ranks, []
        try:
            for rank in ranks:
                self._send(rank, None)
            deadline = time.monotonic() + _EXIT_SECONDS
            for rank in ranks:
                try:
                    code = rank.process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    _dump_stacks([rank])
                    raise RankHang(f"rank {rank.rank} does not end after its work\n{_outputs(ranks)}") from None
                if code:
                    raise RankFailed(f"rank {rank.rank} {rank.ended()} after its work\n{_outputs(ranks)}")
        finally:
            for rank in ranks:
                rank.kill()

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._kill()

    def _start(self) -> None:
        if self._ranks:
            return
        job = f"testing-{secrets.token_hex(8)}"
        for rank in range(self._size):
            self._ranks.append(_Rank(rank, self._environment(rank, job)))

    def _environment(self, rank: int, job: str) -> Dict[str, str]:
        env: Dict[str, Optional[str]] = {**os.environ, "NPUCOLL_STATUS_FILE": None}
        env.update(NPUCOLL_RANK=str(rank), NPUCOLL_SIZE=str(self._size), NPUCOLL_JOB=job)
        for name in ("NPUCOLL_LOCAL_RANK", "NPUCOLL_LOCAL_SIZE", "NPUCOLL_NODE_RANK", "NPUCOLL_NODE_COUNT"):
            env[name] = None
        env.update(self._env)
        return {name: value for name, value in env.items() if value is not None}

    @staticmethod
    def _send(rank: _Rank, request: Any) -> None:
        try:
            rank.connection.send(request)
        except OSError:
            pass  # It is dead; that is noticed where its answer is awaited.

    def _collect(self, deadline: float, timeout: float, may_die: Sequence[int]) -> List[Any]:
        results: Dict[int, Any] = {}
        failures: List[_Failure] = []
        running = {rank.connection: rank for rank in self._ranks}
        until = deadline
        while running:
            ready = multiprocessing.connection.wait(list(running), max(0.0, until - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                rank = running.pop(connection)  # type: ignore[call-overload]  # wait() names a wider type
                outcome = self._answer(rank, rank.rank in may_die)
                if isinstance(outcome, _Failure):
                    failures.append(outcome)
                    until = min(until, time.monotonic() + _GRACE_SECONDS)
                else:
                    results[rank.rank] = outcome[0]
        if failures:
            _raise(failures, self._ranks)
        if running:
            _dump_stacks(running.values())
            hanging = ", ".join(str(rank.rank) for rank in running.values())
            raise RankHang(f"after {timeout:g} s these ranks still run: {hanging}\n{_outputs(self._ranks)}")
        if any(isinstance(result, Died) for result in results.values()):
            self._kill()
        return [results[rank] for rank in range(self._size)]

    @staticmethod
    def _answer(rank: _Rank, may_die: bool) -> Any:
        """Return a _Failure, or the result in a list."""
        try:
            kind, *content = rank.connection.recv()
        except (EOFError, OSError):
            text = f"rank {rank.rank} {rank.ended()} without a result"
            if may_die:
                code = rank.process.returncode
                return [Died(code, None) if code >= 0 else Died(None, -code)]
            return _Failure(rank.rank, None, text, False)
        if kind == "result":
            return [pickle.loads(content[0])]
        data, name, text = content
        error = None if data is None else pickle.loads(data)
        victim = isinstance(error, (PeerLost, CollectiveTimeout))
        return _Failure(rank.rank, error, f"rank {rank.rank} raised {name}:\n{text}", victim)

    def _kill(self) -> None:
        for rank in self._ranks:
            rank.kill()
        self._ranks = []


def run_ranks(
    function: Callable[..., Any],
    n: int,
    *args: Any,
    timeout: float = 60,
    env: Optional[Mapping[str, Optional[str]]] = None,
    may_die: Sequence[int] = (),
) -> List[Any]:
    """Call ``function(*args)`` as ``n`` ranks in fresh processes and return the results, rank after rank.

    See ``RankPool``, which keeps the processes for several calls, for the arguments and errors.
    """
    with RankPool(n, env=env) as pool:
        return pool.run(function, *args, timeout=timeout, may_die=may_die)


def _raise(failures: Sequence[_Failure], ranks: Sequence[_Rank]) -> None:
    cause = next((failure for failure in failures if not failure.victim), failures[0])
    others = [failure.text for failure in failures if failure is not cause]
    details = RankFailed("\n".join([cause.text, *others, _outputs(ranks)]))
    if cause.error is None:
        raise details
    raise cause.error from details


def _dump_stacks(ranks: Any) -> None:
    for rank in ranks:
        if rank.process.poll() is None:
            rank.process.send_signal(signal.SIGUSR1)
    time.sleep(0.5)


def _outputs(ranks: Sequence[_Rank]) -> str:
    return "\n".join(f"---- output of rank {rank.rank}\n{rank.said().rstrip()}" for rank in ranks)
