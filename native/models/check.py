#!/usr/bin/env python3
"""Checks the models beside this file exhaustively with spin: ``python3 check.py [MODEL ...]``.

The comment at the head of a model says what to check. ``check: NAME=VALUE ...`` must hold for these constants: no
assertion fails, no process is stuck; and every statement of a process is reached in one of the model's checks at
least. ``fails: BUG_NAME ...: assertion`` (or ``: stuck``) must be found wrong, in this way: it proves that the model
would notice such a mistake.

Needs spin and a C compiler. Prints a line for each check that fails, then ``N passed, N failed``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Set

HERE = Path(__file__).resolve().parent
MEMORY = 2048  # MiB for the states of one check
SECONDS = 120  # for one check
STUCK, ASSERTION = "invalid end state", "assertion violated"
KINDS = {"stuck": STUCK, "assertion": ASSERTION}


class Check(NamedTuple):
    """A model with constants, and how it must fail, if it must."""

    model: Path
    constants: List[str]
    failure: Optional[str]

    def title(self) -> str:
        """Return the check in words."""
        return " ".join([self.model.name, *self.constants])


def checks_of(model: Path) -> List[Check]:
    """Return the checks that the comment at the head of a model asks for."""
    head = model.read_text().split("*/", 1)[0]
    found = []
    for kind, rest in re.findall(r"^ \* (check|fails): (.*?)(?: \*/)?$", head, re.M):
        constants, _, failure = rest.partition(": ")
        if (kind == "fails") != bool(failure):
            raise SystemExit(f"{model.name}: 'fails' says how after a colon, 'check' does not: {rest}")
        found.append(Check(model, constants.split(), KINDS[failure.strip()] if failure else None))
    if not found:
        raise SystemExit(f"{model.name}: nothing to check in the comment at its head")
    return found


class Outcome(NamedTuple):
    """What is wrong, or None; statements that no run reached; the states that were looked at; seconds."""

    wrong: Optional[str]
    unreached: Set[str]
    states: str
    seconds: float


def run(check: Check) -> Outcome:
    """Run one check."""
    started = time.monotonic()
    output = _verify(check)
    states = re.search(r"(\d+) states, stored", output)
    unreached = {"".join(one) for one in re.findall(r"^\t(\S+:\d+), state \d+(, .*)$", output, re.M)}
    seconds = time.monotonic() - started
    return Outcome(judge(check, output), unreached, states.group(1) if states else "no", seconds)


def _verify(check: Check) -> str:
    """Return the output of a verifier, or of what could not make one."""
    with tempfile.TemporaryDirectory(prefix="npucoll-spin-") as place:
        defines = [f"-D{constant}" for constant in check.constants]
        made = _call(["spin", *defines, "-a", str(check.model)], place)
        if made.returncode != 0 or not Path(place, "pan.c").exists():
            return made.stdout
        options = ["-w", "-DSAFETY", "-DCOLLAPSE", "-DNOCLAIM", f"-DMEMLIM={MEMORY}"]
        optimize = "-O2" if check.failure is None else "-O0"
        made = _call([os.environ.get("CC", "cc"), optimize, *options, "-o", "pan", "pan.c"], place)
        if made.returncode != 0:
            return made.stdout
        return _call(["./pan", "-m500000", "-w22"], place).stdout


def judge(check: Check, output: str) -> Optional[str]:
    """Return what is wrong with the output of a verifier, or None."""
    errors = re.search(r"errors: (\d+)", output)
    if errors is None or "max search depth too small" in output:
        return "the search did not come to its end:\n" + output
    if check.failure is not None:
        return None if check.failure in output else f"expected '{check.failure}', found no such thing:\n" + output
    if errors.group(1) != "0":
        return output
    if "Search not completed" in output:  # no memory is left, for example
        return "the search did not come to its end:\n" + output
    return None


def _call(command: List[str], place: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=place, timeout=SECONDS, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except subprocess.TimeoutExpired as expired:
        return subprocess.CompletedProcess(command, 124, f"no end within {SECONDS} s\n{expired.stdout or ''}")


def main(names: List[str]) -> int:
    """Run the checks of the named models, or of all; returns the exit code."""
    models = [HERE / name for name in names] or sorted(HERE.glob("*.pml"))
    checks = [check for model in models for check in checks_of(model)]
    failed = 0
    unreached: Dict[Path, Set[str]] = {}
    started = time.monotonic()
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for check, outcome in zip(checks, pool.map(run, checks)):
            if check.failure is None:
                unreached.setdefault(check.model, outcome.unreached).intersection_update(outcome.unreached)
            if outcome.wrong is not None:
                failed += 1
                print(f"{check.title()}\n{outcome.wrong}", flush=True)
            elif "-v" in sys.argv:
                print(f"{outcome.seconds:5.1f} s {outcome.states:>10} states  {check.title()}", flush=True)
    for model, statements in unreached.items():
        if statements:
            print("\n  ".join([f"{model.name}: statements that no run reaches", *sorted(statements)]))
    idle = sum(1 for statements in unreached.values() if statements)
    print(f"{len(checks) - failed} passed, {failed + idle} failed ({time.monotonic() - started:.0f} s)")
    return 1 if failed or idle else 0


if __name__ == "__main__":
    sys.exit(main([name for name in sys.argv[1:] if not name.startswith("-")]))
