"""Whole processes, started every way that is documented, meet and add up; and what happens when they are killed."""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

import npucoll
from npucoll.bootstrap.sockets import ranks_seen
from npucoll.testing import run_script

pytest.importorskip("npucoll._engine")

# Where the tested npucoll is: a checkout, or an installation.
ROOT = Path(npucoll.__file__).resolve().parents[1]
ADD = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    "import numpy as np, npucoll\n"
    "comm = npucoll.init()\n"
    "print(int(comm.allreduce(np.array([comm.rank + 1]))[0]), comm.size, flush=True)\n"
)
FOR_EVER = ADD + "while True: comm.allreduce(np.ones(1000))\n"


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name in ("RANK", "WORLD_SIZE", "TF_CONFIG") or name.startswith(
            ("NPUCOLL_", "RANK_", "PMI", "OMPI_", "SLURM_")
        ):
            monkeypatch.delenv(name)


def start(code: str, env: Dict[str, str]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outputs(processes: List[subprocess.Popen]) -> List[str]:
    try:
        results = [process.communicate(timeout=30) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [0] * len(processes), results
    return [stdout for stdout, _ in results]


def shell_loop(rank: int, job: str) -> Dict[str, str]:
    return {"RANK_ID": str(rank), "RANK_SIZE": "2", "JOB_ID": job}


def torch_like(rank: int, job: str) -> Dict[str, str]:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": job}
    return {name: str(value) for name, value in names.items()}


def tf_config(rank: int, job: str) -> Dict[str, str]:
    cluster = {"worker": ["localhost:1", "127.0.0.1:2"], "evaluator": [job]}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})}


def slurm(rank: int, job: str) -> Dict[str, str]:
    names = {"JOB_ID": job, "STEP_ID": 0, "PROCID": rank, "LOCALID": rank, "NODEID": 0, "STEP_NUM_TASKS": 2}
    return {f"SLURM_{name}": str(value) for name, value in names.items()}


@pytest.mark.parametrize("way", [shell_loop, torch_like, tf_config, slurm])
def test_processes_meet_by_their_variables(clean: None, way: Any) -> None:
    job = secrets.token_hex(4)
    assert outputs([start(ADD, way(rank, job)) for rank in range(2)]) == ["3 2\n"] * 2


def test_processes_meet_by_a_rank_table(clean: None, tmp_path: Path) -> None:
    devices = [{"device_id": str(rank), "device_ip": "1.2.3.4", "rank_id": str(rank)} for rank in range(2)]
    server = {"server_id": str(tmp_path), "device": devices}
    table = {"status": "completed", "version": "1.0", "server_count": "1", "server_list": [server]}
    paths = [tmp_path / f"{rank}.json" for rank in range(2)]
    for rank, path in enumerate(paths):
        path.write_text(json.dumps(table, indent=rank))
    started = [start(ADD, {"RANK_TABLE_FILE": str(paths[rank]), "RANK_ID": str(rank)}) for rank in range(2)]
    assert outputs(started) == ["3 2\n"] * 2


def test_two_jobs_of_one_user_at_a_time(clean: None) -> None:
    jobs = [secrets.token_hex(4) for _ in range(2)]
    assert outputs([start(ADD, shell_loop(rank, job)) for rank in range(2) for job in jobs]) == ["3 2\n"] * 4


def test_several_hosts_are_refused_in_words(clean: None) -> None:
    cluster = {"worker": ["a:1", "b:1"]}
    env = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})}
    process = start(ADD, env)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "2 hosts" in stderr.splitlines()[-1]


@pytest.mark.parametrize("shell", [False, True])
def test_mpi_launchers(clean: None, shell: bool) -> None:
    mpiexec = shutil.which("mpiexec.hydra") or shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("no MPI is installed")
    words = [sys.executable, "-c", ADD]
    # Open MPI refuses to run as root, who runs the tests in a container, unless told so twice.
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        [mpiexec, "-n", "2", *(["sh", "-c", '"$@"; true', "sh"] if shell else []), *words],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        env={**os.environ, **root},
    )
    # mpiexec passes on the pieces of lines as they come.
    assert (done.returncode, sorted(done.stdout)) == (0, sorted("3 2\n" * 2))


