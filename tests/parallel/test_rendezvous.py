"""The meeting of the ranks. Ranks are threads where that is enough, processes where the process matters."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Iterator, List, Sequence, Tuple

import pytest
from meeting_ranks import join, memory

import npucoll
from npucoll.bootstrap import claim, rendezvous, sockets
from npucoll.bootstrap.identity import Identity
from npucoll.bootstrap.rendezvous import Meeting, meet
from npucoll.errors import CollectiveTimeout, ConfigError, UnsupportedError
from npucoll.testing import run_ranks

# Where the tested npucoll is: a checkout, or an installation.
ROOT = Path(npucoll.__file__).resolve().parents[1]
NOBODY = 65534


def at_once(calls: Sequence[Callable[[], Any]]) -> List[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def share(meetings: Sequence[Meeting]) -> bool:
    """Return whether all meetings are about the same memory; closes them."""
    inodes = {os.fstat(meeting.fd).st_ino for meeting in meetings}
    for meeting in meetings:
        meeting.close()
    return len(inodes) == 1


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def job() -> str:
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def python(job: str) -> Iterator[Callable[..., subprocess.Popen]]:
    """Start ``join``-ing processes: python(rank, size, code-after-the-meeting)."""
    started: List[subprocess.Popen] = []

    def start(rank: int, size: int, then: str = "", timeout: float = 10.0, before: str = "") -> subprocess.Popen:
        code = (
            f"import os, sys, time; sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]\n"
            f"{before}\n"
            "import meeting_ranks as t\n"
            f"m = t.join({rank}, {size}, {job!r}, timeout={timeout})\n"
            "print(type(m).__name__, m, flush=True)\n"
            f"{then}\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_all_ranks_share_one_memory_within_milliseconds(job: str) -> None:
    took: List[float] = []

    def one(rank: int) -> Any:
        began = time.perf_counter()
        meeting = join(rank, 4, job)
        took.append(time.perf_counter() - began)
        return meeting

    meetings = at_once([lambda rank=rank: one(rank) for rank in range(4)])
    with mmap.mmap(meetings[0].fd, 4096) as writer, mmap.mmap(meetings[3].fd, 4096) as reader:
        writer[:5] = b"hello"
        assert reader[:5] == b"hello"
    assert share(meetings)
    assert max(took) < 0.5  # a few milliseconds, on a machine that does other things too


def test_ranks_may_start_one_after_the_other(job: str) -> None:
    delays = [0.8, 0.0, 0.4, 1.2]
    assert share(at_once([lambda r=r: join(r, 4, job, delay=delays[r]) for r in range(4)]))


@pytest.mark.parametrize("absent", [0, 1])
def test_an_absent_rank_is_named_by_all_others(job: str, absent: int) -> None:
    present = [rank for rank in range(3) if rank != absent]
    errors = at_once([lambda r=r: join(r, 3, job, timeout=0.5) for r in present])
    for error in errors:
        assert isinstance(error, CollectiveTimeout)
        assert f"rank {absent} did not arrive within 0.5 s" in str(error)
        assert f"ranks {present[0]}, {present[1]} are here" in str(error)


def test_the_first_deadline_ends_the_wait_of_all(job: str) -> None:
    began = time.monotonic()
    errors = at_once([lambda: join(0, 3, job, timeout=20), lambda: join(1, 3, job, timeout=0.5)])
    assert time.monotonic() - began < 3
    assert all("rank 2 did not arrive within 0.5 s" in str(error) for error in errors)


def test_ranks_that_disagree_about_the_size_are_told(job: str) -> None:
    errors = at_once([lambda: join(0, 2, job, timeout=0.6), lambda: join(1, 3, job, timeout=0.6)])
    assert all(isinstance(error, ConfigError) for error in errors)
    assert "there is a rank 1 of 3" in str(errors[0])
    assert "there is a rank 0 of 2" in str(errors[1])


def test_another_version_is_refused_on_both_sides(job: str, python: Any) -> None:
    other = python(1, 2, before="import npucoll; npucoll.__version__ = '0.0.0'")
    error = join(0, 2, job)
    assert isinstance(error, ConfigError)
    assert "version of npucoll '0.0.0'" in str(error) and repr(npucoll.__version__) in str(error)
    assert other.communicate(timeout=10)[0].startswith("ConfigError")


def test_jobs_and_generations_do_not_meet(job: str) -> None:
    meetings = at_once(
        [lambda r=r, name=name: join(r, 2, name) for name in (job, job + "x") for r in range(2)]
        + [lambda r=r: join(r, 3, job) for r in range(3)]
    )
    assert len({os.fstat(meeting.fd).st_ino for meeting in meetings}) == 3
    assert share(meetings[:2]) and share(meetings[2:4]) and share(meetings[4:])
    assert share(at_once([lambda r=r: join(r, 2, job, generation=2) for r in range(2)]))


def test_groups_of_one_name_with_other_members_are_separate(job: str) -> None:
    worlds = at_once([lambda r=r: join(r, 4, job) for r in range(4)])
    groups = [[0, 2], [1, 3]]
    meetings = at_once([lambda r=r, g=g: join(r, 4, job, scope="pair", members=g) for g in groups for r in g])
    assert os.fstat(meetings[0].fd).st_ino != os.fstat(meetings[2].fd).st_ino
    assert share(meetings[:2]) and share(meetings[2:])
    assert share(worlds)


def test_an_absent_group_leader_is_named(job: str) -> None:
    error = join(3, 4, job, scope="pair", members=[1, 3], timeout=0.3)
    assert isinstance(error, CollectiveTimeout)
    assert "'pair' of 2 ranks: rank" in str(error) and "1" in str(error)


def test_one_member_needs_nobody(job: str) -> None:
    with join(2, 4, job, scope="alone", members=[2]) as meeting:
        assert os.fstat(meeting.fd).st_size == 4096


def test_what_is_no_group_is_refused(job: str) -> None:
    assert "cannot meet the members [0, 1]" in str(join(2, 4, job, scope="x", members=[0, 1]))
    assert "cannot meet the members [0, 9]" in str(join(0, 4, job, scope="x", members=[0, 9]))


def test_several_hosts_are_refused_in_words() -> None:
    there = Identity(0, 4, 0, 2, 0, 2, "job", "Slurm", "detail")
    with pytest.raises(UnsupportedError, match="4 ranks are on 2 hosts"):
        meet(there, generation=1, timeout=1, create_area=memory)


# -- a rank taken twice


def test_a_rank_started_twice_is_an_error_on_both_while_they_meet(job: str, python: Any) -> None:
    first, second = python(1, 3), python(1, 3)
    outputs = [process.communicate(timeout=10)[0] for process in (first, second)]
    for output, other in ((outputs[0], second), (outputs[1], first)):
        assert output.startswith("ConfigError rank 1 of the job of 3 ranks")
        assert f"process {other.pid}" in output


def test_everybody_else_learns_of_a_rank_started_twice(job: str, python: Any) -> None:
    processes = [python(1, 3), python(1, 3)]
    error = join(0, 3, job)
    assert isinstance(error, ConfigError) and "rank 1" in str(error) and "started twice" in str(error)
    for process in processes:
        process.communicate(timeout=10)


def test_a_taken_rank_is_refused_while_its_holder_goes_on(
    job: str, python: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "RESTART_SECONDS", 0.4)
    holder = python(1, 2, then="sys.stdin.read()")
    with join(0, 2, job):
        assert holder.stdout.readline().startswith("Meeting")
        error = join(1, 2, job)
        assert isinstance(error, ConfigError)
        assert f"rank 1 of the job of 2 ranks (test: rank 1) is already taken by process {holder.pid}" in str(error)
        assert holder.poll() is None


def test_this_process_is_refused_as_its_own_double(job: str) -> None:
    meetings = at_once([lambda r=r: join(r, 2, job) for r in range(2)])
    assert "is rank 1 of the job of 2 ranks (test: rank 1) already" in str(join(1, 2, job))
    assert share(meetings)


def test_a_spawned_child_with_inherited_variables_is_refused_at_once(job: str, python: Any) -> None:
    with contextlib.ExitStack() as stack:
        for meeting in at_once([lambda r=r: join(r, 2, job) for r in range(2)]):
            stack.enter_context(meeting)
        began = time.monotonic()
        output = python(1, 2).communicate(timeout=10)[0]
        assert f"already taken by process {os.getpid()}, which started this one" in output
        assert time.monotonic() - began < 3


# -- restarts


def test_a_job_may_be_restarted_at_once_after_a_crash(job: str, python: Any) -> None:
    for _ in range(3):
        old = [python(rank, 2, then="time.sleep(60)") for rank in range(2)]
        for process in old:
            assert process.stdout.readline().startswith("Meeting")
        for process in old:
            process.kill()
    assert share(at_once([lambda r=r: join(r, 2, job) for r in range(2)]))


def test_a_restart_waits_for_ranks_that_are_still_ending(job: str, python: Any) -> None:
    old = [python(rank, 2, then="time.sleep(1)") for rank in range(2)]
    for process in old:
        assert process.stdout.readline().startswith("Meeting")
    assert share(at_once([lambda r=r: join(r, 2, job) for r in range(2)]))


def wait_until_seen(job: str, pair: Tuple[int, int]) -> None:
    deadline = time.monotonic() + 10
    while pair not in sockets.ranks_seen(job):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_while_it_waits_may_come_again(job: str, python: Any, rank: int) -> None:
    dead = python(rank, 3)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(join, 1 - rank, 3, job)
        wait_until_seen(job, (3, rank))
        time.sleep(0.1)
        dead.kill()
        dead.wait()
        again = pool.submit(join, rank, 3, job)
        assert share([join(2, 3, job), waiting.result(), again.result()])


# -- forks, interrupts, leaks


def descriptors() -> List[str]:
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # The one that listed the directory is gone.
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return links


def fork_and_die(job: str) -> Tuple[int, int]:
    """As rank 0 and 1 of two threads: meet, fork a child that lives on, and report its pid and its sockets."""
    meetings = at_once([lambda r=r: join(r, 2, job) for r in range(2)])
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write_end, b"%d" % sum("socket:" in link or "memfd:test" in link for link in descriptors()))
        os.setsid()
        time.sleep(60)
    assert len(meetings) == 2
    return pid, int(os.read(read_end, 10))


def test_a_forked_child_holds_nothing_of_the_rank(job: str) -> None:
    with run_in_process(fork_and_die, job) as (pid, held):
        # One socket is the worker's connection to this test.
        assert held == 1
        assert share(at_once([lambda r=r: join(r, 2, job, timeout=2) for r in range(2)]))
        os.kill(pid, 0)


@contextlib.contextmanager
def run_in_process(function: Callable[..., Tuple[int, int]], job: str) -> Iterator[Tuple[int, int]]:
    (result,) = run_ranks(function, 1, job)
    try:
        yield result
    finally:
        os.kill(result[0], signal.SIGKILL)


def test_an_interrupt_ends_the_wait_and_gives_the_name_back(job: str) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = open_fds()
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        for rank in (0, 1):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                join(rank, 2, job)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert open_fds() == before
    assert share(at_once([lambda r=r: join(r, 2, job) for r in range(2)]))


def test_a_thousand_meetings_leave_no_descriptor(job: str) -> None:
    before = open_fds()
    worlds = at_once([lambda r=r: join(r, 2, job) for r in range(2)])

    def many(rank: int) -> None:
        for number in range(1000):
            join(rank, 2, job, scope=f"group {number}", members=[0, 1]).close()

    at_once([lambda: many(0), lambda: many(1)])
    assert share(worlds)
    assert open_fds() == before


def test_failures_leave_no_descriptor(job: str) -> None:
    before = open_fds()
    for _ in range(3):
        at_once([lambda: join(0, 3, job, timeout=0.1), lambda: join(2, 3, job, timeout=0.1)])
    assert open_fds() == before


# -- other users


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


class Stranger:
    """A process of another user that does ``code`` and then stays until the end of the block."""

    def __init__(self, code: str) -> None:
        head = f"import os, socket, sys, time\nos.setgid({NOBODY}); os.setuid({NOBODY})\n"
        tail = "\nprint('ready', flush=True); sys.stdin.read()\n"
        self._process = subprocess.Popen(
            [sys.executable, "-c", head + code + tail],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            universal_newlines=True,
            cwd="/",
        )

    def __enter__(self) -> Stranger:
        assert self._process.stdout is not None and self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def squat(names: Sequence[str], suffixes: Sequence[int], listen: bool) -> str:
    return (
        "held = []\n"
        f"for name in {list(names)!r}:\n"
        f"    for suffix in {list(suffixes)!r}:\n"
        "        s = socket.socket(socket.AF_UNIX); held.append(s)\n"
        "        s.bind(f'\\0{name}.{suffix}'.encode())\n" + ("        s.listen(5)\n" if listen else "")
    )


@needs_root
@pytest.mark.parametrize(("suffixes", "listen"), [([0], True), ([0, 1, 2], True), ([0], False), (range(12), True)])
def test_names_held_by_another_user_do_not_matter(job: str, suffixes: Sequence[int], listen: bool) -> None:
    names = [
        sockets.meeting_name(job, 2, 1, "world", [0, 1]),
        sockets.rank_name(job, 2, 0),
        sockets.rank_name(job, 2, 1),
    ]
    with Stranger(squat(names, suffixes, listen)):
        assert share(at_once([lambda r=r: join(r, 2, job, delay=0.1 * r) for r in range(2)]))


@needs_root
def test_every_name_held_by_another_user_is_told(job: str) -> None:
    with Stranger(squat([sockets.rank_name(job, 2, 0)], range(64), True)):
        assert "other users' processes hold every name" in str(join(0, 2, job))


@needs_root
def test_another_user_cannot_take_part(job: str) -> None:
    name = sockets.meeting_name(job, 2, 1, "world", [0, 1])
    hello = {"protocol": 1, "version": npucoll.__version__, "rank": 1, "size": 2, "members": [0, 1]}
    code = (
        "s = socket.socket(socket.AF_UNIX)\n"
        "while True:\n"
        "    try:\n"
        f"        s.connect(b'\\0' + {name!r}.encode() + b'.0'); break\n"
        "    except ConnectionRefusedError: time.sleep(0.01)\n"
        "try:\n"
        f"    s.sendall({json.dumps(hello).encode()!r} + b'\\n')\n"
        "    assert s.recv(100) == b''\n"
        "except (BrokenPipeError, ConnectionResetError): pass\n"
    )
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(join, 0, 2, job)
        with Stranger(code):
            pass
        assert share([join(1, 2, job), leader.result()])


def test_a_connection_that_says_nothing_or_nonsense_does_not_matter(job: str) -> None:
    name = sockets.meeting_name(job, 2, 1, "world", [0, 1])
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(join, 0, 2, job)
        silent = None
        while silent is None:
            silent = sockets.connect(name)
        nonsense = sockets.connect(name)
        assert nonsense is not None
        nonsense._socket.sendall(b"GET / HTTP/1.1\n")
        assert share([join(1, 2, job), leader.result()])
        silent.close()
        nonsense.close()


def test_a_long_wait_says_for_whom(job: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(rendezvous, "_NOTICE_SECONDS", 0.2)
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(join, 0, 2, job)
        assert share([join(1, 2, job, delay=0.6), leader.result()])
    assert [record.getMessage().split(" and will")[0] for record in caplog.records] == [
        "npucoll: rank 0 has waited 0 s for rank 1"
    ]


def test_nothing_is_left_in_the_system(job: str) -> None:
    meetings = at_once([lambda r=r: join(r, 2, job) for r in range(2)])
    assert sockets.ranks_seen(job) == {(2, 0), (2, 1)}
    meetings[0].close()
    assert sockets.ranks_seen(job) == {(2, 1)}
    meetings[1].close()
    assert sockets.digest(job) not in Path("/proc/net/unix").read_text()
