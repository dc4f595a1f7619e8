"""How ranks ended, as the launcher saw it: a file that it writes and every rank may read."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Dict, Mapping, Optional

__all__ = ["VARIABLE", "describe", "in_words", "write"]

VARIABLE = "NPUCOLL_STATUS_FILE"
_POLL_SECONDS = 0.01


def describe(rank: int, *, env: Optional[Mapping[str, str]] = None, wait: float = 0.3) -> Optional[str]:
    """Return how a rank of the world ended, for example ``"exited with code 3"``; None where nobody knows.

    The launcher learns of a death a moment after the rank's peers may: ``wait`` is how many seconds it gets.
    """
    path = (os.environ if env is None else env).get(VARIABLE)
    if not path:
        return None
    deadline = time.monotonic() + wait
    while True:
        code = _read(path).get(str(rank))
        if code is not None:
            return in_words(code)
        if time.monotonic() >= deadline or not os.path.exists(path):
            return None
        time.sleep(_POLL_SECONDS)


def in_words(code: int) -> str:
    """Return an exit code, or the negative number of a signal, in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"was killed by signal {-code}"
    return f"was killed by signal {-code} ({name})"


def write(path: str, codes: Mapping[int, int]) -> None:
    """Replace the file at ``path``: exit codes of the ranks that ended, negative numbers of signals where killed."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(codes, file)
    os.replace(path + ".new", path)


def _read(path: str) -> Dict[str, int]:
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
