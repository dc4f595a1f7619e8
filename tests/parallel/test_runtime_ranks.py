"""Several ranks: generations, exceptions that reach the peers, observers, and a rank that is taken twice."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import npucoll
from npucoll.testing import run_ranks, run_script


def _generations():
    old = npucoll.init(timeout=20)
    total = [int(old.allreduce(1))]
    npucoll.shutdown()
    new = npucoll.init(timeout=20)
    total.append(int(new.allreduce(npucoll.rank())))
    with pytest.raises(npucoll.NotInitialized):
        old.barrier()
    npucoll.shutdown()
    return total


def test_every_init_after_a_shutdown_is_a_new_generation():
    assert run_ranks(_generations, 3) == [[3, 3]] * 3


RAISES = """
import sys, time
import numpy as np
import npucoll

comm = npucoll.init()
group = comm.group([0, 2]) if {in_group} else comm
if comm.rank == {culprit}:
    time.sleep(0.3)
    raise ValueError("bad batch 17")
try:
    if group is not None:
        group.allreduce(np.ones(3))
    time.sleep(1)
    comm.barrier()
except npucoll.PeerLost as error:
    print("rank", comm.rank, "learned:", error, flush=True)
    raise
"""


@pytest.mark.parametrize("in_group", [False, True])
def test_peers_learn_the_text_of_an_exception(tmp_path, in_group):
    script = tmp_path / "raises.py"
    script.write_text(RAISES.format(in_group=in_group, culprit=2))
    done = run_script(str(script), 3, timeout=60)
    learned = [line for line in done.stdout.splitlines() if "learned:" in line]
    assert done.code == 1, done
    assert len(learned) >= (1 if in_group else 2), done.stdout + done.stderr
    assert all("failed: ValueError: bad batch 17" in line for line in learned), done.stdout


def _observed():
    from npucoll.hooks.manager import HookManager
    from npucoll.lifecycle import runtime

    seen = []

    class Observer:
        @npucoll.hookimpl
        def npucoll_collective(self, event):
            seen.append((event.communicator, event.kind, event.nbytes, type(event.error).__name__))

    class Point:
        name, value, dist = "observer", "observer", None

        def load(self):
            return Observer()

    runtime._hooks = HookManager((), [Point()])
    comm = npucoll.init(timeout=20)
    comm.allreduce(np.zeros(4, np.float32))
    comm.group([0, 1], "pair").barrier()
    with pytest.raises(npucoll.MismatchError):
        comm.broadcast(np.zeros(1 + comm.rank))
    comm.allgather_async(np.zeros(2)).wait()
    return seen


def test_observers_see_this_ranks_collectives():
    for rank, seen in enumerate(run_ranks(_observed, 2)):
        assert seen == [
            ("world", "allreduce", 16, "NoneType"),
            ("pair", "barrier", 0, "NoneType"),
            ("world", "broadcast", 8 * (1 + rank), "MismatchError"),
            ("world", "allgather", 16, "NoneType"),
        ]


def _spawn_a_twin():
    comm = npucoll.init(timeout=20)
    said = None
    if comm.rank == 1:
        code = "import npucoll; npucoll.init()"
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        said = (done.returncode, done.stderr)
    comm.barrier()
    return said


def test_spawned_child_that_inherits_the_rank_is_refused():
    (code, text) = run_ranks(_spawn_a_twin, 2)[1]
    assert code == 1
    assert "rank 1" in text
