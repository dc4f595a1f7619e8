"""The broadcast of variables: as an operation, in a hook, and in graphs that are frozen."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest


def start():
    import npucoll

    npu = npucoll.enable("tf1")
    import tensorflow.compat.v1 as tf

    return npucoll.communicator(), npu, tf


def every_dtype():
    comm, npu, tf = start()
    dtypes = ["bool", "uint8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "bfloat16"]
    with tf.Graph().as_default(), tf.Session() as session:
        for dtype in dtypes:
            for use_resource in (False, True):
                value = tf.cast(tf.constant([[comm.rank % 2, 1, 5 * comm.rank]]), dtype)
                tf.get_variable(
                    f"{dtype}_{use_resource}", initializer=value, use_resource=use_resource, trainable=False
                )
        tf.get_variable("scalar", initializer=float(comm.rank))
        tf.get_variable("empty", [0, 3])
        bcast_op = npu.broadcast_global_variables(1, comm.rank)
        assert bcast_op.type == "NoOp"
        assert npu.broadcast_global_variables(1) is bcast_op
        assert npu.broadcast_global_variables(0) is not bcast_op
        session.run(tf.global_variables_initializer())
        for _ in range(2):
            session.run(bcast_op)
            for variable in tf.global_variables():
                found = session.run(tf.cast(variable, tf.complex128))
                wanted = {"scalar": 1, "empty": np.zeros((0, 3))}.get(variable.op.name, [[1, 1, 5]])
                if variable.dtype.base_dtype == tf.bool:
                    wanted = [[1, 1, 1]]
                np.testing.assert_array_equal(found, wanted, err_msg=variable.name)


def uninitialized_variables():
    """On the root that is an error that names the variable; on other ranks it is no matter."""
    comm, npu, tf = start()
    with tf.Graph().as_default(), tf.Session() as session:
        a = tf.get_variable("first", [2], initializer=tf.constant_initializer(3.0))
        b = tf.get_variable("second", [2], initializer=tf.constant_initializer(4.0), use_resource=True)
        bcast_op = npu.broadcast_global_variables(0)
        if comm.rank == 0:
            session.run([a.initializer, b.initializer])
        session.run(bcast_op)
        assert session.run([a, b])[1].tolist() == [4.0, 4.0]
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("ready", [2]), tf.get_variable("not_ready", [2])
        bcast_op = npu.broadcast_global_variables(0)
        session.run(tf.global_variables()[0].initializer)
        with pytest.raises(tf.errors.OpError, match="not_ready"):
            session.run(bcast_op)


def variables_made_later():
    _, npu, tf = start()
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("early", [2])
        bcast_op = npu.broadcast_global_variables(0)
        tf.get_variable("late", [2])
        session.run(tf.global_variables_initializer())
        with pytest.warns(RuntimeWarning, match="not broadcast: late;"):
            session.run(bcast_op)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            session.run(bcast_op)
    with tf.Graph().as_default(), tf.Session() as session:
        bcast_op = npu.broadcast_global_variables(0)
        for place in range(12):
            tf.get_variable(f"v{place}", [])
        with pytest.warns(RuntimeWarning, match="v0, .*v7 and 4 more"):
            session.run(bcast_op)


def wrong_arguments():
    comm, npu, tf = start()
    with tf.Graph().as_default():
        for root in (comm.size, -1, "x", None):
            with pytest.raises(ValueError, match="root_rank"):
                npu.broadcast_global_variables(root)
    if not tf.__version__.startswith("1."):
        with pytest.raises(TypeError, match="eager mode"):
            npu.broadcast_global_variables(0)


def model(tf, npu, comm):
    tf.set_random_seed(comm.rank)
    x = tf.random_normal([4, 3], seed=comm.rank)
    w = tf.get_variable("w", [3, 2])
    loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0))
    optimizer = npu.npu_distributed_optimizer_wrapper(tf.train.GradientDescentOptimizer(0.1))
    return optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())


def in_sync(comm, tf, session):
    values = {variable.name: session.run(variable) for variable in tf.global_variables()}
    comm.assert_in_sync(values)
    return values


def supervisor(directory):
    comm, npu, tf = start()
    from npucoll_tf1.variables import FrozenGraph

    with tf.Graph().as_default() as graph:
        train = model(tf, npu, comm)
        bcast_op = npu.broadcast_global_variables(0, comm.rank)
        # Without the threads that write: where eager execution is on, TensorFlow 2 runs them in it.
        supervisor = tf.train.Supervisor(
            logdir=os.path.join(directory, str(comm.rank)), save_model_secs=0, save_summaries_secs=0
        )
        assert graph.finalized
        # The same operation, since the graph takes no other.
        assert npu.broadcast_global_variables(0, comm.rank) is bcast_op
        with pytest.raises(FrozenGraph, match="before"):
            npu.broadcast_global_variables(1)
        with supervisor.managed_session() as session:
            session.run(bcast_op)
            for _ in range(5):
                session.run(train)
            assert in_sync(comm, tf, session)["global_step:0"] == 5


def monitored_session(directory):
    """The hook broadcasts what rank 0 restored, before the first step; rank 0 alone has a checkpoint."""
    comm, npu, tf = start()
    for wanted in (4, 8):
        with tf.Graph().as_default():
            train = model(tf, npu, comm)
            hooks = [npu.NPUBroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(num_steps=4)]
            with tf.train.MonitoredTrainingSession(
                checkpoint_dir=directory if comm.rank == 0 else None, hooks=hooks, log_step_count_steps=None
            ) as session:
                while not session.should_stop():
                    session.run(train)
                    values = {one.name: one for one in tf.global_variables()}
                    last = session._tf_sess().run(values)
            comm.assert_in_sync(last)
            assert last["global_step:0"] == wanted


def sharded_dataset():
    comm, npu, tf = start()
    from npucoll_tf1 import get_rank_id, get_rank_size

    with tf.Graph().as_default(), tf.Session() as session:
        dataset = tf.data.Dataset.range(10)
        dataset = dataset.shard(get_rank_size(), get_rank_id())
        step = tf.data.make_one_shot_iterator(dataset.batch(5)).get_next()
        mine = session.run(step)
        total = session.run(npu.allreduce(tf.constant(mine), "sum"))
    assert mine.tolist() == list(range(comm.rank, 10, comm.size))
    assert total.tolist() == [1, 5, 9, 13, 17]


def collectives_and_groups():
    comm, npu, tf = start()
    mine = f"only {comm.rank}"
    npu.create_group(mine, 1, [comm.rank])
    npu.create_group("all", 2, [1, 0])
    # Every rank has its own group of this name.
    npu.create_group("same name", 1, (np.int64(comm.rank),))
    assert npu.get_rank_size() == 2 and npu.get_rank_id() == comm.rank
    assert npu.get_local_rank_size() == 2 and npu.get_local_rank_id() == comm.rank
    assert (npu.get_rank_size(mine), npu.get_rank_id(mine)) == (1, 0)
    assert (npu.get_rank_size("all"), npu.get_rank_id("all")) == (2, comm.rank)
    assert npu.get_world_rank_from_group_rank(mine, 0) == comm.rank
    assert npu.get_group_rank_from_world_rank(comm.rank, mine) == 0
    assert npu.get_world_rank_from_group_rank("hccl_world_group", 1) == 1
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant([[1.0 + comm.rank, 2.0], [3.0, 4.0]])
        got = session.run(
            {
                "sum": npu.allreduce(x),
                "mean": npu.npu_allreduce([x], group="all")[0],
                "alone": npu.allreduce(x, group=mine),
                "same": npu.npu_allreduce(x, "sum", group="same name"),
                "root": npu.broadcast(x, 1),
                "rows": npu.allgather(x[: comm.rank + 1]),
                "part": npu.reduce_scatter(x),
                "to": npu.alltoall(x)[0],
                "reduced": npu.reduce(x, 0, "max"),
                "gradient": tf.gradients(npu.allreduce(x), x)[0],
            }
        )
    assert got["sum"].tolist() == [[3, 4], [6, 8]]
    assert got["mean"].tolist() == [[1.5, 2], [3, 4]]
    assert got["alone"].tolist() == got["same"].tolist() == [[1 + comm.rank, 2], [3, 4]]
    assert got["root"].tolist() == [[2, 2], [3, 4]]
    assert got["rows"].tolist() == [[1, 2], [2, 2], [3, 4]]
    assert got["part"].tolist() == [[[3, 4]], [[6, 8]]][comm.rank]
    assert got["to"].tolist() == [[[1, 2], [2, 2]], [[3, 4], [3, 4]]][comm.rank]
    assert comm.rank or got["reduced"].tolist() == [[2, 2], [3, 4]]
    assert got["gradient"].tolist() == [[2, 2], [2, 2]]
    for arguments, words in (
        (("", 1, [comm.rank]), "1 to 127"),
        (("x" * 128, 1, [comm.rank]), "1 to 127"),
        (("hccl_world_group", 2, [0, 1]), "exists already"),
        (("all", 2, [0, 1]), "exists already"),
        (("new", 2, [comm.rank]), "rank_num is 2"),
        (("new", 2, [0, 0]), "repeats"),
        (("new", 1, [2]), "from 0 to 1"),
        (("new", 1, [1 - comm.rank]), "not a member"),
        (("new", 1, ["a"]), "whole numbers"),
        ((7, 1, [comm.rank]), "by its name"),
    ):
        with pytest.raises(ValueError, match=words):
            npu.create_group(*arguments)
    npu.destroy_group(mine)
    for name in (mine, "hccl_world_group", "never made"):
        with pytest.raises(ValueError, match="group"):
            npu.destroy_group(name)
    with pytest.raises(ValueError, match="known groups: 'hccl_world_group', 'all', 'same name'"):
        npu.get_rank_id(mine)
    with pytest.raises(ValueError, match="no group"):
        npu.npu_allreduce(x, group=mine)
    npu.destroy_group("all")
    npu.destroy_group("same name")


CHECKS = [
    every_dtype,
    uninitialized_variables,
    variables_made_later,
    wrong_arguments,
    sharded_dataset,
    collectives_and_groups,
]


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_broadcast(ranks, check):
    ranks(2, check)


@pytest.mark.parametrize("check", [supervisor, monitored_session], ids=["supervisor", "monitored_session"])
def test_sessions(ranks, tmp_path, check):
    ranks(2, check, str(tmp_path))
