"""Watches over the ranks of one job until all have ended.

1. Ranks that end with code 0 are waited for, whatever the others do.
2. The first rank that fails starts the end: the others get 3 s to report what they saw, then SIGTERM, then SIGKILL.
   Its code is the job's, unless it only reports that another was lost and that other one fails within those 3 s.
3. SIGINT, SIGTERM or SIGHUP for the launcher goes on to all ranks, with the same end; a second SIGINT kills at once.
4. What a rank has left running in its process group is ended with the job.
5. When the terminal stops the launcher (Ctrl-Z), the ranks stop with it, and go on with it.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any, Dict, List, Optional, Tuple

from npucoll.bootstrap import status
from npucoll.cli.output import Console, Stream
from npucoll.cli.spawn import Process
from npucoll.cli.watchdog import Watchdog, kill_group, kill_job

__all__ = ["Rank", "Supervisor"]

GRACE_SECONDS = 3.0
TERM_SECONDS = 1.0
_DRAIN_SECONDS = 0.5
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LAST_WORDS = 30
_OUTPUT_CLOSED = 141


class Rank:
    """One rank as the launcher sees it."""

    def __init__(self, rank: int, process: Process, stdout: Stream, stderr: Stream) -> None:
        self.rank = rank
        self.pid = process.pid
        self.stdout = stdout
        self.stderr = stderr
        self.code: Optional[int] = None

    def is_victim(self) -> bool:
        """Return whether it says that it failed because another rank was lost."""
        return self.stderr.has_said(b"PeerLost")

    def last_words(self) -> List[str]:
        words = self.stderr.last_words(_LAST_WORDS) or self.stdout.last_words(_LAST_WORDS)
        prefix = self.stderr.prefix.decode()
        return [prefix + word for word in words]


class Supervisor:
    """Runs the loop of one job. ``with`` installs its signal handlers, which go back at the end."""

    def __init__(self, job: str, console: Console, watchdog: Watchdog, status_file: str) -> None:
        self._job = job
        self._console = console
        self._watchdog = watchdog
        self._status_file = status_file
        self._ranks: List[Rank] = []
        self._running: Dict[int, Rank] = {}
        self._streams: Dict[int, Stream] = {}
        self._failed: List[Rank] = []
        self._ending: List[Tuple[float, int]] = []
        self._signalled = False
        self._received: Optional[int] = None
        self._output_closed = False
        self._handlers: Dict[int, Any] = {}
        self._wake_read, self._wake_write = os.pipe()

    def __enter__(self) -> Supervisor:
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in _FORWARDED:
            # A job that was started to survive a hang-up (nohup) goes on ignoring it.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._on_signal)
        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._on_stop)
        self._handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        self._kill_all()
        for rank in self._running.values():
            os.waitpid(rank.pid, 0)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def add(self, rank: Rank) -> None:
        """Take over a rank that was just started."""
        self._watchdog.add(rank.pid)
        self._ranks.append(rank)
        self._running[rank.pid] = rank
        for stream in (rank.stdout, rank.stderr):
            self._streams[stream.pipe] = stream
        if self._received is not None:
            kill_group(rank.pid, self._received)

    def wait(self) -> int:
        """Return the job's exit code, when all ranks have ended and all that they printed has been printed."""
        while self._running:
            self._turn(self._next_deadline())
            self._reap()
            self._go_on_ending()
        self._end_leftovers()
        return self._conclude()

    # -- one turn of the loop

    def _turn(self, deadline: Optional[float]) -> None:
        poller = select.poll()
        for pipe in self._streams:
            poller.register(pipe, select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            for fd, _ in poller.poll(None if seconds is None else seconds * 1000 + 1):
                if fd == self._wake_read:
                    os.read(self._wake_read, 4096)
                elif not self._streams[fd].read():
                    self._drop(fd)
            now = time.monotonic()
            for stream in self._streams.values():
                if stream.due is not None and stream.due <= now:
                    stream.flush()
        except BrokenPipeError:
            self._on_output_closed()

    def _next_deadline(self) -> Optional[float]:
        times = [stream.due for stream in self._streams.values() if stream.due is not None]
        if self._ending:
            times.append(self._ending[0][0])
        return min(times) if times else None

    def _drop(self, pipe: int) -> None:
        del self._streams[pipe]
        os.close(pipe)

    def _reap(self) -> None:
        ended = []
        for pid, rank in list(self._running.items()):
            found, how = os.waitpid(pid, os.WNOHANG)
            if found:
                rank.code = -os.WTERMSIG(how) if os.WIFSIGNALED(how) else os.WEXITSTATUS(how)
                del self._running[pid]
                ended.append(rank)
        if not ended:
            return
        codes = {rank.rank: status.Ended(rank.pid, rank.code) for rank in self._ranks if rank.code is not None}
        status.write(self._status_file, codes)
        failed = [rank for rank in ended if rank.code]
        if failed and not self._signalled:
            first = not self._failed
            self._failed += failed
            if first and self._received is None:
                self._begin_end(failed[0])

    # -- the end

    def _begin_end(self, rank: Rank) -> None:
        if self._running:
            others = f"the other {len(self._running)} get" if len(self._running) > 1 else "the other one gets"
            self._say(f"npucoll: rank {rank.rank} {_how(rank)}; {others} {GRACE_SECONDS:g} s to end")
        self._schedule()

    def _schedule(self) -> None:
        now = time.monotonic()
        self._ending = [(now + GRACE_SECONDS, signal.SIGTERM), (now + GRACE_SECONDS + TERM_SECONDS, signal.SIGKILL)]

    def _go_on_ending(self) -> None:
        while self._ending and self._ending[0][0] <= time.monotonic():
            _, number = self._ending.pop(0)
            # What fails from here on, fails because we ended it.
            self._signalled = True
            if number == signal.SIGKILL:
                self._kill_all()
            else:
                for rank in self._running.values():
                    kill_group(rank.pid, number)

    def _kill_all(self) -> None:
        for rank in self._running.values():
            kill_group(rank.pid, signal.SIGKILL)

    def _on_signal(self, number: int, _: Any) -> None:
        # Here and not in the loop, because the loop may be held up by a terminal that does not take its output.
        if self._received is not None and number == signal.SIGINT:
            self._kill_all()
            return
        self._received = number
        for rank in self._running.values():
            kill_group(rank.pid, number)
        self._schedule()

    def _on_stop(self, number: int, _: Any) -> None:
        # The ranks are in sessions of their own, where only SIGSTOP stops them.
        for rank in self._running.values():
            kill_group(rank.pid, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        for rank in self._running.values():
            kill_group(rank.pid, signal.SIGCONT)

    def _on_output_closed(self) -> None:
        # As for a program that prints itself: who reads has gone, so the job ends. What is still printed is lost.
        if not self._output_closed:
            self._output_closed = True
            for rank in self._running.values():
                kill_group(rank.pid, signal.SIGTERM)
            self._schedule()
        for pipe in list(self._streams):
            self._drop(pipe)

    def _end_leftovers(self) -> None:
        """End what the ranks have left behind, and print the rest of the output."""
        failed = bool(self._failed) or self._received is not None or self._output_closed
        self._drain(0.0 if failed else _DRAIN_SECONDS)
        number = signal.SIGKILL if failed else signal.SIGTERM
        left = [rank for rank in self._ranks if kill_group(rank.pid, number)]
        if left and not failed:
            self._drain(TERM_SECONDS)
            for rank in left:
                kill_group(rank.pid, signal.SIGKILL)
        if failed:
            kill_job(self._job)
        self._drain(_DRAIN_SECONDS)
        for pipe in list(self._streams):
            stream = self._streams[pipe]
            self._drop(pipe)
            self._quietly(stream.finish)
        for rank in self._ranks:
            self._watchdog.forget(rank.pid)

    def _drain(self, seconds: float) -> None:
        """Print until every pipe has ended, at most for ``seconds``; what is there is always taken."""
        deadline = time.monotonic() + seconds
        while self._streams:
            self._turn(min(deadline, time.monotonic() + 0.05))
            if time.monotonic() >= deadline:
                return

    def _conclude(self) -> int:
        if self._output_closed:
            return _OUTPUT_CLOSED
        if self._received is not None:
            return 128 + self._received
        if not self._failed:
            return 0
        cause = next((rank for rank in self._failed if not rank.is_victim()), self._failed[0])
        words = cause.last_words()
        headline = f"npucoll: rank {cause.rank} {_how(cause)}" + (". Its last words:" if words else "")
        self._say("\n".join([headline, *words]))
        code = cause.code or 1
        return code if code > 0 else 128 - code

    def _say(self, text: str) -> None:
        self._quietly(lambda: self._console.say(text))

    def _quietly(self, action: Any) -> None:
        try:
            action()
        except BrokenPipeError:
            self._output_closed = True


def _how(rank: Rank) -> str:
    words = status.in_words(rank.code or 0)
    if rank.code == -signal.SIGKILL:
        words += "; the system does that where memory runs out"
    return words
