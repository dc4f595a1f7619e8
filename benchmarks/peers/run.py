"""Starts the ranks of one job after the other, and gathers what they wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from peers.adapter import Peer
from peers.environments import CHECKOUT, CommandFailed, Venv
from peers.options import Job

__all__ = ["needed", "run"]

_SCRIPT = CHECKOUT / "benchmarks" / "peers.py"
_GRACE = 10.0


def run(
    venv: Venv,
    peer: Peer | None,
    variant: str,
    ranks: int,
    work: dict[str, tuple[int, ...]],
    seconds: float,
    limit: float,
) -> dict[str, Any]:
    """Measure and return the rows, and why there are no more of them; ``peer`` None: npucoll alone."""
    with tempfile.TemporaryDirectory() as scratch:
        name = peer.name if peer else ""
        job = Job(name, variant, work, seconds, 1.5, f"{scratch}/rows", scratch)
        launcher = peer.launcher(venv, ranks) if peer else [venv.python, "-m", "npucoll", "run", "-n", str(ranks), "--"]
        crowded = ranks > len(os.sched_getaffinity(0))
        more = peer.environment(venv, crowded) if peer else {}
        command = [*launcher, venv.python, str(_SCRIPT), "--rank", job.dump()]
        output = Path(scratch, "output")
        failure = _ended(command, venv.environment(**more), output, limit)
        rows = [json.loads(line) for line in Path(job.path).read_text().splitlines()] if Path(job.path).exists() else []
        if failure:
            with venv.log.open("a", encoding="utf-8") as log:
                log.write(output.read_text(encoding="utf-8", errors="replace"))
            failure += f"; {venv.log.relative_to(CHECKOUT)} has its words"
    return {
        "peer": name,
        "variant": variant,
        "ranks": ranks,
        "settings": {key: value for key, value in more.items() if "PATH" not in key},
        "versions": rows[0]["versions"] if rows else [],
        "rows": rows[1:],
        "failure": failure,
    }


def _ended(command: list[str], environment: dict[str, str], output: Path, limit: float) -> str:
    """Run a command until it ends or its time is up; return what went wrong, or nothing."""
    with output.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            _end(process)
            return f"stopped after {limit:.0f} s"
        except BaseException:
            _end(process)
            raise
    return f"ended with {code}" if code else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    # The launcher is asked first, because its ranks may have sessions of their own.
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.wait(_GRACE)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def needed() -> None:
    """CommandFailed where the checkout has no compiled engine."""
    if not list(CHECKOUT.glob("npucoll/_engine*.so")):
        raise CommandFailed("npucoll is not built in this checkout: run make dev, or pip install -e .")
