"""Ends the ranks where the launcher cannot: a process of its own that notices when the launcher is gone.

1. Before any rank starts, the launcher forks the watchdog, which leaves the launcher's session and ignores signals.
2. They share a pipe; only the launcher has its write end. It writes the process group of every rank.
3. When the launcher is done it says so. An end of the pipe without that means that the launcher was killed: the
   watchdog kills the groups, then every process that carries the job's name in its environment, wherever it has moved
   to, and removes the job's files.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Callable, Iterator, List, Set

__all__ = ["Watchdog", "kill_group", "kill_job"]

_DONE = b"done\n"


class Watchdog:
    """The launcher's end of the pipe."""

    def __init__(self, job: str, clean_up: Callable[[], None]) -> None:
        read_end, self._write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(self._write_end)
                _watch(read_end, job, clean_up)
            finally:
                os._exit(0)
        os.close(read_end)
        self._pid = pid

    def add(self, group: int) -> None:
        """Have the process group ``group`` killed if the launcher dies."""
        self._tell(b"+%d\n" % group)

    def forget(self, group: int) -> None:
        """Nothing of ``group`` is left: its number may soon be somebody else's."""
        self._tell(b"-%d\n" % group)

    def dismiss(self) -> None:
        """The launcher is done."""
        self._tell(_DONE)
        os.close(self._write_end)
        os.waitpid(self._pid, 0)

    def _tell(self, line: bytes) -> None:
        try:
            os.write(self._write_end, line)
        except OSError:
            pass  # Somebody killed the watchdog; the ranks still die with the launcher, their children may not.


def _watch(read_end: int, job: str, clean_up: Callable[[], None]) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    text = b""
    while True:
        data = os.read(read_end, 4096)
        if not data:
            break
        text += data
    if text.endswith(_DONE):
        return
    groups: Set[int] = set()
    for line in text.split():
        (groups.add if line.startswith(b"+") else groups.discard)(int(line[1:]))
    for group in groups:
        kill_group(group, signal.SIGKILL)
    kill_job(job)
    clean_up()


def kill_group(group: int, number: int) -> bool:
    """Send a signal to a process group; returns False where nothing of it is left."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # A member runs as another user; the others have got it.
    return True


def kill_job(job: str) -> None:
    """Kill every process whose environment names ``job``, also those that left their process group."""
    for _ in range(5):
        # A process that was forked while we looked is found the next time.
        found: List[int] = list(_members(job))
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.02)


def _members(job: str) -> Iterator[int]:
    needle = b"NPUCOLL_JOB=" + job.encode() + b"\0"
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if needle in file.read():
                    yield int(entry)
        except OSError:
            continue  # It ended, or it is another user's.
