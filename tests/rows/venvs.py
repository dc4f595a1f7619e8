"""Makes virtual environments under .venv/, and keeps them while what they are made from does not change."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Dict, Iterable, List, Sequence

from interpreters import Interpreter

__all__ = ["REQUIREMENTS", "ROOT", "VENVS", "CommandFailed", "Venv", "clean_environment", "run", "tree_hash"]

ROOT = Path(__file__).resolve().parents[2]
VENVS = ROOT / ".venv"
REQUIREMENTS = ROOT / "tests" / "requirements"

# A launcher's or a configuration's variables would change what tests see.
FOREIGN = ("NPUCOLL_", "HCCL_", "RANK_", "OMPI_", "PMI", "SLURM_", "HOROVOD_", "CM_", "PYTEST_", "PYTHON")
FOREIGN_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TF_CONFIG", "JOB_ID", "VIRTUAL_ENV")


# What sources are written in; builds leave other files beside them.
KINDS = ("", ".c", ".h", ".in", ".md", ".py", ".toml", ".typed")


class CommandFailed(Exception):
    """A command that prepares something failed; the text is what it printed last."""


class Venv:
    """A virtual environment of a name, an interpreter and requirements files (``no_deps``: installed alone)."""

    def __init__(
        self, name: str, interpreter: Interpreter, requirements: Sequence[Path], no_deps: Sequence[Path] = ()
    ) -> None:
        self.name = name
        self.path = VENVS / name
        self.bin = self.path / "bin"
        self.python = str(self.bin / "python")
        self._interpreter = interpreter
        self._requirements = list(requirements)
        self._no_deps = [path for path in no_deps if path.exists()]

    def ensure(self) -> None:
        """Make the environment, unless it is there as asked."""
        files = self._requirements + self._no_deps
        stamp = self.path / "requirements.stamp"
        wanted = _digest(
            [f"{self._interpreter.path} {self._interpreter.version}", *(path.read_text() for path in files)]
        )
        if stamp.exists() and stamp.read_text() == wanted:
            return
        start = time.monotonic()
        print(f"{self.name}: making .venv/{self.name}", flush=True)
        shutil.rmtree(self.path, ignore_errors=True)
        run([self._interpreter.path, "-m", "venv", str(self.path)])
        self.pip("install", *(part for path in self._requirements for part in ("-r", str(path))))
        for path in self._no_deps:
            self.pip("install", "--no-deps", "-r", str(path))
        stamp.write_text(wanted)
        print(f"{self.name}: .venv/{self.name} is ready after {time.monotonic() - start:.0f} s", flush=True)

    def install_wheels(self, wheels: Iterable[Path]) -> None:
        """Install exactly these wheels of ours, unless they are installed already."""
        files = sorted(wheels)
        stamp = self.path / "wheels.stamp"
        wanted = _digest([hashlib.sha256(path.read_bytes()).hexdigest() for path in files])
        if stamp.exists() and stamp.read_text() == wanted:
            return
        stamp.unlink() if stamp.exists() else None
        self.pip("install", "--no-deps", "--force-reinstall", *map(str, files))
        stamp.write_text(wanted)

    def pip(self, *arguments: str) -> None:
        """Run this environment's pip."""
        run([self.python, "-m", "pip", arguments[0], "--quiet", "--disable-pip-version-check", *arguments[1:]])


def run(command: List[str], **options: object) -> None:
    """Run a command that prepares something; what it prints is shown where it fails."""
    settings: Dict[str, object] = {"env": clean_environment(), "cwd": str(ROOT), **options}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, **settings
    )  # type: ignore[call-overload]  # the options are those of subprocess.run
    if done.returncode != 0:
        raise CommandFailed(f"{' '.join(command)}\nfailed with code {done.returncode}:\n{done.stdout[-4000:]}")


def clean_environment(**more: str) -> Dict[str, str]:
    """Return this process's environment without what would change the outcome of tests, plus ``more``."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(FOREIGN) and name not in FOREIGN_NAMES
    }
    kept.update({"PYTHONNOUSERSITE": "1"})
    kept.update(more)
    return kept


def tree_hash(paths: Iterable[Path]) -> str:
    """Return a digest of the names and contents of all files under ``paths``."""
    files: List[Path] = []
    for path in paths:
        files += [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    kept = [one for one in files if one.suffix in KINDS]
    return _digest([f"{one.relative_to(ROOT)} {hashlib.sha256(one.read_bytes()).hexdigest()}" for one in sorted(kept)])


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
