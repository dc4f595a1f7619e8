"""npu_allreduce, the wrapper and the optimizer class, on two ranks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest


def start():
    import npucoll

    npu = npucoll.enable("tf1")
    import tensorflow.compat.v1 as tf

    return npucoll.communicator(), npu, tf


def sample_of_the_documentation():
    comm, _, tf = start()
    from npucoll_tf1 import npu_allreduce

    with tf.Graph().as_default(), tf.Session() as session:
        a = tf.constant(1.0 + comm.rank)
        b = 2 * a
        grads = npu_allreduce(tf.gradients(a + b, [a, b], stop_gradients=[a, b]))
        assert isinstance(grads, list)
        assert session.run(grads) == [1.0, 1.0]
        # Without stop_gradients it is the total derivative.
        assert session.run(npu_allreduce(tf.gradients(a + b, [a, b]))) == [3.0, 1.0]


def kinds_of_values():
    comm, npu, tf = start()
    mean, ranks = np.float32(np.arange(comm.size).mean()), np.arange(comm.size)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.fill([2, 3], tf.constant(float(comm.rank)))
        rows = tf.IndexedSlices(tf.fill([comm.rank + 1, 2], 2.0), tf.constant([0] * (comm.rank + 1)), [4, 2])
        one = npu.npu_allreduce(x)
        assert one.shape.as_list() == [2, 3]
        several = npu.npu_allreduce((x, None, rows, tf.constant(comm.rank, tf.int32)))
        assert isinstance(several, list) and several[1] is None
        assert isinstance(several[2], tf.IndexedSlices)
        assert several[0].shape.as_list() == [2, 3]
        dense = session.run(tf.convert_to_tensor(several[2]))
        np.testing.assert_allclose(dense[0], 2 * (ranks + 1).sum() / comm.size)
        assert not dense[1:].any()
        values = session.run([one, several[0], several[3]])
        assert (values[0] == mean).all() and (values[1] == mean).all()
        assert values[2] == int(mean)
        for reduction, wanted in (("sum", ranks.sum()), ("max", ranks.max()), ("min", 0), ("prod", 0)):
            assert (session.run(npu.npu_allreduce([x], reduction=reduction))[0] == wanted).all(), reduction
        assert npu.npu_allreduce([]) == []
        assert npu.npu_allreduce([None, None]) == [None, None]
        with pytest.raises(ValueError, match="average.*mean|mean.*average"):
            npu.npu_allreduce(x, "average")


def results_come_after_all_inputs():
    """The first result may be used to overwrite a variable that the second input reads."""
    _, npu, tf = start()
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.get_variable("w", [], initializer=tf.ones_initializer(), use_resource=False)
        slow = tf.py_func(lambda value: value, [tf.py_func(lambda: np.float32(1), [], tf.float32)], tf.float32)
        late = slow * w
        late.set_shape([])
        first, second = npu.npu_allreduce([tf.constant(5.0), late])
        third = npu.npu_allreduce([tf.constant(7, tf.int32), second])
        session.run(tf.global_variables_initializer())
        with tf.control_dependencies([w.assign(first)]):
            again = tf.identity(second)
        assert session.run([again, third[0]]) == [1.0, 7]


def pairs_of_compute_gradients():
    comm, npu, tf = start()
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.get_variable("w", [2], initializer=tf.ones_initializer())
        unused = tf.get_variable("unused", [2])
        loss = tf.reduce_sum(w) * (1.0 + comm.rank)
        optimizer = npu.npu_distributed_optimizer_wrapper(tf.train.GradientDescentOptimizer(0.5))
        pairs = optimizer.compute_gradients(
            loss, [unused, w], gate_gradients=tf.train.Optimizer.GATE_GRAPH, aggregation_method=None
        )
        assert isinstance(pairs, list) and pairs[0] == (None, unused) and pairs[1][1] is w
        pairs[1] = (tf.clip_by_norm(pairs[1][0], 1.0), w)
        step = optimizer.apply_gradients(pairs, global_step=tf.train.get_or_create_global_step())
        session.run(tf.global_variables_initializer())
        session.run(step)
        np.testing.assert_allclose(session.run(w), 1 - 0.5 / np.sqrt(2), rtol=1e-6)
        assert session.run(tf.train.get_global_step()) == 1


def a_gradient_missing_on_one_rank():
    """Every rank learns of it in that step, and the communicator goes on."""
    comm, npu, tf = start()
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant([1.0, 2.0])
        differing = npu.npu_allreduce([x, None if comm.rank else 2 * x])
        same = npu.npu_allreduce([x, 3 * x])
        with pytest.raises(tf.errors.OpError, match="MismatchError.*None at 1"):
            session.run([one for one in differing if one is not None])
        assert session.run(same)[1].tolist() == [3.0, 6.0]


def sparse_gradients():
    comm, npu, tf = start()
    with tf.Graph().as_default(), tf.Session() as session:
        table = tf.get_variable("table", [6, 2], initializer=tf.zeros_initializer())
        # Both ranks look up row 0, and a row of their own; on other ranks more rows.
        found = tf.nn.embedding_lookup(table, [0, 1 + comm.rank] + [5] * comm.rank)
        optimizer = npu.npu_distributed_optimizer_wrapper(tf.train.GradientDescentOptimizer(1.0))
        step = optimizer.minimize(tf.reduce_sum(found))
        session.run(tf.global_variables_initializer())
        session.run(step)
        wanted = np.zeros((6, 2), np.float32)
        for rank in range(comm.size):
            wanted[[0, 1 + rank]] -= 1 / comm.size
            wanted[5] -= rank / comm.size
        np.testing.assert_allclose(session.run(table), wanted, rtol=1e-6)


def two_optimizers():
    comm, npu, tf = start()
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(comm.rank)
        noise = tf.random_normal([4, 3])
        with tf.variable_scope("generator"):
            fake = _dense(tf, noise, 2)
        with tf.variable_scope("critic"):
            score = _dense(tf, fake, 1)
        ops = []
        for scope, sign in (("generator", -1.0), ("critic", 1.0)):
            optimizer = npu.npu_distributed_optimizer_wrapper(tf.train.AdamOptimizer(0.01))
            variables = tf.trainable_variables(scope)
            ops.append(optimizer.minimize(sign * tf.reduce_mean(score), var_list=variables))
        bcast_op = npu.broadcast_global_variables(0)
        session.run(tf.global_variables_initializer())
        session.run(bcast_op)
        for _ in range(5):
            # Alone, and together in an order of this rank's own.
            session.run(ops[0])
            session.run(ops if comm.rank else ops[::-1])
        comm.assert_in_sync({one.name: session.run(one) for one in tf.global_variables()})


def _dense(tf, x, units):
    w = tf.get_variable("w", [int(x.shape[1]), units])
    return tf.matmul(x, w) + tf.get_variable("b", [units], initializer=tf.zeros_initializer())


def loss_scales():
    """One rank overflows: all skip the step and lower the scale, with the wrapper inside or outside."""
    comm, npu, tf = start()
    wrap = npu.npu_distributed_optimizer_wrapper
    try:
        from tensorflow.compat.v1.mixed_precision import DynamicLossScale, MixedPrecisionLossScaleOptimizer
    except ImportError:
        from tensorflow.python.training.experimental.loss_scale import DynamicLossScale
        from tensorflow.python.training.experimental.loss_scale_optimizer import MixedPrecisionLossScaleOptimizer
    for inside in (True, False):
        with tf.Graph().as_default(), tf.Session() as session, warnings.catch_warnings():
            # The gradients are applied in a branch, whose graph is another one in TensorFlow 2.
            warnings.simplefilter("error", RuntimeWarning)
            w = tf.get_variable("w", [2], initializer=tf.ones_initializer())
            factor = tf.placeholder(tf.float32, [])
            plain = tf.train.GradientDescentOptimizer(0.5)
            scale = DynamicLossScale(initial_loss_scale=8.0)
            if inside:
                optimizer = MixedPrecisionLossScaleOptimizer(wrap(plain), scale)
            else:
                optimizer = wrap(MixedPrecisionLossScaleOptimizer(plain, scale))
            step = optimizer.minimize(tf.reduce_sum(w) * factor)
            session.run(tf.global_variables_initializer())
            session.run(step, {factor: np.inf if comm.rank == 1 else 1.0})
            assert (session.run(w) == 1).all(), inside
            assert session.run(scale()) == 4.0, inside
            session.run(step, {factor: 1.0 + comm.rank})
            np.testing.assert_allclose(session.run(w), 1 - 0.5 * (comm.size + 1) / 2)


def refusals():
    _, npu, tf = start()
    import npucoll

    with pytest.raises(npucoll.UnsupportedError, match=r"enable\('keras'\)"):
        npu.npu_distributed_optimizer_wrapper("adam")
    with pytest.raises(TypeError, match="found 3"):
        npu.npu_distributed_optimizer_wrapper(3)
    with pytest.raises(TypeError, match="expected a tf.train optimizer"):
        npu.npu_distributed_optimizer_wrapper(tf.train.AdamOptimizer)
    with pytest.raises(npucoll.UnsupportedError, match=r"enable\('keras'\)"):
        npu.npu_distributed_optimizer_wrapper(tf.keras.optimizers.SGD(0.1))
    with pytest.raises(npucoll.UnsupportedError, match="is_weight_update_sharding"):
        npu.NPUDistributedOptimizer(tf.train.GradientDescentOptimizer(0.1), True)
    with pytest.raises(ValueError, match="one optimizer"):
        npu.NPUDistributedOptimizer()


def optimizer_class():
    comm, npu, tf = start()
    with tf.Graph().as_default(), tf.Session() as session:
        inner = tf.train.MomentumOptimizer(0.5, 0.9)
        optimizer = npu.NPUDistributedOptimizer(tf_optimizer=npu.npu_distributed_optimizer_wrapper(inner))
        assert optimizer.get_name() == "DistributedMomentumOptimizer"
        assert npu.npu_distributed_optimizer_wrapper(optimizer) is optimizer
        assert npu.NPUDistributedOptimizer(inner, name="mine").get_name() == "mine"
        w = tf.get_variable("w", [], initializer=tf.ones_initializer())
        train = npu.NPUDistributedOptimizer(optimizer).minimize(w * (1.0 + comm.rank))
        assert optimizer.get_slot_names() == ["momentum"]
        assert optimizer.get_slot(w, "momentum") is inner.get_slot(w, "momentum")
        assert optimizer.variables() == inner.variables()
        session.run(tf.global_variables_initializer())
        session.run(train)
        assert session.run(optimizer.get_slot(w, "momentum")) == (comm.size + 1) / 2


def gradients_that_nobody_reduced():
    comm, npu, tf = start()
    with tf.Graph().as_default():
        w = tf.get_variable("w", [], initializer=tf.ones_initializer())
        optimizer = npu.npu_distributed_optimizer_wrapper(tf.train.GradientDescentOptimizer(0.5))
        gradients = tf.gradients(w * 2.0, [w])
        with pytest.warns(RuntimeWarning, match="nothing was reduced"):
            optimizer.apply_gradients(zip(gradients, [w]))
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            optimizer.apply_gradients(zip(npu.npu_allreduce(gradients), [w]))
    if tf.__version__.startswith("1."):
        return
    import tensorflow as tf2

    assert tf.executing_eagerly()
    w = tf2.Variable(1.0)
    for wrapped in (
        npu.npu_distributed_optimizer_wrapper(tf.train.GradientDescentOptimizer(0.5)),
        npu.NPUDistributedOptimizer(tf.train.GradientDescentOptimizer(0.5)),
    ):
        w.assign(1.0)
        with tf2.GradientTape() as tape:
            loss = w * (1.0 + comm.rank)
        wrapped.apply_gradients(zip(tape.gradient(loss, [w]), [w]))
        mean = (comm.size + 1) / 2
        assert float(w) == 1 - 0.5 * mean
        wrapped.minimize(lambda: w * (1.0 + comm.rank), var_list=[w])
        assert float(w) == 1 - mean
        # A sum stays a sum: what npu_allreduce gave is not averaged again.
        with tf2.GradientTape() as tape:
            loss = w * (1.0 + comm.rank)
        wrapped.apply_gradients(zip(npu.npu_allreduce(tape.gradient(loss, [w]), "sum"), [w]))
        assert float(w) == 1 - mean - 0.5 * mean * comm.size

    @tf2.function
    def step():
        with tf2.GradientTape() as tape:
            loss = w * 2.0
        wrapped.apply_gradients(zip(tape.gradient(loss, [w]), [w]))

    with pytest.warns(RuntimeWarning, match="nothing was reduced"):
        step()


CHECKS = [
    sample_of_the_documentation,
    kinds_of_values,
    results_come_after_all_inputs,
    pairs_of_compute_gradients,
    a_gradient_missing_on_one_rank,
    sparse_gradients,
    two_optimizers,
    loss_scales,
    refusals,
    optimizer_class,
    gradients_that_nobody_reduced,
]


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_gradients(ranks, check):
    ranks(2, check)
