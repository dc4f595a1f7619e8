"""Runs a whole script or command as several ranks, through the launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Mapping, NamedTuple, Optional, Sequence

from npucoll.testing.ranks import RankHang

__all__ = ["Outcome", "run_script"]


class Outcome(NamedTuple):
    """How a job ended: the launcher's exit code and what it printed."""

    code: int
    stdout: str
    stderr: str


def run_script(
    script: str,
    n: int,
    *args: str,
    timeout: float = 60,
    env: Optional[Mapping[str, Optional[str]]] = None,
    options: Sequence[str] = (),
    cwd: Optional[str] = None,
) -> Outcome:
    """Run ``npucoll run -n N options… script args…`` and return how it ended.

    Args:
        script: a ``.py`` file, run under this Python, or any command.
        n: the number of ranks.
        args: the script's own arguments.
        timeout: seconds until the job is killed.
        env: variables to add; None as a value removes one.
        options: further options of ``npucoll run``.
        cwd: the directory to run in.

    Raises:
        RankHang: the deadline passed; the text has the output so far.
    """
    variables = {**os.environ, **(env or {})}
    process = subprocess.Popen(
        [sys.executable, "-m", "npucoll", "run", "-n", str(n), *options, script, *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={name: value for name, value in variables.items() if value is not None},
        cwd=cwd,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        # The launcher ends its ranks on SIGTERM, and they are killed with it if it cannot.
        process.send_signal(signal.SIGTERM)
        try:
            stdout, stderr = process.communicate(timeout=8)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
        raise RankHang(
            f"{script} on {n} ranks did not end within {timeout:g} s\n"
            f"---- stdout\n{_text(stdout)}\n---- stderr\n{_text(stderr)}"
        ) from None
    except BaseException:
        process.kill()
        process.wait()
        raise
    return Outcome(process.returncode, _text(stdout), _text(stderr))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