def test_a_spawned_child_is_refused_and_harms_nothing(clean: None) -> None:
    child = ADD.replace("comm = npucoll.init()", "npucoll.init()")
    code = ADD + (
        "import subprocess\n"
        f"child = subprocess.run([sys.executable, '-c', {child!r}], stderr=subprocess.PIPE)\n"
        "print(child.stderr.decode().splitlines()[-1])\n"
        "print(int(comm.allreduce(np.array([5]))[0]))\n"
    )
    job = secrets.token_hex(4)
    for text in outputs([start(code, shell_loop(rank, job)) for rank in range(2)]):
        added, refused, added_again = text.splitlines()
        assert (added, added_again) == ("3 2", "10")
        assert "which started this one" in refused and "unset them in child processes" in refused


@pytest.fixture
def job() -> Iterator[str]:
    name = secrets.token_hex(4)
    yield name
    assert ranks_seen(f"rank-env:{name}") == set()


def test_ranks_killed_at_random_moments_leave_nothing_and_may_start_again(clean: None, job: str) -> None:
    for seed in range(6):
        started = [start(FOR_EVER, shell_loop(rank, job)) for rank in range(2)]
        time.sleep(random.Random(seed).uniform(0.0, 0.8))
        for process in started:
            process.kill()
        for process in started:
            process.communicate()
    assert outputs([start(ADD, shell_loop(rank, job)) for rank in range(2)]) == ["3 2\n"] * 2
    assert [path for path in os.listdir("/dev/shm") if "npucoll" in path] == []


def test_without_a_launcher_the_others_notice_a_killed_rank(clean: None, job: str) -> None:
    started = [start(FOR_EVER, shell_loop(rank, job)) for rank in range(2)]
    for process in started:
        assert process.stdout is not None and process.stdout.readline() == "3 2\n"
    started[1].kill()
    began = time.monotonic()
    _, stderr = started[0].communicate(timeout=10)
    assert time.monotonic() - began < 2.5  # a second, and the end of an interpreter on a busy machine
    assert f"rank 1 (pid {started[1].pid}) is gone" in stderr.splitlines()[-1]
    started[1].communicate()


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("os._exit(3)", 3, "exited with code 3"),
        ("os.kill(os.getpid(), 9)", 137, "was killed by signal 9 (SIGKILL)"),
    ],
)
def test_under_the_launcher_the_others_say_how_a_rank_ended(
    clean: None, tmp_path: Path, how: str, code: int, words: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(ADD + f"import os\nif comm.rank == 1: {how}\n" + "comm.barrier()\n")
    outcome = run_script(str(script), 3, env={"PYTHONPATH": str(ROOT)})
    assert outcome.code == code
    lines = [line for line in outcome.stderr.splitlines() if "PeerLost" in line]
    assert sorted(line[:3] for line in lines) == ["[0]", "[2]"]
    assert all(words in line for line in lines)


def test_an_exception_is_told_to_all_and_printed_last(clean: None, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ADD + "if comm.rank == 2: raise ValueError('bad batch')\n" + "comm.barrier()\n")
    outcome = run_script(str(script), 3, env={"PYTHONPATH": str(ROOT)})
    assert outcome.code == 1
    lines = outcome.stderr.splitlines()
    assert lines[-1] == "[2] ValueError: bad batch"
    assert sum("PeerLost" in line and "bad batch" in line for line in lines) == 2


def test_an_interrupt_inside_a_collective_is_quick(clean: None, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ADD + "import time\nif comm.rank == 0: time.sleep(60)\n" + "comm.barrier()\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "npucoll", "run", "-n", "2", str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for _ in range(2):
            assert process.stdout is not None and "3 2" in process.stdout.readline()
        time.sleep(0.3)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=10)
        assert time.monotonic() - began < 1.5  # half a second, and the end of two interpreters
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    # A rank may hear of the other's end before its own signal, and then names it too.
    for rank in range(2):
        said = [line for line in stderr.splitlines() if line.startswith(f"[{rank}]")]
        assert any("KeyboardInterrupt" in line for line in said), stderr
