"""Communication memory, shared results and plans, against NumPy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import npucoll
from npucoll.testing import run_ranks


def values(rank, count, dtype=np.float32):
    return (np.arange(count) % 97 + rank).astype(dtype)


def total(size, count, dtype=np.float32):
    return sum(values(r, count, dtype) for r in range(size))


def collectives_on_communication_memory():
    comm = npucoll.init()
    for count, dtype in ((0, np.float32), (12, np.int64), (120_000, np.float32), (1_200_000, np.float64)):
        x = comm.empty((count,), dtype)
        assert x.flags.writeable and x.flags.c_contiguous and x.shape == (count,) and x.dtype == dtype
        x[...] = values(comm.rank, count, dtype)
        np.testing.assert_array_equal(comm.allreduce(x), total(comm.size, count, dtype))
        out = comm.empty(count, dtype)
        assert comm.allreduce(x, out=out) is out
        np.testing.assert_array_equal(out, total(comm.size, count, dtype))
        np.testing.assert_array_equal(comm.broadcast(x, 1), values(1, count, dtype))
        gathered = comm.allgather(x).reshape(comm.size, count)
        for r in range(comm.size):
            np.testing.assert_array_equal(gathered[r], values(r, count, dtype))
        assert comm.allreduce_(x) is x
        np.testing.assert_array_equal(x, total(comm.size, count, dtype))
    kept = comm.empty(1000)
    kept[...] = comm.rank
    npucoll.shutdown()
    kept += 1
    assert (kept == comm.rank + 1).all()


def test_collectives_on_communication_memory():
    run_ranks(collectives_on_communication_memory, 2)
    run_ranks(collectives_on_communication_memory, 3)


def results_that_are_shared():
    comm = npucoll.init()
    held = []
    for round_ in range(12):
        count = [5, 100_000, 1_000_000][round_ % 3]
        result = comm.allreduce(values(comm.rank + round_, count), shared=True)
        assert not result.flags.writeable
        with pytest.raises(ValueError):
            result[0] = 1
        held.append((round_, result))
        if len(held) > 4:
            held.pop(0)
        for number, old in held:
            np.testing.assert_array_equal(old, sum(values(r + number, old.size) for r in range(comm.size)))
    parts = [values(comm.rank, 10), values(comm.rank, 50_000).reshape(50, 1000), values(comm.rank, 7, np.int32)]
    results = comm.grouped_allreduce(parts, "max", shared=True)
    for part, result in zip(parts, results):
        expected = values(comm.size - 1, part.size, part.dtype).reshape(part.shape)
        np.testing.assert_array_equal(result, expected)
    named = comm.allreduce_async(values(comm.rank, 200_000), name="named", shared=True).wait()
    np.testing.assert_array_equal(named, total(comm.size, 200_000))
    with pytest.raises(npucoll.ConfigError, match="either shared=True or out="):
        comm.allreduce(values(0, 4), out=np.empty(4, np.float32), shared=True)
    with pytest.raises(npucoll.MismatchError, match="shared result"):
        comm.allreduce(values(0, 4), shared=comm.rank == 0)
    npucoll.shutdown()
    np.testing.assert_array_equal(named, total(comm.size, 200_000))


def test_results_that_are_shared():
    run_ranks(results_that_are_shared, 2)
    run_ranks(results_that_are_shared, 3)


def plans():
    comm = npucoll.init()
    size, rank = comm.size, comm.rank
    x, big, out = np.empty(3, np.float32), np.empty(300_000, np.float32), np.empty(3, np.float32)
    everyone = np.empty(3 * size, np.float32)
    plan = comm.plan(
        [
            npucoll.call("allreduce", x, op="mean", out=out),
            npucoll.call("allgather", x, out=everyone),
            npucoll.call("allreduce", big, shared=True),
            npucoll.call("grouped_allreduce", [x, big], shared=True),
            npucoll.call("barrier"),
            npucoll.call("allreduce_", big, "max"),
        ]
    )
    with pytest.raises(npucoll.NotInitialized, match="after its first run"):
        plan.results  # noqa: B018  # the property raises
    shared = None
    for number in range(5):
        x[...] = values(rank + number, 3)
        big[...] = values(rank + number, big.size)
        plan.run()
        expected = sum(values(r + number, big.size) for r in range(size))
        results = plan.results
        assert results[0] is out and results[1] is everyone and results[4] is None and results[5] is big
        np.testing.assert_array_equal(out, expected[:3] / size)
        np.testing.assert_array_equal(everyone.reshape(size, 3), [values(r + number, 3) for r in range(size)])
        np.testing.assert_array_equal(results[2], expected)
        np.testing.assert_array_equal(results[3][0], expected[:3])
        np.testing.assert_array_equal(results[3][1], expected)
        np.testing.assert_array_equal(big, values(size - 1 + number, big.size))
        assert shared is None or results[2] is shared
        shared = results[2]
    plan.close()
    with pytest.raises(npucoll.NotInitialized, match="closed"):
        plan.run()
    # The calls of a plan are numbered like any others.
    with comm.plan([npucoll.call("broadcast_", x, 0)]) as once:
        if rank == 0:
            x[...] = 5
            once.run()
        else:
            comm.broadcast_(x, 0)
    assert (x == 5).all()
    y = np.zeros(3 + rank)
    wrong = comm.plan([npucoll.call("allreduce_", y)])
    with pytest.raises(npucoll.MismatchError, match="float64"):
        wrong.run()
    npucoll.shutdown()
    with pytest.raises(npucoll.NotInitialized):
        wrong.run()


def test_plans():
    run_ranks(plans, 2)
    run_ranks(plans, 3)


def test_what_a_plan_refuses():
    comm = npucoll.init()
    x = np.zeros((4, 4), np.float32)
    with pytest.raises(npucoll.ConfigError, match="can hold"):
        npucoll.call("send", x, 1)
    with pytest.raises(npucoll.ConfigError, match="no name"):
        npucoll.call("allreduce", x, name="x")
    with pytest.raises(npucoll.ConfigError, match="C-contiguous NumPy array; found an array"):
        npucoll.call("allreduce", x.T[1:])
    with pytest.raises(npucoll.ConfigError, match="found list"):
        npucoll.call("grouped_allreduce", [[1, 2]])
    with pytest.raises(npucoll.ConfigError, match="pass out="):
        comm.plan([npucoll.call("allgather", x)])
    with pytest.raises(npucoll.ConfigError, match="out must be C-contiguous"):
        comm.plan([npucoll.call("allreduce", x, out=np.zeros((4, 4), np.float32).T)])
    with pytest.raises(npucoll.ConfigError, match="at least one"):
        comm.plan([])
    with pytest.raises(npucoll.ConfigError, match=r"npucoll\.call"):
        comm.plan([x])
    with pytest.raises(npucoll.ConfigError, match="negative"):
        comm.empty((-1,))


def the_short_way():
    """The same calls again and again, with arrays that change what the short way must notice."""
    comm = npucoll.init()
    x, out = np.arange(12, dtype=np.float32).reshape(3, 4) + comm.rank, np.empty((3, 4), np.float32)
    expected = sum(np.arange(12).reshape(3, 4) + r for r in range(comm.size))
    for _ in range(3):
        assert comm.allreduce(x, out=out) is out
        np.testing.assert_array_equal(out, expected)
    comm.allreduce(x.astype(">f4"), out=out)
    np.testing.assert_array_equal(out, expected)
    comm.allreduce(np.asfortranarray(x), out=out)
    np.testing.assert_array_equal(out, expected)
    turned = np.empty((4, 3), np.float32).T
    assert comm.allreduce(x, out=turned) is turned
    np.testing.assert_array_equal(turned, expected)
    misaligned = np.frombuffer(bytearray(49), np.uint8)[1:].view(np.float32).reshape(3, 4)
    comm.allreduce(x, out=misaligned)
    np.testing.assert_array_equal(misaligned, expected)
    both = np.zeros(16, np.float32)
    both[:12] = x.ravel()
    with pytest.raises(npucoll.ConfigError, match="overlaps"):
        comm.allreduce(both[:12].reshape(3, 4), out=both[4:].reshape(3, 4))
    out.flags.writeable = False
    with pytest.raises(npucoll.ConfigError, match="read-only"):
        comm.allreduce(x, out=out)
    with pytest.raises(npucoll.ConfigError, match="shape"):
        comm.allreduce(x, out=np.empty(12, np.float32))
    with pytest.raises(npucoll.ConfigError, match="dtype"):
        comm.allreduce(x, out=np.empty((3, 4)))
    x.shape = (12,)  # the same array, described otherwise
    flat = np.empty(12, np.float32)
    np.testing.assert_array_equal(comm.allreduce(x, out=flat), expected.ravel())
    with pytest.raises(npucoll.MismatchError):
        comm.allreduce(flat if comm.rank else flat.reshape(3, 4), out=flat if comm.rank else flat.reshape(3, 4))
    npucoll.shutdown()
    with pytest.raises(npucoll.NotInitialized):
        comm.allreduce(x, out=flat)


def test_the_short_way_sees_what_the_long_way_sees():
    run_ranks(the_short_way, 2)


def a_child_that_forks():
    comm = npucoll.init()
    mine = comm.empty(100_000)
    mine[...] = comm.rank
    result = comm.allreduce(mine, shared=True)
    pid = os.fork()
    if pid == 0:
        del mine, result  # its parent's memory stays its parent's
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    others = [comm.empty(100_000) for _ in range(3)]
    for other in others:
        other[...] = -1
    assert (mine == comm.rank).all() and (result == sum(range(comm.size))).all()
    comm.barrier()


def test_a_forked_child_frees_nothing():
    run_ranks(a_child_that_forks, 2)


PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "fast-calls.md"
EXAMPLES = [block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S) if "import" in block]


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_examples_of_the_page(number, tmp_path):
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[number])
    command = [sys.executable, "-m", "npucoll", "run", "-n", "3", str(script)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    assert done.returncode == 0, done.stdout.decode()
