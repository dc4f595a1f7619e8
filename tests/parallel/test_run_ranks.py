"""The helper that other tests rely on: it must report every way in which ranks can fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, Dict, NamedTuple, Tuple

import pytest

import npucoll
from npucoll.errors import MismatchError, PeerLost
from npucoll.testing import Died, KeptRanks, RankFailed, RankHang, RankPool, run_ranks


class Point(NamedTuple):
    x: int
    y: int


def whoami(point: Point) -> Tuple[int, str, Point]:
    return int(os.environ["NPUCOLL_RANK"]), os.environ["NPUCOLL_JOB"], Point(point.y, point.x)


def variables() -> Dict[str, str]:
    return dict(os.environ)


def count(state: Dict[str, int] = {}) -> int:  # noqa: B006 - the default is the state of this process
    state["calls"] = state.get("calls", 0) + 1
    return state["calls"]


def fail_on_one() -> None:
    rank = int(os.environ["NPUCOLL_RANK"])
    print(f"rank {rank} is about to work")
    if rank == 1:
        time.sleep(0.3)
        raise MismatchError("the cause")
    raise PeerLost("only a victim")


class Unpicklable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def fail_unpicklable() -> None:
    raise Unpicklable(1, 2)


def fail_by_exit() -> None:
    raise SystemExit(0)


def die(how: str) -> str:
    if os.environ["NPUCOLL_RANK"] == "1":
        if how == "exit":
            os._exit(7)
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def hang_in_this_function() -> None:
    if os.environ["NPUCOLL_RANK"] == "0":
        time.sleep(600)


def leave_a_child() -> int:
    return subprocess.Popen(["sleep", "600"]).pid


def fail_at_exit() -> None:
    import atexit

    atexit.register(os._exit, 9)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def assert_soon_dead(pid: int) -> None:
    deadline = time.monotonic() + 2
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(pid)


def test_results_come_in_rank_order_and_jobs_differ() -> None:
    first = run_ranks(whoami, 3, Point(1, 2))
    second = run_ranks(whoami, 1, Point(1, 2))
    assert [rank for rank, _, _ in first] == [0, 1, 2]
    assert {point for _, _, point in first} == {Point(2, 1)}
    assert len({job for _, job, _ in first}) == 1
    assert first[0][1] != second[0][1]


def test_environment_is_added_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("REMOVED", "1")
    monkeypatch.setenv("NPUCOLL_STATUS_FILE", "/of/another/launcher")
    (env,) = run_ranks(variables, 1, env={"ADDED": "2", "REMOVED": None})
    assert (env["KEPT"], env["ADDED"]) == ("1", "2")
    assert "REMOVED" not in env and "NPUCOLL_STATUS_FILE" not in env


def test_pool_keeps_its_processes_until_a_failure() -> None:
    with RankPool(2) as pool:
        assert pool.run(count) == [1, 1]
        assert pool.run(count) == [2, 2]
        with pytest.raises(RankFailed):
            pool.run(fail_unpicklable)
        assert pool.run(count) == [1, 1]


def test_the_cause_is_raised_not_its_victims() -> None:
    with pytest.raises(MismatchError, match="the cause") as caught:
        run_ranks(fail_on_one, 3)
    details = str(caught.value.__cause__)
    assert "in fail_on_one" in details
    assert "only a victim" in details
    assert "rank 2 is about to work" in details


def test_an_exception_that_cannot_be_pickled_is_told_in_words() -> None:
    with pytest.raises(RankFailed, match=r"(?s)rank 0 raised Unpicklable.*1 and 2"):
        run_ranks(fail_unpicklable, 1)


def test_sys_exit_is_a_failure() -> None:
    with pytest.raises(RankFailed, match="raised SystemExit"):
        run_ranks(fail_by_exit, 1)


@pytest.mark.parametrize(
    ("how", "died", "words"),
    [("exit", Died(7, None), "ended with code 7"), ("kill", Died(None, 9), r"killed by signal 9 \(SIGKILL\)")],
)
def test_a_death_is_a_failure_unless_it_is_allowed(how: str, died: Died, words: str) -> None:
    assert run_ranks(die, 2, how, may_die=[1]) == ["alive", died]
    with pytest.raises(RankFailed, match=f"rank 1 (was )?{words}"):
        run_ranks(die, 2, how)


def test_a_hang_shows_the_stack_and_ends_everyone() -> None:
    began = time.monotonic()
    with pytest.raises(RankHang, match=r"(?s)still run: 0\n.*in hang_in_this_function"):
        run_ranks(hang_in_this_function, 2, timeout=2)
    assert time.monotonic() - began < 5


def test_nothing_that_a_rank_started_stays() -> None:
    (child,) = run_ranks(leave_a_child, 1)
    assert_soon_dead(child)


def test_a_bad_end_of_the_interpreter_is_a_failure() -> None:
    with pytest.raises(RankFailed, match="ended with code 9 after its work"):
        run_ranks(fail_at_exit, 1)


def test_a_function_that_ranks_cannot_find_is_refused() -> None:
    def local() -> None: ...

    with pytest.raises(TypeError, match="not at the top level"):
        run_ranks(local, 1)


def test_functions_of_a_script_work(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(
        textwrap.dedent(
            """
            import os
            from npucoll.testing import run_ranks
            class Thing:
                pass
            def f(thing):
                return int(os.environ["NPUCOLL_RANK"]), type(thing).__name__
            if __name__ == "__main__":
                print(run_ranks(f, 2, Thing()))
            """
        )
    )
    root = Path(npucoll.__file__).resolve().parents[1]
    done: Any = subprocess.run(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.stdout.strip() == "[(0, 'Thing'), (1, 'Thing')]"


def test_ranks_die_with_the_test_process(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, time\n"
        "from npucoll.testing import run_ranks\n"
        "def f():\n"
        "    print(os.getpid(), file=open(os.environ['PID_FILE'], 'w'), flush=True)\n"
        "    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    run_ranks(f, 1)\n"
    )
    pid_file = tmp_path / "pid"
    env = {**os.environ, "PYTHONPATH": str(Path(npucoll.__file__).resolve().parents[1]), "PID_FILE": str(pid_file)}
    parent = subprocess.Popen([sys.executable, str(script)], env=env)
    try:
        deadline = time.monotonic() + 20
        while not (pid_file.exists() and pid_file.read_text().endswith("\n")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        parent.kill()
        parent.wait()
    pid = int(pid_file.read_text())
    assert_soon_dead(pid)


def process():
    return os.getpid()


def test_kept_ranks_stay_until_others_are_asked_for():
    with KeptRanks() as kept:
        first = kept.run(process, 2)
        assert kept.run(process, 2) == first
        assert set(kept.run(process, 1)).isdisjoint(first)
        again = kept.run(process, 2, env={"NPUCOLL_TEST_KEPT": "1"})
        assert set(again).isdisjoint(first)
        assert set(kept.run(process, 2, env={"NPUCOLL_TEST_KEPT": "1"}, kind="other")).isdisjoint(again)
