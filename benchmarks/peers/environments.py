"""An environment for each peer, below ``.venv/benchmarks`` in the checkout; each is made once and kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peers.adapter import Peer

__all__ = ["CHECKOUT", "CommandFailed", "Venv", "prepared"]

CHECKOUT = Path(__file__).resolve().parents[2]
_HOME = CHECKOUT / ".venv" / "benchmarks"
_BASE = ("cffi", "pluggy", "numpy", "ml_dtypes")
_PATIENCE = 900.0


class CommandFailed(Exception):
    """A command ended with an error; the text is what it said last."""


class Venv:
    """A virtual environment of the Python that runs this, where the checkout's npucoll can be imported."""

    def __init__(self, name: str) -> None:
        self.path = _HOME / name
        self.bin = self.path / "bin"
        self.python = str(self.bin / "python")
        self.log = _HOME / f"{name}.log"

    def environment(self, **more: str) -> dict[str, str]:
        """Return the variables for a command of this environment."""
        path = f"{self.bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {**os.environ, "PATH": path, "PYTHONPATH": str(CHECKOUT), **more}

    def pip(self, *arguments: str, **variables: str) -> None:
        """Run pip; CommandFailed says what it said last."""
        self.run([self.python, "-m", "pip", *arguments], **variables)

    def run(self, command: list[str], **variables: str) -> None:
        """Run a command with its words in the log; CommandFailed says what it said last."""
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            try:
                code = subprocess.run(
                    command, stdout=log, stderr=log, env=self.environment(**variables), timeout=_PATIENCE, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                raise CommandFailed(f"not done after {_PATIENCE:.0f} s") from None
        if code:
            raise CommandFailed(self._last_words())

    def _last_words(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        telling = [line.strip() for line in lines if "error" in line.lower()]
        return (telling or lines)[-1][:200]


def prepared(name: str, *requirements: str, peer: Peer | None = None) -> Venv:
    """Return an environment with what npucoll needs, these packages and a peer; CommandFailed: there is none."""
    venv = Venv(name)
    ready = venv.path / "ready"
    if not ready.exists():
        _HOME.mkdir(parents=True, exist_ok=True)
        venv.log.unlink(missing_ok=True)
        venv.run([sys.executable, "-m", "venv", "--clear", str(venv.path)])
        venv.pip("install", *_BASE, *requirements)
        if peer is not None:
            peer.install(venv)
        ready.touch()
    return venv
