"""What the communicator promises beyond the values: matching, errors, life and death of a communicator."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

import npucoll
from npucoll.testing import run_ranks


def shapes_differ():
    comm = npucoll.init()
    with pytest.raises(npucoll.MismatchError) as caught:
        comm.allreduce(np.zeros(4 + comm.rank, np.float32))
    text = str(caught.value)
    assert "4" in text and "5" in text and "float32" in text, text
    with pytest.raises(npucoll.MismatchError):
        comm.allreduce(np.zeros(100000, [np.float32, np.float64][comm.rank]))
    with pytest.raises(npucoll.MismatchError) as caught:
        if comm.rank == 0:
            comm.allreduce(np.zeros(3))
        else:
            comm.broadcast(np.zeros(3), 0)
    assert "allreduce" in str(caught.value) and "broadcast" in str(caught.value)
    with pytest.raises(npucoll.MismatchError):
        comm.allreduce(np.zeros(3), "sum" if comm.rank else "max")
    with pytest.raises(npucoll.MismatchError):
        comm.broadcast(np.zeros(3), comm.rank)
    # The communicator goes on after errors that all ranks raised.
    return float(comm.allreduce(np.float64(comm.rank + 1)))


def test_mismatches_raise_everywhere_and_the_communicator_goes_on():
    assert run_ranks(shapes_differ, 2) == [3.0, 3.0]


def names_in_any_order():
    comm = npucoll.init()
    names = [f"tensor {i}" for i in range(40)]
    order = np.random.RandomState(comm.rank).permutation(40)
    works = {names[i]: comm.allreduce_async(np.full(1 + 500 * i, i + comm.rank), name=names[i]) for i in order}
    for i in np.random.RandomState(10 + comm.rank).permutation(40):
        np.testing.assert_array_equal(works[names[i]].wait(30), np.full(1 + 500 * i, 2 * i + 1))
    results = {}

    def reduce_named(name):
        results[name] = float(comm.allreduce(np.float64(len(name)), name=name))

    order = np.random.RandomState(20 + comm.rank).permutation(8)
    threads = [threading.Thread(target=reduce_named, args=("y" * (1 + i),)) for i in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(results.values()) == [2.0 * i for i in range(1, 9)]


def test_named_calls_match_in_any_order_from_any_thread():
    run_ranks(names_in_any_order, 2)


def mix_async_and_blocking():
    comm = npucoll.init()
    works = [comm.allreduce_async(np.full(10000, i)) for i in range(20)]
    blocking = comm.allreduce(np.float64(1))
    assert float(blocking) == comm.size
    for i, work in enumerate(works):
        np.testing.assert_array_equal(work.wait(), np.full(10000, i * comm.size))
    work = comm.recv_async(1 - comm.rank, tag=3)
    assert not work.done()
    with pytest.raises(TimeoutError):
        work.wait(0.05)
    comm.barrier()
    comm.send(np.arange(5) + comm.rank, 1 - comm.rank, tag=3)
    np.testing.assert_array_equal(work.wait(), np.arange(5) + 1 - comm.rank)
    assert work.done()


def test_asynchronous_calls_keep_their_place_among_blocking_ones():
    run_ranks(mix_async_and_blocking, 2)


def talk_in_pairs():
    comm = npucoll.init()
    other = 1 - comm.rank
    big = np.arange(3_000_000, dtype=np.float32) + comm.rank
    # Both send first: neither may wait for ever for the other to receive.
    comm.send(big, other, tag=1)
    comm.send(np.array([comm.rank], np.int16), other, tag=2)
    np.testing.assert_array_equal(comm.recv(other, tag=2), [other])
    np.testing.assert_array_equal(comm.recv(other, tag=1), np.arange(3_000_000, dtype=np.float32) + other)
    out = np.zeros((2, 2))
    comm.send(np.full((2, 2), comm.rank + 1.0), other)
    assert comm.recv(other, out=out) is out
    assert (out == other + 1).all()


def test_send_and_receive():
    run_ranks(talk_in_pairs, 2)


def work_in_groups():
    comm = npucoll.init()
    low, high = comm.group([1, 0], "half"), comm.group([2, 3], "half")
    mine = low or high
    assert (low is None) == (comm.rank >= 2)
    assert mine.size == 2 and mine.rank == comm.rank % 2 and mine.name == "half"
    total = float(mine.allreduce(np.float64(comm.rank)))
    assert total == (1.0 if comm.rank < 2 else 5.0)
    everyone = comm.group(range(4))
    again = comm.group(range(4))
    assert float(again.allreduce(np.float64(1))) == float(everyone.allreduce(np.float64(1))) == 4
    mine.close()
    with pytest.raises(npucoll.NotInitialized):
        mine.barrier()
    return float(comm.allreduce(np.float64(1)))


def test_groups():
    assert run_ranks(work_in_groups, 4) == [4.0] * 4


def move_objects():
    comm = npucoll.init()
    thing = {"rank": comm.rank, "list": list(range(1000))}
    assert comm.broadcast_object(thing if comm.rank == 1 else None, root=1)["rank"] == 1
    assert [one["rank"] for one in comm.allgather_object(thing)] == list(range(comm.size))
    comm.assert_in_sync({"same": np.arange(4), "also": np.float32(2)})
    with pytest.raises(npucoll.MismatchError, match="differs"):
        comm.assert_in_sync({"same": np.arange(4), "differs": np.array([comm.rank])})
    return comm.rank


def test_objects():
    assert run_ranks(move_objects, 3) == [0, 1, 2]


def half_precision_mean():
    comm = npucoll.init()
    assert float(comm.allreduce(np.float16(30000), "mean")) == 30000.0
    big = comm.allreduce(np.full(100_000, 30000, np.float16), "mean")
    assert (big == 30000).all()
    assert int(comm.allreduce(np.int8(-100 - comm.rank % 2), "mean")) == -100


def test_half_precision_mean_does_not_overflow():
    run_ranks(half_precision_mean, 4)


def repeat_bits():
    comm = npucoll.init()
    x = np.random.RandomState(comm.rank).normal(size=300_001).astype(np.float32) * 1e3
    whole = comm.allreduce(x)
    pieces = np.concatenate([comm.allreduce(part) for part in np.array_split(x, 7)])
    small = np.array([float(comm.allreduce(x[i])) for i in range(8)], np.float32)
    assert (whole == pieces).all() and (whole[:8] == small).all()
    comm.assert_in_sync([whole])


def test_bits_do_not_depend_on_rank_or_size_of_the_message():
    run_ranks(repeat_bits, 3)


def in_place_and_overlap():
    comm = npucoll.init()
    x = np.arange(1000.0)
    assert comm.allreduce_(x) is x
    np.testing.assert_array_equal(x, np.arange(1000.0) * comm.size)
    y = np.arange(100_000.0)
    assert comm.allreduce(y, out=y) is y
    np.testing.assert_array_equal(y, np.arange(100_000.0) * comm.size)
    strided = np.arange(10.0)[::2]
    comm.broadcast_(strided, root=1)
    with pytest.raises(npucoll.ConfigError, match="overlap"):
        comm.allreduce(x[:10], out=x[5:15])
    with pytest.raises(npucoll.ConfigError, match="read-only"):
        comm.allreduce_(np.broadcast_to(np.float32(1), (3,)))
    with pytest.raises(npucoll.ConfigError, match="shape"):
        comm.allreduce(x, out=np.zeros(3))
    with pytest.raises(npucoll.ConfigError, match="known are"):
        comm.allreduce(x, "average")
    with pytest.raises(npucoll.ConfigError, match="scale"):
        comm.allreduce(x, prescale=0)
    with pytest.raises(npucoll.ConfigError, match="world"):
        comm.group([0, 1], "world")
    with pytest.raises(npucoll.ConfigError, match="no rank"):
        comm.broadcast(x, root=comm.size)
    with pytest.raises(npucoll.UnsupportedError, match="dtype"):
        comm.allreduce(np.array(["text"]))
    with pytest.raises(TypeError, match="unknown argument"):
        comm.allreduce_async(x, nmae="x")
    return float(comm.allreduce(np.float64(1)))


def test_in_place_and_wrong_arguments():
    assert run_ranks(in_place_and_overlap, 2) == [2.0, 2.0]


def late_rank():
    comm = npucoll.init(timeout=1.5)
    comm.barrier()
    start = time.monotonic()
    if comm.rank == 1:
        time.sleep(4)
    with pytest.raises(npucoll.CollectiveTimeout) as caught:
        comm.allreduce(np.zeros(1000))
    assert "1" in str(caught.value)
    assert comm.rank == 1 or time.monotonic() - start < 3.5
    with pytest.raises(npucoll.CollectiveTimeout):
        comm.barrier()


def test_a_late_rank_fails_all_at_the_deadline():
    run_ranks(late_rank, 3)


def lose_a_peer(how):
    comm = npucoll.init()
    comm.barrier()
    if comm.rank == 1:
        if how == "exit":
            os._exit(0)
        npucoll.shutdown()
        return ""
    start = time.monotonic()
    with pytest.raises(npucoll.PeerLost) as caught:
        comm.allreduce(np.zeros(1000))
    assert time.monotonic() - start < 2
    with pytest.raises(npucoll.PeerLost):
        comm.barrier()
    return str(caught.value)


def test_a_rank_that_shuts_down_is_named():
    texts = run_ranks(lose_a_peer, 3, "shutdown")
    assert "rank 1" in texts[0] and "rank 1" in texts[2]


def start_again():
    first = npucoll.init()
    kept = first.allreduce(np.arange(3.0))
    assert npucoll.init() is first
    with pytest.raises(npucoll.ConfigError):
        npucoll.init(timeout=12)
    npucoll.shutdown()
    npucoll.shutdown()
    with pytest.raises(npucoll.NotInitialized):
        first.barrier()
    second = npucoll.init()
    assert second is not first
    np.testing.assert_array_equal(kept, np.arange(3.0) * 2)
    return float(second.allreduce(np.float64(1)))


def test_shutdown_and_init_again():
    assert run_ranks(start_again, 2) == [2.0, 2.0]


def fork_a_child():
    comm = npucoll.init()
    comm.barrier()
    child = os.fork()
    if child == 0:
        try:
            comm.allreduce(np.zeros(2))
        except npucoll.NotInitialized as error:
            os._exit(7 if "fork" in str(error) else 8)
        os._exit(9)
    assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 7
    return float(comm.allreduce(np.float64(1)))


def test_a_forked_child_is_refused_in_words_and_harms_nothing():
    assert run_ranks(fork_a_child, 2) == [2.0, 2.0]


def many_groups():
    comm = npucoll.init()

    def resources():
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), len(maps.readlines())

    for _ in range(5):
        comm.group(range(comm.size), "warm").close()
    before = resources()
    for _ in range(200):
        comm.group(range(comm.size), "many").close()
    after = resources()
    assert after[0] <= before[0] + 1 and after[1] <= before[1] + 3, (before, after)


def test_groups_leave_nothing_behind():
    run_ranks(many_groups, 2)


def above_two_gib():
    comm = npucoll.init()
    x = np.full((1 << 31) + 12345, comm.rank + 1, np.uint8)
    comm.allreduce_(x)
    assert x[0] == x[-1] == x[1 << 31] == 3 and (x[:: 1 << 20] == 3).all()


def test_messages_above_two_gib():
    if os.environ.get("NPUCOLL_TEST_SMALL_MEMORY"):
        pytest.skip("this machine has too little memory for two messages of 2 GiB")
    run_ranks(above_two_gib, 2, timeout=180)
