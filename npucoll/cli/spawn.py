"""Starts the process of one rank: in a session of its own, its output in pipes, bound to the launcher's life."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Callable, Mapping, NamedTuple, NoReturn, Optional, Sequence

from npucoll.errors import ConfigError

__all__ = ["Process", "Spawner", "find_program"]

_PR_SET_PDEATHSIG = 1
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class Process(NamedTuple):
    """A started rank: its pid (also its process group) and the read ends of its pipes."""

    pid: int
    stdout: int
    stderr: int


class Spawner:
    """Starts processes. Only for a process without threads, because it forks and runs Python in the child."""

    def __init__(self) -> None:
        # Found before the fork: the child does as little as it can.
        self._prctl: Callable[..., int] = ctypes.CDLL(None).prctl
        self._null = os.open(os.devnull, os.O_RDWR)

    def start(self, argv: Sequence[str], env: Mapping[str, str], *, use_stdin: bool) -> Process:
        """Run ``argv`` with exactly ``env``; ``use_stdin``: with the launcher's stdin, else with an empty one."""
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        began_read, began_write = os.pipe()
        launcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(argv, env, launcher, None if use_stdin else self._null, out_write, err_write)
        for fd in (out_write, err_write, began_write):
            os.close(fd)
        # The pipe closes when the child has become the program. From then on its process group exists.
        os.read(began_read, 1)
        os.close(began_read)
        return Process(pid, out_read, err_read)

    def _become(
        self, argv: Sequence[str], env: Mapping[str, str], launcher: int, stdin: Optional[int], out: int, err: int
    ) -> NoReturn:
        try:
            os.setsid()
            # Dies with the launcher, even where the watchdog was killed too. If it died before this, it is too late.
            self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != launcher:
                os._exit(1)
            for target, source in ((0, stdin), (1, out), (2, err)):
                if source is not None:
                    os.dup2(source, target)
            signal.set_wakeup_fd(-1)
            # Python ignores these two, and what a process ignores its successors ignore too.
            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(argv[0], list(argv), dict(env))
        except OSError as error:
            os.write(2, f"npucoll: {argv[0]} cannot be run: {error.strerror}\n".encode())
            os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)
        finally:
            os._exit(1)


def find_program(name: str) -> str:
    """Return the program that a shell would run for ``name``.

    Raises:
        ConfigError: there is none, or it is not executable.
    """
    places = [name] if os.path.dirname(name) else [os.path.join(place, name) for place in os.get_exec_path()]
    for path in places:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    found = next((path for path in places if os.path.isfile(path)), None)
    if found is not None:
        raise ConfigError(f"{found} is not executable: chmod +x {found}, or name the program that runs it")
    raise ConfigError(f"there is no program {name!r}" + ("" if os.path.dirname(name) else " on the PATH"))
