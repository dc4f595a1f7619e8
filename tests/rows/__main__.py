"""The commands behind the Makefile: ``python3 tests/rows COMMAND``, with nothing but a Python from 3.9 on.

A row is a Python with a TensorFlow. Every row has a virtual environment under .venv/, gets the wheels that ``make
wheels`` builds, and runs all suites with them.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional

import engine
import interpreters
import running
import wheels
from running import Count
from venvs import REQUIREMENTS, ROOT, VENVS, CommandFailed, Venv, clean_environment


class Row(NamedTuple):
    """One Python with one TensorFlow.

    ``core``: this row also runs the suites that need no framework, once for each Python. ``packaging``: it also runs
    the slow tests in clean environments.
    """

    name: str
    title: str
    version: str
    core: bool = False
    packaging: bool = False

    def interpreter(self) -> Optional[interpreters.Interpreter]:
        """Return the Python of this row, or None where the machine has none."""
        if self.name.endswith("tfnew"):
            return interpreters.newest_for_tensorflow(self.version)
        return interpreters.find(self.version)

    def venv(self, interpreter: interpreters.Interpreter) -> Venv:
        """Return the row's environment, not made yet."""
        alone = [REQUIREMENTS / f"{self.name}.no-deps.txt"]
        return Venv(self.name, interpreter, [REQUIREMENTS / f"{self.name}.txt"], alone)


ROWS = (
    Row("py37-tf1.15.5", "Python 3.7 + TensorFlow 1.15.5", "3.7", core=True),
    Row("py311-tf2.15.1", "Python 3.11 + TensorFlow 2.15.1", "3.11"),
    Row("py311-tfnew", "Python 3.11 + the newest TensorFlow", "3.11", core=True, packaging=True),
)


def main() -> int:
    """Run the command of the command line; returns its exit code."""
    commands: Dict[str, Callable[[argparse.Namespace], int]] = {
        "demo": demo,
        "dev": dev,
        "lint": lint,
        "test": test,
        "wheels": build_wheels,
    }
    parser = argparse.ArgumentParser(prog="python3 tests/rows")
    parser.add_argument("command", choices=sorted(commands))
    parser.add_argument("--rows", default="", help="only these rows, separated by commas")
    parser.add_argument("--pytest", default="", help="more arguments for pytest, separated by spaces")
    parser.add_argument("--arch", default="", help="build wheels for another machine, such as aarch64")
    arguments = parser.parse_args()
    try:
        return commands[arguments.command](arguments)
    except CommandFailed as error:
        print(error, file=sys.stderr)
        return 1


# -- test


def test(arguments: argparse.Namespace) -> int:
    """Run the linters, the C tests, and all suites in every row whose Python is here; ends with what ran."""
    wanted = [name for name in arguments.rows.split(",") if name]
    unknown = set(wanted) - {row.name for row in ROWS}
    if unknown:
        raise CommandFailed(f"no row {', '.join(sorted(unknown))}; rows: {', '.join(row.name for row in ROWS)}")
    rows = [row for row in ROWS if not wanted or row.name in wanted]
    running.clear_reports()
    found = {row: row.interpreter() for row in rows}
    venvs = {row: row.venv(interpreter) for row, interpreter in found.items() if interpreter is not None}
    preparing = _Preparing(list(venvs.values()))
    outcomes: List[str] = []
    total = Count()
    if not wanted:
        for check in [engine.Check("lint", _lint()), *engine.checks()]:
            outcomes.append(check.text())
            total = total.plus(check.found)
    built = wheels.build()
    for row in rows:
        if row not in venvs:
            outcomes.append(f"{row.title}: skipped, this machine has no Python {row.version} with venv and pip")
            continue
        try:
            preparing.wait_for(venvs[row])
            venvs[row].install_wheels(built)
            count = running.suites(
                venvs[row], _directories(row), arguments.pytest.split(), NPUCOLL_DIST=str(wheels.DIST)
            )
        except CommandFailed as error:
            print(error, file=sys.stderr, flush=True)
            count = Count(failed=1)
            outcomes.append(f"{row.title}: could not be prepared")
        else:
            outcomes.append(f"{row.title}: ran, {count.text()}")
        total = total.plus(count)
    print("\n== summary")
    print("\n".join(outcomes))
    if not venvs:
        print("no row ran")
        return 1
    print(total.text())
    return 1 if total.failed or not total.passed else 0


def _directories(row: Row) -> List[Path]:
    core = [ROOT / "tests" / name for name in ("unit", "parallel")] if row.core else []
    packaging = [ROOT / "tests" / "packaging"] if row.packaging else []
    found = [*core, *sorted(ROOT.glob("plugins/*/tests")), *packaging]
    return [directory for directory in found if any(directory.glob("test_*.py"))]


