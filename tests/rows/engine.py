"""The checks of the C engine: its tests, and what needs tools that not every machine has.

spin checks the models of the protocols; qemu's user-mode emulator runs the tests that zig has compiled for aarch64.
"""

from __future__ import annotations

import shutil
import sys
from typing import List, NamedTuple, Sequence

import running
import wheels
from running import Count
from venvs import ROOT, VENVS

__all__ = ["Check", "checks"]


class Check(NamedTuple):
    """What a check found, and, where it was skipped, why."""

    title: str
    found: Count
    skipped: str = ""

    def text(self) -> str:
        """Return the check's line in the summary."""
        if self.skipped:
            return f"{self.title}: skipped, {self.skipped}"
        return f"{self.title}: {'failed' if self.found.failed else 'passed'}"


def checks() -> List[Check]:
    """Run all checks of the engine that this machine can run."""
    return [_sanitizers(), _make("stress test", "stress-short", 300), _models(), _aarch64()]


def _sanitizers() -> Check:
    total = Count()
    for target in ("test", "test-asan", "test-tsan", "test-groups"):
        total = total.plus(_make(f"C tests: make {target}", target, 900).found)
    return Check("C tests with sanitizers", total)


def _models() -> Check:
    title = "models of the protocols"
    if shutil.which("spin") is None:
        return Check(title, Count(skipped=1), "no spin")
    command = [sys.executable, str(ROOT / "native" / "models" / "check.py")]
    return Check(title, running.checked(title, command, 600))


def _aarch64() -> Check:
    title = "C tests for aarch64"
    if shutil.which("qemu-aarch64") is None:
        return Check(title, Count(skipped=1), "no qemu-aarch64")
    zig = wheels.zig()
    if zig is None:
        return Check(title, Count(skipped=1), "ziglang cannot be installed")
    cache = str(VENVS / "zig-cache")
    return _make(title, "test-aarch64", 900, [f"ZIG={zig}"], ZIG_GLOBAL_CACHE_DIR=cache)


def _make(title: str, target: str, timeout: float, settings: Sequence[str] = (), **variables: str) -> Check:
    command = ["make", "--silent", "--no-print-directory", "-C", "native", target, *settings]
    return Check(title, running.checked(title, command, timeout, **variables))
