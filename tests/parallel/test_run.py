"""``npucoll run``: codes, last words, signals, and that nothing is left, however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest

import npucoll
from npucoll.bootstrap import status
from npucoll.testing import Outcome, RankHang, run_script

# Where the tested npucoll is: a checkout, or an installation.
ROOT = Path(npucoll.__file__).resolve().parents[1]
# A rank that ignores what it can, so that only the launcher's last step ends it.
STUBBORN = "trap '' INT TERM; echo ready; while :; do sleep 1; done"


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Mark everything that a test starts, and check that nothing of it is left."""
    word = secrets.token_hex(8)
    monkeypatch.setenv("TEST_MARK", word)
    path = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", path)
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    yield word
    assert processes(word, wait=2.0) == []
    assert list(place.iterdir()) == []


def processes(word: str, wait: float = 0.0) -> List[str]:
    """Return the command lines of processes that carry the mark, after waiting for there to be none."""
    deadline = time.monotonic() + wait
    while True:
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if int(place.name) != os.getpid() and f"TEST_MARK={word}" in (place / "environ").read_text():
                    found.append((place / "cmdline").read_text().replace("\0", " "))
        if not found or time.monotonic() >= deadline:
            return found
        time.sleep(0.05)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text("import os, sys, time\nrank = int(os.environ['RANK_ID'])\n" + textwrap.dedent(text))
        return str(path)

    return write


@contextlib.contextmanager
def launched(*words: str) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        [sys.executable, "-m", "npucoll", "run", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines_of(outcome: Outcome, rank: int) -> List[str]:
    return [line[4:] for line in outcome.stdout.splitlines() if line.startswith(f"[{rank}] ")]


# -- what ranks get


def test_ranks_get_every_launchers_variables(script: Any) -> None:
    outcome = run_script(
        script(
            """
            import json
            env = dict(os.environ, table=json.load(open(os.environ["RANK_TABLE_FILE"])))
            env["private"] = os.stat(os.path.dirname(os.environ["RANK_TABLE_FILE"])).st_mode & 0o777
            print(json.dumps(env))
            """
        ),
        2,
        options=["--timeout", "7.5"],
    )
    assert outcome.code == 0
    ranks: List[Dict[str, Any]] = [json.loads(lines_of(outcome, rank)[0]) for rank in range(2)]
    for rank, env in enumerate(ranks):
        mine = ("RANK_ID", "DEVICE_ID", "ASCEND_DEVICE_ID", "DEVICE_INDEX", "LOCAL_RANK", "RANK", "NPUCOLL_RANK")
        assert {env[name] for name in mine} == {str(rank)}
        assert {env[name] for name in ("RANK_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NPUCOLL_SIZE")} == {"2"}
        assert env["RANK_INDEX"] == "0"
        assert env["NPUCOLL_TIMEOUT"] == "7.5"
        assert [device["rank_id"] for device in env["table"]["server_list"][0]["device"]] == ["0", "1"]
        assert env["private"] == 0o700
    assert ranks[0]["JOB_ID"] == ranks[1]["JOB_ID"]
    assert len(ranks[0]["JOB_ID"]) == 32


def test_each_of_its_formats_gives_the_same_identity(script: Any) -> None:
    outcome = run_script(
        script(
            """
            from npucoll.bootstrap.detect import explain
            found = [finding for finding in explain() if finding.identity or finding.error]
            for name, identity, error in found:
                print(name, identity and (identity.rank, identity.size), error)
            """
        ),
        2,
    )
    names = ["npucoll run", "rank table", "RANK_ID/RANK_SIZE", "torchrun"]
    assert lines_of(outcome, 1) == [f"{name} (1, 2) None" for name in names]


def test_a_script_runs_under_this_python_unbuffered_with_its_own_options(script: Any) -> None:
    path = script("sys.stdout.write(f'{sys.executable} {sys.argv[1:]}'); os._exit(0)")
    outcome = run_script(path, 1, "-n", "5", "--timeout", "x", "--")
    assert lines_of(outcome, 0) == [f"{sys.executable} ['-n', '5', '--timeout', 'x', '--']"]


def test_commands_run_as_they_are() -> None:
    outcome = run_script("sh", 2, "-c", 'echo "$RANK_ID of $RANK_SIZE"; echo problem >&2')
    assert sorted(outcome.stdout.splitlines()) == ["[0] 0 of 2", "[1] 1 of 2"]
    assert sorted(outcome.stderr.splitlines()) == ["[0] problem", "[1] problem"]


def test_only_rank_0_reads_the_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "npucoll", "run", "-n", "2", "cat"], input=b"hello\n", stdout=subprocess.PIPE, timeout=30
    )
    assert (done.returncode, done.stdout) == (0, b"[0] hello\n")


