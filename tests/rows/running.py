"""Runs the suites of one row, or the checks that need no row, and counts what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence

from venvs import ROOT, VENVS, Venv, clean_environment

__all__ = ["Count", "checked", "suites"]

SUITE_TIMEOUT = 1500


class Count(NamedTuple):
    """Tests that passed, failed (errors included), and were skipped."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def plus(self, other: Count) -> Count:
        """Return the sum of two counts."""
        return Count(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def text(self) -> str:
        """Return the count as the last line of a run shows it."""
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def suites(venv: Venv, directories: Sequence[Path], extra: Sequence[str] = (), **variables: str) -> Count:
    """Run pytest in each directory, with what is installed in ``venv``, not what lies in the checkout."""
    total = Count()
    start_dir = venv.path / "start"
    start_dir.mkdir(exist_ok=True)
    path = f"{venv.bin}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = clean_environment(PATH=path, TF_CPP_MIN_LOG_LEVEL="2", PYTHONDONTWRITEBYTECODE="1", **variables)
    for directory in directories:
        name = str(directory.relative_to(ROOT))
        report = venv.path / f"report-{name.replace('/', '-')}.xml"
        if report.exists():
            report.unlink()
        print(f"\n== {venv.name}: {name}", flush=True)
        command = [str(venv.bin / "pytest"), "-q", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
        command += ["-p", "no:cacheprovider", f"--junitxml={report}", *extra, str(directory)]
        code = _call(command, environment, str(start_dir), SUITE_TIMEOUT)
        total = total.plus(_read(report, code))
    return total


def checked(title: str, command: List[str], timeout: float, **variables: str) -> Count:
    """Run a command that passes or fails as a whole."""
    print(f"\n== {title}", flush=True)
    code = _call(command, clean_environment(**variables), str(ROOT), timeout)
    if code != 0:
        print(f"{title}: failed with code {code}", flush=True)
    return Count(passed=1) if code == 0 else Count(failed=1)


def _read(report: Path, code: Optional[int]) -> Count:
    # Code 5: no test was collected, as where a plugin's framework is absent.
    if code == 5:
        return Count()
    if not report.exists():
        return Count(failed=1)
    total = Count()
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        numbers = {key: int(suite.get(key, "0")) for key in ("tests", "failures", "errors", "skipped")}
        failed = numbers["failures"] + numbers["errors"]
        passed = numbers["tests"] - failed - numbers["skipped"]
        total = total.plus(Count(passed, failed, numbers["skipped"]))
    # Something outside of the tests went wrong, such as a crash at exit or a conftest that does not import.
    return total if code == 0 or total.failed else total.plus(Count(failed=1))


def _call(command: List[str], environment: Dict[str, str], cwd: str, timeout: float) -> Optional[int]:
    """Run a command in a process group of its own, ended after ``timeout`` seconds; returns its code or None."""
    start = time.monotonic()
    process = subprocess.Popen(command, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        print(f"{command[0]} was ended: it ran for more than {timeout:.0f} s", flush=True)
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        print(f"({time.monotonic() - start:.0f} s)", flush=True)


def clear_reports() -> None:
    """Forget the reports of earlier runs."""
    for report in VENVS.glob("*/report-*.xml"):
        report.unlink()
