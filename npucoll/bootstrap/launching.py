"""Finds the process that launched the ranks, for launchers that give their job no name."""

from __future__ import annotations

import os
from typing import Optional

__all__ = ["launcher_process"]


def launcher_process(variable: str, pid: Optional[int] = None) -> str:
    """Return a name, ``"<pid>.<start time>"``, of the nearest ancestor whose environment lacks ``variable``.

    All ranks of one job on one host have that ancestor in common, however many shells lie between. Another user's
    process counts as one without the variable. ``"unknown"`` where there is none: a rank in a container of its own sees
    no ancestors, and has to find the others all the same.
    """
    needle = variable.encode() + b"="
    current = os.getppid() if pid is None else pid
    while current > 1:
        try:
            with open(f"/proc/{current}/environ", "rb") as file:
                entries = file.read().split(b"\0")
        except OSError:
            break
        if not any(entry.startswith(needle) for entry in entries):
            break
        current = int(_stat(current, 1) or 0)
    return f"{current}.{_stat(current, 19) or 0}" if current > 1 else "unknown"


def _stat(pid: int, field: int) -> Optional[str]:
    # Counted behind the command name, which may hold blanks and parentheses: 0 state, 1 parent, 19 start time.
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[field].decode()
    except (OSError, IndexError):
        return None