def test_ranks_have_default_signals_and_no_descriptors_of_ours(script: Any) -> None:
    outcome = run_script(
        script(
            """
            print([line for line in open("/proc/self/status") if line.startswith("SigIgn")][0].split()[1])
            print(sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1])
            """
        ),
        1,
    )
    ignored, descriptors = lines_of(outcome, 0)
    # Python itself ignores SIGPIPE and SIGXFSZ; signals from 32 on belong to threads, and to who started the tests.
    assert int(ignored, 16) & 0x7FFFFFFF == 0x01001000
    assert descriptors == "[0, 1, 2]"


def test_output_dir_gets_one_file_a_rank(tmp_path: Path) -> None:
    where = tmp_path / "new" / "logs"
    outcome = run_script("sh", 2, "-c", 'printf "out $RANK_ID"; echo err >&2', options=["--output-dir", str(where)])
    assert lines_of(outcome, 1) == ["out 1"]
    assert sorted(path.name for path in where.iterdir()) == ["rank-0.log", "rank-1.log"]
    assert sorted((where / "rank-1.log").read_bytes().split(b"err")) in ([b"\n", b"out 1"], [b"", b"\nout 1"])


# -- ends


def test_all_good_is_zero_and_silent() -> None:
    outcome = run_script("true", 3)
    assert outcome == Outcome(0, "", "")


def test_a_raising_ranks_words_come_last_with_its_code_in_under_5_seconds(script: Any) -> None:
    began = time.monotonic()
    outcome = run_script(
        script(
            """
            if rank == 2:
                raise ValueError("the reason")
            print("at work")
            time.sleep(60)
            """
        ),
        4,
    )
    assert time.monotonic() - began < 5
    assert outcome.code == 1
    words = outcome.stderr.splitlines()
    assert words[-1] == "[2] ValueError: the reason"
    assert "npucoll: rank 2 exited with code 1; the other 3 get 3 s to end" in words
    assert "npucoll: rank 2 exited with code 1. Its last words:" in words


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("os._exit(7)", 7, "rank 1 exited with code 7"),
        ("os.kill(os.getpid(), 9)", 137, "rank 1 was killed by signal 9 (SIGKILL); the system does that where memory"),
        ("os.kill(os.getpid(), 11)", 139, "rank 1 was killed by signal 11 (SIGSEGV)"),
    ],
)
def test_the_code_is_the_failing_ranks(script: Any, how: str, code: int, words: str) -> None:
    outcome = run_script(script(f"if rank == 1: {how}"), 2)
    assert outcome.code == code
    assert words in outcome.stderr


def test_survivors_may_report_and_the_cause_still_comes_last(script: Any) -> None:
    """The rank that failed first may end last: its interpreter shuts down while the others already report it."""
    outcome = run_script(
        script(
            """
            if rank == 0:
                time.sleep(0.4)
                sys.exit("the cause")
            print("npucoll.errors.PeerLost: rank 0 raised", file=sys.stderr)
            sys.exit(3)
            """
        ),
        3,
    )
    assert outcome.code == 1
    assert outcome.stderr.splitlines()[-1] == "[0] the cause"
    assert "[2] npucoll.errors.PeerLost: rank 0 raised" in outcome.stderr


def test_ranks_that_do_not_end_are_killed_after_the_grace() -> None:
    began = time.monotonic()
    outcome = run_script("bash", 2, "-c", f"[ $RANK_ID = 1 ] && exit 3; {STUBBORN}")
    assert outcome.code == 3
    assert 3.9 < time.monotonic() - began < 6


def test_ranks_that_end_well_are_waited_for(script: Any) -> None:
    outcome = run_script(script("time.sleep(rank * 0.7); print('end')"), 2)
    assert (outcome.code, len(outcome.stdout.splitlines())) == (0, 2)


def test_what_ranks_leave_behind_is_ended() -> None:
    began = time.monotonic()
    outcome = run_script("bash", 2, "-c", "sleep 50 & echo started")
    assert (outcome.code, len(outcome.stdout.splitlines())) == (0, 2)
    assert time.monotonic() - began < 5


def test_after_a_failure_even_detached_processes_are_ended() -> None:
    assert run_script("bash", 1, "-c", "setsid sleep 50 & exit 2").code == 2


