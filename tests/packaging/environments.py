"""A clean virtual environment for one test."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = ("NPUCOLL_", "PYTHON", "RANK", "OMPI_", "PMI", "SLURM_", "HCCL_")


class Environment:
    """A virtual environment that holds what a test puts into it."""

    def __init__(self, path):
        self.path = path
        self.bin = path / "bin"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True, timeout=120)
        (self.site,) = (path / "lib").glob("python*/site-packages")

    def pip(self, *arguments):
        # Our own pip, told to work on that environment: to put a pip into each would take most of the time.
        command = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "--disable-pip-version-check"]
        done = self.run([*command, *arguments], timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr

    def python(self, code, cwd, **variables):
        return self.run([str(self.bin / "python"), "-c", textwrap.dedent(code)], cwd=cwd, **variables)

    def npucoll(self, *arguments, cwd, **variables):
        return self.run([str(self.bin / "npucoll"), *arguments], cwd=cwd, **variables)

    def run(self, command, cwd=None, timeout=120, **variables):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        kept.update(variables, PYTHONNOUSERSITE="1", TF_CPP_MIN_LOG_LEVEL="3")
        options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
        return subprocess.run(command, cwd=str(cwd or self.path), env=kept, timeout=timeout, **options)

    def add_distribution(self, name, code, entry_point):
        """Install a distribution by hand: one module and its entry point."""
        (self.site / f"{name}.py").write_text(textwrap.dedent(code))
        info = self.site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[npucoll]\n{entry_point}\n")