class _Preparing:
    """Makes environments one after the other, while the checks that need none are running."""

    def __init__(self, venvs: List[Venv]) -> None:
        self._errors: Dict[str, BaseException] = {}
        self._done = {venv.name: threading.Event() for venv in venvs}
        threading.Thread(target=self._make, args=(venvs,), daemon=True).start()

    def wait_for(self, venv: Venv) -> None:
        """Return when the environment is made, or raise what stopped it."""
        self._done[venv.name].wait()
        if venv.name in self._errors:
            raise self._errors[venv.name]

    def _make(self, venvs: List[Venv]) -> None:
        for venv in venvs:
            try:
                venv.ensure()
            except BaseException as error:  # The waiting thread raises it.
                self._errors[venv.name] = error
            self._done[venv.name].set()


# -- the other commands


def lint(arguments: argparse.Namespace) -> int:
    """Run ruff, mypy and import-linter."""
    return 1 if _lint().failed else 0


def _lint() -> Count:
    interpreter = interpreters.newest_for_tensorflow("3.11")
    if interpreter is None:
        raise CommandFailed("the linters need a Python from 3.9 to 3.13 with venv and pip")
    venv = Venv("lint", interpreter, [REQUIREMENTS / "lint.txt"])
    venv.ensure()
    sources = sorted(ROOT.glob("plugins/*/src"))
    path = ":".join(map(str, [ROOT, *sources]))
    total = running.checked("ruff check", [str(venv.bin / "ruff"), "check", "--quiet"], 120)
    total = total.plus(running.checked("ruff format", [str(venv.bin / "ruff"), "format", "--check", "--quiet"], 120))
    total = total.plus(running.checked("mypy", [str(venv.bin / "mypy"), "npucoll", *map(str, sources)], 600))
    return total.plus(running.checked("import-linter", [str(venv.bin / "lint-imports")], 300, PYTHONPATH=path))


def build_wheels(arguments: argparse.Namespace) -> int:
    """Build all distributions into dist/."""
    for wheel in wheels.build(arguments.arch):
        print(f"{wheel.relative_to(ROOT)}  {wheel.stat().st_size / 1024:.0f} KiB")
    return 0


def dev(arguments: argparse.Namespace) -> int:
    """Make .venv/dev: the newest TensorFlow, the tools, and this checkout, editable."""
    row = ROWS[-1]
    interpreter = row.interpreter()
    if interpreter is None:
        raise CommandFailed("the newest TensorFlow needs a Python from 3.9 to 3.13 with venv and pip")
    files = [REQUIREMENTS / f"{row.name}.txt", REQUIREMENTS / "lint.txt", REQUIREMENTS / "wheels.txt"]
    venv = Venv("dev", interpreter, files, [REQUIREMENTS / f"{row.name}.no-deps.txt"])
    venv.ensure()
    for directory in [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]:
        venv.pip("install", "--no-deps", "--no-build-isolation", "--editable", str(directory))
    print("ready: . .venv/dev/bin/activate")
    return 0


def demo(arguments: argparse.Namespace) -> int:
    """Train on two processes: the Keras example, or the NumPy one where there is no TensorFlow."""
    versions = ["{}.{}".format(*sys.version_info), "3.13", "3.12", "3.11", "3.10", "3.9"]
    known = (interpreters.find(version) for version in versions if version in versions[1:])
    interpreter = next((one for one in known if one is not None), None)
    example = "keras_digits.py"
    if interpreter is not None:
        venv = Venv("demo", interpreter, [REQUIREMENTS / "demo.txt"])
        try:
            venv.ensure()
        except CommandFailed as error:
            print(error, file=sys.stderr, flush=True)
            interpreter = None
    if interpreter is None:
        example = "numpy_sgd.py"
        print("There is no TensorFlow for this Python (it needs 3.9 to 3.13), so the demo trains in NumPy.", flush=True)
        interpreter = interpreters.with_headers(["3.11"])
        if interpreter is None:
            raise CommandFailed("no Python with venv, pip and its C header Python.h was found")
        venv = Venv("demo-numpy", interpreter, [REQUIREMENTS / "demo-numpy.txt"])
        venv.ensure()
    venv.install_wheels(wheels.build())
    command = [str(venv.bin / "npucoll"), "run", "-n", "2", str(ROOT / "examples" / example)]
    return subprocess.run(command, env=clean_environment(TF_CPP_MIN_LOG_LEVEL="2"), cwd=str(venv.path)).returncode


if __name__ == "__main__":
    if sys.version_info < (3, 9):
        sys.exit("this needs Python 3.9 or newer: make PYTHON=/path/to/python3 …")
    VENVS.mkdir(exist_ok=True)
    # Started in the background, a shell lets it ignore these, and all it starts: tests of Ctrl-C would wait in vain.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    # What runs at the moment is in a session of its own, and is ended on the way out.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if not shutil.which("make"):
        print("make is not installed; the C tests will fail", file=sys.stderr)
    sys.exit(main())
