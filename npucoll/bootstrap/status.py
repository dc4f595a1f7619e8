"""How ranks ended, as the launcher saw it: a file that it writes and every rank may read."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from typing import Callable, Dict, Mapping, NamedTuple, Optional

__all__ = ["VARIABLE", "Ended", "describe", "explain", "in_words", "write"]

VARIABLE = "NPUCOLL_STATUS_FILE"
_POLL_SECONDS = 0.01
_LOST = re.compile(r"rank (\d+) \(pid (\d+)\) is gone")


class Ended(NamedTuple):
    """A process that has ended: its pid, and its exit code or the negative number of the signal that killed it."""

    pid: int
    code: int


def describe(rank: int, *, env: Optional[Mapping[str, str]] = None, wait: float = 0.3) -> Optional[str]:
    """Return how a rank of the world ended, for example ``"exited with code 3"``; None where nobody knows.

    The launcher learns of a death a moment after the rank's peers may: ``wait`` is how many seconds it gets.
    """
    ended = _await(lambda ranks: ranks.get(rank), env, wait)
    return None if ended is None else in_words(ended.code)


def explain(text: str, *, env: Optional[Mapping[str, str]] = None, wait: float = 0.3) -> str:
    """Return the engine's words about a lost rank with what the launcher knows: its exit code or signal.

    The engine's rank may be one of a group, so the process decides. Where the rank is a child of the launcher's process
    (a script in a shell script), the only rank that has ended must be the one.
    """
    match = _LOST.search(text)
    if match is None:
        return text
    pid = int(match.group(2))

    def find(ranks: Mapping[int, Ended]) -> Optional[Ended]:
        same = [ended for ended in ranks.values() if ended.pid == pid]
        failed = [ended for ended in ranks.values() if ended.code]
        return same[0] if same else failed[0] if len(failed) == 1 else None

    ended = _await(find, env, wait)
    if ended is None:
        return text
    return f"{text[: match.start()]}rank {match.group(1)} (pid {pid}) {in_words(ended.code)}{text[match.end() :]}"


def in_words(code: int) -> str:
    """Return an exit code, or the negative number of a signal, in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"was killed by signal {-code}"
    return f"was killed by signal {-code} ({name})"


def write(path: str, ranks: Mapping[int, Ended]) -> None:
    """Replace the file at ``path`` by one about the ranks that have ended."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump({str(rank): list(ended) for rank, ended in ranks.items()}, file)
    os.replace(path + ".new", path)


def _await(
    find: Callable[[Mapping[int, Ended]], Optional[Ended]], env: Optional[Mapping[str, str]], wait: float
) -> Optional[Ended]:
    path = (os.environ if env is None else env).get(VARIABLE)
    deadline = time.monotonic() + wait
    while path:
        found = find(_read(path))
        if found is not None:
            return found
        if time.monotonic() >= deadline or not os.path.exists(path):
            break
        time.sleep(_POLL_SECONDS)
    return None


def _read(path: str) -> Dict[int, Ended]:
    try:
        with open(path, encoding="utf-8") as file:
            return {int(rank): Ended(*ended) for rank, ended in json.load(file).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # The launcher is gone, or this is not its file.
