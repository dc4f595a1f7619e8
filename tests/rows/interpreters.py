"""Finds the Pythons of this machine that can make a virtual environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

__all__ = ["Interpreter", "find", "newest_for_tensorflow", "with_headers"]

# Asks an interpreter what it is; one without these modules cannot make a virtual environment with pip in it.
PROBE = """
import ensurepip, json, os, ssl, sys, sysconfig, venv
header = os.path.join(sysconfig.get_path("include"), "Python.h")
print(json.dumps([sys.version_info[:3], os.path.exists(header)]))
"""


class Interpreter(NamedTuple):
    """One Python: where it is, its version, and whether extension modules can be built with it."""

    path: str
    version: Tuple[int, int, int]
    headers: bool


def find(version: str) -> Optional[Interpreter]:
    """Return an interpreter of ``version`` ("3.11"), or None."""
    for path in _candidates(version):
        found = _probe(path)
        if found is not None and "{}.{}".format(*found.version) == version:
            return found
    return None


def newest_for_tensorflow(preferred: str) -> Optional[Interpreter]:
    """Return the preferred version if the machine has it, else this very Python if the newest TensorFlow knows it."""
    found = find(preferred)
    if found is not None:
        return found
    own = _probe(sys.executable)
    return own if own is not None and (3, 9) <= own.version[:2] <= (3, 13) else None


def with_headers(versions: Sequence[str]) -> Optional[Interpreter]:
    """Return the first interpreter among this one and ``versions`` that has Python.h."""
    own = _probe(sys.executable)
    candidates = [own, *(find(version) for version in versions)]
    return next((one for one in candidates if one is not None and one.headers), None)


def _candidates(version: str) -> Iterator[str]:
    seen: List[str] = []
    homes = [os.environ.get("PYENV_ROOT", ""), str(Path.home() / ".pyenv")]
    patterns = [(Path(home) / "versions", f"{version}.*/bin/python{version}") for home in homes if home]
    patterns.append((Path.home() / ".local/share/uv/python", f"cpython-{version}.*/bin/python{version}"))
    patterns.append((Path("/opt/python"), f"cp{version.replace('.', '')}-*/bin/python"))
    paths = [os.path.join(folder, f"python{version}") for folder in os.get_exec_path()]
    for folder, pattern in patterns:
        paths += sorted(map(str, folder.glob(pattern)), reverse=True)
    for path in [*paths, sys.executable]:
        if path not in seen and os.access(path, os.X_OK):
            seen.append(path)
            yield path


def _probe(path: str) -> Optional[Interpreter]:
    try:
        command = [path, "-I", "-c", PROBE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
        version, headers = json.loads(done.stdout) if done.returncode == 0 else (None, False)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return Interpreter(path, tuple(version), headers) if version else None