def test_output_of_a_background_process_is_not_lost() -> None:
    outcome = run_script("bash", 1, "-c", "(sleep 0.2; echo late) & exit 0")
    assert outcome.stdout == "[0] late\n"


def test_survivors_can_learn_how_a_rank_ended(script: Any) -> None:
    outcome = run_script(
        script(
            """
            from npucoll.bootstrap import status
            if rank == 0:
                os._exit(5)
            if rank == 1:
                os.kill(os.getpid(), 15)
            while status.describe(0) is None or status.describe(1) is None:
                pass
            print(status.describe(0), "|", status.describe(1), "|", status.describe(2, wait=0))
            """
        ),
        3,
    )
    assert lines_of(outcome, 2) == ["exited with code 5 | was killed by signal 15 (SIGTERM) | None"]


def test_what_the_engine_says_is_completed_by_what_the_launcher_saw(tmp_path: Path) -> None:
    path = tmp_path / "status"
    env = {status.VARIABLE: str(path)}
    status.write(str(path), {0: status.Ended(100, 0), 3: status.Ended(103, -11), 2: status.Ended(102, 4)})
    told = status.explain("before: rank 1 (pid 103) is gone; after", env=env)
    assert told == "before: rank 1 (pid 103) was killed by signal 11 (SIGSEGV); after"
    unknown = "rank 1 (pid 999) is gone; after"
    assert status.explain(unknown, env=env, wait=0) == unknown
    status.write(str(path), {0: status.Ended(100, 0), 2: status.Ended(102, 4)})
    assert status.explain(unknown, env=env) == "rank 1 (pid 999) exited with code 4; after"
    assert status.explain("rank 1 failed: boom", env=env) == "rank 1 failed: boom"
    assert status.explain(unknown, env={}) == unknown


def test_status_without_a_launcher_knows_nothing(tmp_path: Path) -> None:
    assert status.describe(0, env={}) is None
    assert status.describe(0, env={status.VARIABLE: str(tmp_path / "gone")}) is None
    assert status.in_words(-64) == "was killed by signal 64 (SIGRTMAX)"
    assert status.in_words(-50) == "was killed by signal 50"


# -- signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_go_on_to_the_ranks(script: Any, number: int, code: int) -> None:
    path = script(
        """
        import signal
        def on_signal(number, frame):
            print("got", number)
            sys.exit(1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, on_signal)
        print("ready")
        time.sleep(60)
        """
    )
    with launched("-n", "2", path) as process:
        for _ in range(2):
            assert "ready" in process.stdout.readline()
        began = time.monotonic()
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=10)
        assert time.monotonic() - began < 1.5
    assert process.returncode == code
    assert sorted(stdout.splitlines()) == [f"[0] got {int(number)}", f"[1] got {int(number)}"]
    assert "last words" not in stderr


def test_a_second_interrupt_kills_at_once() -> None:
    with launched("-n", "2", "bash", "-c", STUBBORN) as process:
        for _ in range(2):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        process.communicate(timeout=10)
        assert time.monotonic() - began < 1.5
    assert process.returncode == 130


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_stopping_the_launcher_stops_the_ranks() -> None:
    with launched("-n", "1", "bash", "-c", "echo $$; exec sleep 100") as process:
        rank = int(process.stdout.readline().split()[1])
        for number, stopped in ((signal.SIGTSTP, True), (signal.SIGCONT, False)):
            process.send_signal(number)
            deadline = time.monotonic() + 5
            while (state(rank) == "T") is not stopped or (state(process.pid) == "T") is not stopped:
                assert time.monotonic() < deadline
                time.sleep(0.01)


@pytest.mark.parametrize("what", ["sleep 100", "setsid sleep 100", STUBBORN])
def test_nothing_lives_on_when_the_launcher_is_killed(mark: str, what: str) -> None:
    """The ranks, what they started, and what left their group; and the job's files. Checked by ``mark`` too."""
    with launched("-n", "3", "bash", "-c", f"({what}) & echo started; {STUBBORN}") as process:
        for _ in range(6):
            process.stdout.readline()
        process.kill()
        assert processes(mark, wait=2.0) == []


def test_ranks_die_with_the_launcher_even_without_the_watchdog(mark: str) -> None:
    with launched("-n", "2", "bash", "-c", "echo $$; exec sleep 100") as process:
        ranks = {process.stdout.readline().split()[1] for _ in range(2)}
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (watchdog,) = set(children) - ranks
        os.kill(int(watchdog), signal.SIGKILL)
        process.kill()
        process.wait()
        assert processes(mark, wait=2.0) == []
    for place in Path(os.environ["TMPDIR"]).iterdir():
        # Only the watchdog could have removed them.
        for path in [*place.iterdir(), place]:
            path.rmdir() if path.is_dir() else path.unlink()


