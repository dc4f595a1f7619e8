"""Training on several ranks is training in one process on the whole batch."""

from __future__ import annotations

import numpy as np
import pytest

STEPS, ROWS, FEATURES = 20, 8, 6


def make_data():
    random = np.random.RandomState(3)
    x = random.normal(size=(STEPS, ROWS, FEATURES)).astype(np.float32)
    return x, np.stack([x.sum(axis=2), np.sin(x[:, :, 0])], axis=2).astype(np.float32)


def make_optimizer(tf, name):
    return {
        "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
        "momentum": lambda: tf.train.MomentumOptimizer(0.02, 0.9),
        "adam": lambda: tf.train.AdamOptimizer(0.01),
    }[name]()


def build(tf, name, use_resource, way, npu):
    """Build the model in the current graph; ``way`` says who averages: nobody, the wrapper, the class or the script."""
    x = tf.placeholder(tf.float32, [None, FEATURES])
    y = tf.placeholder(tf.float32, [None, 2])
    with tf.variable_scope("model", use_resource=use_resource):
        w1 = tf.get_variable("w1", [FEATURES, 5])
        b1 = tf.get_variable("b1", [5], initializer=tf.zeros_initializer())
        w2 = tf.get_variable("w2", [5, 2])
        # A variable that takes no part in training is broadcast all the same, in its own dtype.
        tf.get_variable(
            "seen", [3], tf.int64, tf.random_uniform_initializer(0, 1 << 40, dtype=tf.int64), trainable=False
        )
    prediction = tf.matmul(tf.tanh(tf.matmul(x, w1) + b1), w2)
    loss = tf.reduce_mean(tf.square(prediction - y))
    step = tf.train.get_or_create_global_step()
    optimizer = make_optimizer(tf, name)
    if way == "wrapper":
        wrapped = npu.npu_distributed_optimizer_wrapper(optimizer)
        assert wrapped is optimizer
        assert npu.npu_distributed_optimizer_wrapper(wrapped) is optimizer
    elif way == "class":
        optimizer = npu.NPUDistributedOptimizer(optimizer)
    if way == "script":
        variables = tf.trainable_variables()
        gradients = npu.npu_allreduce(tf.gradients(loss, variables))
        train = optimizer.apply_gradients(zip(gradients, variables), global_step=step)
    else:
        train = optimizer.minimize(loss, global_step=step)
    return x, y, train


def run(tf, feeds, session, parts, share):
    x, y, train = parts
    for features, labels in zip(*feeds):
        session.run(train, {x: features[share], y: labels[share]})


def fetch(tf, session):
    return {variable.name: session.run(variable) for variable in tf.global_variables()}


def train_like_one_process(optimizer, cases):
    import npucoll

    npu = npucoll.enable("tf1")
    import tensorflow.compat.v1 as tf

    comm, feeds = npucoll.communicator(), make_data()
    for use_resource, way in cases:
        with tf.Graph().as_default(), tf.Session() as session:
            tf.set_random_seed(100 + comm.rank)
            parts = build(tf, optimizer, use_resource, way, npu)
            bcast_op = npu.broadcast_global_variables(0, comm.rank)
            session.run(tf.global_variables_initializer())
            before = fetch(tf, session)
            session.run(bcast_op)
            start = fetch(tf, session)
            run(tf, feeds, session, parts, slice(comm.rank, None, comm.size))
            found = fetch(tf, session)
        with tf.Graph().as_default(), tf.Session() as session:
            parts = build(tf, optimizer, use_resource, "nobody", npu)
            for variable in tf.global_variables():
                variable.load(start[variable.name], session)
            run(tf, feeds, session, parts, slice(None))
            wanted = fetch(tf, session)
        where = (optimizer, use_resource, way)
        assert comm.rank == 0 or (before["model/seen:0"] != start["model/seen:0"]).all(), where
        assert sorted(found) == sorted(wanted), where
        for name in wanted:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6, err_msg=f"{where} {name}")
        assert found["global_step:0"] == STEPS, where
        assert np.abs(found["model/w1:0"] - start["model/w1:0"]).max() > 1e-3, where
        comm.assert_in_sync(start)
        comm.assert_in_sync(found)
    return True


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("n", [2, 4], ids=["2 ranks", "4 ranks"])
def test_ranks_equal_one_process_on_the_whole_batch(ranks, n, optimizer):
    cases = [(False, "wrapper"), (True, "class"), (False, "script")][: 6 // n]
    assert all(ranks(n, train_like_one_process, optimizer, cases))