def test_killed_at_any_moment_the_launcher_leaves_nothing(mark: str) -> None:
    for milliseconds in range(20, 200, 15):
        with launched("-n", "2", "sleep", "100") as process:
            time.sleep(milliseconds / 1000)
            process.kill()
            process.wait()
            assert processes(mark, wait=2.0) == []


def test_a_reader_that_goes_away_ends_the_job() -> None:
    with launched("-n", "2", "bash", "-c", "while :; do echo line; sleep 0.01; done") as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=10) == 141
        process.stdout = None


def test_a_full_terminal_does_not_stop_an_interrupt(mark: str) -> None:
    with launched("-n", "1", "bash", "-c", "while :; do echo line; done") as process:
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 3
        while any("while" in line and "npucoll" not in line for line in processes(mark)):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_run_script_has_a_deadline() -> None:
    with pytest.raises(RankHang, match=r"(?s)did not end within 0.7 s.*\[0\] so far"):
        run_script("sh", 1, "-c", "echo so far; sleep 60", timeout=0.7)


def test_a_lot_of_output_arrives_complete_and_in_order() -> None:
    outcome = run_script("sh", 2, "-c", "seq 100000")
    for rank in range(2):
        assert lines_of(outcome, rank) == [str(n) for n in range(1, 100001)]


# -- the command line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: -n"),
        (["-n", "0", "true"], "-n 0: the number of ranks is 1 or more"),
        (["-n", "two", "true"], "-n two: the number of ranks is a whole number"),
        (["-n", "2"], "nothing to run"),
        (["-n", "2", "--time-out", "3", "x.py"], "unknown option '--time-out'; did you mean --timeout?"),
        (["-n", "2", "-x", "x.py"], "unknown option '-x'"),
        (["-n", "2", "--timeout", "-1", "true"], "--timeout -1: the timeout is a number of seconds above 0"),
        (["-n", "2", "--hosts", "a:1,b:1", "true"], "--hosts needs an engine that crosses hosts"),
        (["-n", "2", "gone.py"], "there is no script 'gone.py'"),
        (["-n", "2", "no-such-program"], "there is no program 'no-such-program' on the PATH"),
        (["-n", "2", "/etc/passwd"], "/etc/passwd is not executable"),
        (["-n", "2", "--output-dir", "/proc/x", "true"], "--output-dir /proc/x"),
    ],
)
def test_mistakes_are_told_in_one_line(words: List[str], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "npucoll", "run", *words], stderr=subprocess.PIPE, text=True, timeout=30
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_program_that_cannot_be_executed_is_told(tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    outcome = run_script(str(path), 1)
    assert outcome.code == 127
    assert "cannot be run: No such file or directory" in outcome.stderr


def test_start_costs_little() -> None:
    """The whole job takes at most 0.3 s more than the bare interpreter; tried again where the machine is busy."""

    def seconds(words: List[str]) -> float:
        began = time.perf_counter()
        subprocess.run(words, check=True)
        return time.perf_counter() - began

    bare = [sys.executable, "-c", "pass"]
    extra = []
    for _ in range(15):
        extra.append(seconds([sys.executable, "-m", "npucoll", "run", "-n", "2", *bare]) - seconds(bare))
        if min(extra) < 0.3:
            return
    pytest.fail(f"starting two ranks took {min(extra):.2f} s more than an interpreter")


def test_the_launcher_imports_no_numpy(script: Any) -> None:
    code = (
        "import sys; from npucoll.cli import main; code = main(['run', '-n', '1', 'true'])\n"
        "assert 'numpy' not in sys.modules and 'pluggy' not in sys.modules, sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_ranks_meet_through_the_launcher(script: Any) -> None:
    path = script(
        f"""
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from meeting_ranks import memory
        from npucoll.bootstrap.detect import identify
        from npucoll.bootstrap.rendezvous import meet
        with meet(identify(), generation=1, timeout=20, create_area=memory) as meeting:
            print(os.fstat(meeting.fd).st_ino)
        """
    )
    outcome = run_script(path, 4)
    assert len({line.split()[1] for line in outcome.stdout.splitlines()}) == 1
    assert len(outcome.stdout.splitlines()) == 4
