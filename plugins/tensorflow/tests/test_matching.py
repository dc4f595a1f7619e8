"""How ranks find each other, and what they learn when they do not agree."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from styles import STYLES, evaluate

import npucoll
import npucoll_tensorflow as npt

v1 = tf.compat.v1
EAGER = not tf.__version__.startswith("1.")
needs_eager = pytest.mark.skipif(not EAGER, reason="TensorFlow 1.15 is not eager")


def _expect(style, build, *arrays, error=npucoll.MismatchError, words=()):
    """Run what must fail, and check that it fails with ``error`` and says ``words``."""
    try:
        evaluate(style, build, *arrays)
    except Exception as raised:
        mine = npt.translate(raised)
        assert type(mine) is error, repr(raised)
        assert style != "eager" or mine is raised, repr(raised)
        for word in words:
            assert word in str(mine), str(mine)
    else:
        raise AssertionError("no error")


def _mismatches(style):
    comm = npucoll.init()
    odd = comm.rank == 1
    x = np.ones([4], np.float32)
    shape = np.ones([5 if odd else 4], np.float32)
    _expect(style, lambda t: [npt.allreduce(t)], shape, words=["(4,)", "(5,)", "rank 0", "rank 1"])
    dtype = x.astype(np.float64 if odd else np.float32)
    _expect(style, lambda t: [npt.allreduce(t)], dtype, words=["float32", "float64"])
    _expect(style, lambda t: [npt.allreduce(t, "max" if odd else "sum")], x, words=["sum", "max"])
    _expect(style, lambda t: [npt.broadcast(t, 1 if odd else 0)], x, words=["root 0", "root 1"])
    _expect(style, lambda t: [npt.broadcast(t) if odd else npt.allreduce(t)], x, words=["allreduce", "broadcast"])
    _expect(style, lambda t: [npt.allreduce(t, name="n")], shape, words=["'n'", "(5,)"])
    pair = np.ones([2, 3] if odd else [3, 2], np.float32)
    _expect(style, lambda t: npt.grouped_allreduce([t, t[0]]), pair)
    (again,) = evaluate(style, lambda t: [npt.allreduce(t)], x)
    np.testing.assert_array_equal(again, x * comm.size)


def _retrace():
    """One rank traces again, with another shape known, and matches all the same."""
    comm = npucoll.init()

    @tf.function
    def step(x):
        return npt.allreduce(x), npt.reduce_gradients([x, x * 2.0])

    def check(x):
        total, (first, second) = step(x)
        np.testing.assert_array_equal(total, np.asarray(x) * comm.size)
        np.testing.assert_array_equal(first, x)
        np.testing.assert_array_equal(second, np.asarray(x) * 2)

    check(tf.ones([3, 2]))
    if comm.rank == 1:
        step.get_concrete_function(tf.TensorSpec([None, 2], tf.float32))
        step = tf.function(step.python_function, input_signature=[tf.TensorSpec([None, 2], tf.float32)])
    check(tf.ones([3, 2]))
    check(tf.ones([5, 2]))


def _built_twice():
    """One rank builds its model twice, in another function: names and counters differ."""
    comm = npucoll.init()

    def make():
        weight = tf.Variable(tf.ones([3]), name="weight")

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(npt.allreduce(weight * x, "mean"))
            return npt.reduce_gradients(tape.gradient(loss, [weight]))[0]

        return step

    step = make()
    if comm.rank == 0:
        step.get_concrete_function(tf.TensorSpec([3], tf.float32))
        step = make()
    for _ in range(3):
        np.testing.assert_allclose(step(tf.ones([3]) * float(comm.rank)), np.full(3, (comm.size - 1) / 2))


def _nested():
    """A function calls another twice: the calls keep their order though their collectives are alike."""
    comm = npucoll.init()

    @tf.function
    def total(x):
        return npt.allreduce(x)

    @tf.function
    def outer(x):
        slow = x
        if comm.rank == 0:
            for _ in tf.range(300):
                slow = tf.linalg.matmul(slow, tf.eye(64))
        first = total(slow)
        second = total(x * 10.0)
        return first, second

    for _ in range(20):
        first, second = outer(tf.ones([64, 64]))
        np.testing.assert_array_equal(first, np.full([64, 64], comm.size))
        np.testing.assert_array_equal(second, np.full([64, 64], 10.0 * comm.size))


def _helper():
    """A function has a collective like one of a function that it calls: never the other's value without an error."""
    comm = npucoll.init()

    @tf.function
    def average(x):
        return npt.allreduce(x, "mean")

    average(tf.constant(1.0))  # traced for itself

    @tf.function
    def step(x):
        slow = x
        if comm.rank == 0:
            for _ in tf.range(300):
                slow = slow + tf.reduce_sum(tf.linalg.matmul(tf.ones([64, 64]), tf.eye(64))) * 0.0
        first = average(slow)
        second = npt.allreduce(x * 10.0, "mean")
        return first, second, npt.reduce_gradients([x])

    for _ in range(20):
        try:
            first, second, _ = step(tf.constant(1.0))
        except tf.errors.OpError as error:
            assert isinstance(npt.translate(error), npucoll.MismatchError), repr(error)
            return
        assert (float(first), float(second)) == (1.0, 10.0)


def _loop(style):
    """A collective in a loop: iteration i of one rank meets iteration i of the other."""
    comm = npucoll.init()

    def build(limit):
        def body(i, total):
            mixed = tf.cast([i], tf.float32) * float(comm.rank + 1)
            return i + 1, total + npt.allreduce(mixed) * tf.cast(i, tf.float32)

        return [tf.while_loop(lambda i, _: i < limit, body, [0, tf.zeros([1])])[1]]

    for _ in range(3):
        (got,) = evaluate(style, build, np.int32(20))
        factor = comm.size * (comm.size + 1) / 2
        np.testing.assert_allclose(got, [factor * sum(i * i for i in range(20))])


def _condition(style):
    comm = npucoll.init()

    def build(x, flag):
        return [tf.cond(flag, lambda: npt.allreduce(x), lambda: npt.allreduce(x, "max")), npt.allreduce(x)]

    for flag in (True, False, True):
        picked, total = evaluate(style, build, np.ones([3], np.float32), np.bool_(flag))
        np.testing.assert_array_equal(picked, np.ones(3) * (comm.size if flag else 1))
        np.testing.assert_array_equal(total, np.ones(3) * comm.size)


def _partial_fetches():
    """Ranks fetch the collectives of one graph in other runs."""
    comm = npucoll.init()
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [2])
        sums = [npt.allreduce(x * float(i)) for i in range(6)]
        plan = npt.reduce_gradients([x, x * 2.0])
        with v1.Session() as session:
            feed = {x: [1.0, 2.0]}
            if comm.rank == 0:
                got = session.run([sums, plan], feed)
                got = [*got[0], *got[1]]
            else:
                threads, got = [], [None] * 8

                def fetch(place, tensor):
                    got[place] = session.run(tensor, feed)

                for place, tensor in reversed(list(enumerate([*sums, plan[0]]))):
                    threads.append(threading.Thread(target=fetch, args=(place, tensor)))
                    threads[-1].start()
                for thread in threads:
                    thread.join()
                got[7] = got[6] * 2
        for i, value in enumerate(got[:6]):
            np.testing.assert_array_equal(value, np.float32([1, 2]) * i * comm.size)
        np.testing.assert_array_equal(got[6], [1, 2])


def _two_sessions():
    comm = npucoll.init()
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [2])
        total = npt.allreduce(x)
        with v1.Session() as first, v1.Session() as second:
            for step in range(5):
                for factor, session in ((1, first), (10, second)):
                    got = session.run(total, {x: [factor, step * factor]})
                    np.testing.assert_array_equal(got, np.float32([factor, step * factor]) * comm.size)


def _two_graphs():
    """Plans of a second graph, and more collectives in a graph that has already run."""
    comm = npucoll.init()
    for offset in range(2):
        with tf.Graph().as_default():
            first = npt.allreduce(tf.ones([2]) + float(offset))
            with v1.Session() as session:
                np.testing.assert_array_equal(session.run(first), np.full(2, (1.0 + offset) * comm.size))
                second = npt.allreduce(tf.ones([2]) * 5.0)
                more = [npt.allreduce(tf.ones([2]) * 7.0), npt.allreduce(tf.ones([3]))]
                got = session.run([first, second, *more])
                for value, expected in zip(got, [1.0 + offset, 5.0, 7.0, 1.0]):
                    np.testing.assert_array_equal(value, np.full(value.shape, expected * comm.size))


def _from_another_process():
    """A graph that was written elsewhere: its places in a plan mean nothing here."""
    comm = npucoll.init()
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [2], name="x")
        outputs = [npt.allreduce(x), npt.allreduce(x * 2.0), *npt.reduce_gradients([x, None])[:1]]
        for i, output in enumerate(outputs):
            tf.identity(output, name=f"y{i}")
        text = graph.as_graph_def()
    for node in text.node:
        if node.op == "NpucollAllreduce":
            node.attr["slot"].i = 1_000_000 + comm.rank
    with tf.Graph().as_default():
        got = tf.import_graph_def(text, return_elements=["x:0", "y0:0", "y1:0", "y2:0"], name="")
        with v1.Session() as session:
            values = session.run(got[1:], {got[0]: [1, 2]})
    np.testing.assert_array_equal(values, np.float32([[1, 2], [2, 4], [1 / comm.size, 2 / comm.size]]) * comm.size)


def _again(style):
    """A graph outlives shutdown, and runs after another init."""
    comm = npucoll.init()

    def build(x):
        return [npt.allreduce(x)]

    x = np.ones([3], np.float32)
    with tf.Graph().as_default():
        given = v1.placeholder(tf.float32, [3])
        total = npt.allreduce(given)
        session = v1.Session()
    np.testing.assert_array_equal(session.run(total, {given: x}), x * comm.size)
    comm.barrier()
    npucoll.shutdown()
    _expect(style, build, x, error=npucoll.NotInitialized, words=["npucoll.init()"])
    with pytest.raises(tf.errors.OpError, match="NotInitialized"):
        session.run(total, {given: x})
    comm = npucoll.init()
    np.testing.assert_array_equal(session.run(total, {given: x}), x * comm.size)
    session.close()
    (got,) = evaluate(style, build, x)
    np.testing.assert_array_equal(got, x * comm.size)


def _late(style):
    """A rank that never comes: the deadline ends the wait, and says who was missing."""
    comm = npucoll.init()
    comm.barrier()
    npucoll.shutdown()
    comm = npucoll.init(timeout=1.5)
    comm.barrier()
    started = time.monotonic()
    if comm.rank == 0:
        x = np.ones([3], np.float32)
        _expect(style, lambda t: [npt.allreduce(t, name="late")], x, error=npucoll.CollectiveTimeout, words=["rank 1"])
        assert time.monotonic() - started < 8
    else:
        time.sleep(4)
    npucoll.shutdown()


def _lost(style):
    """A rank that leaves: who waits for it learns at once."""
    comm = npucoll.init()
    comm.barrier()
    if comm.rank == 1:
        time.sleep(1)
        comm.engine.abort("ValueError: nothing works")
    else:
        x = np.ones([3], np.float32)
        words = ["nothing works"]
        _expect(style, lambda t: [npt.allreduce(t, name="lost")], x, error=npucoll.PeerLost, words=words)
    npucoll.shutdown()


def _groups(style):
    comm = npucoll.init()
    if comm.rank == 3:
        return
    pair = comm.group([0, 2], "pair") if comm.rank != 1 else None
    other = comm.group([0, 1], "pair") if comm.rank != 2 else None
    value = np.full([3], comm.rank + 1, np.float32)

    def build(x):
        results = []
        for group in (pair, other):
            if group is not None:
                mean = npt.reduce_gradients([x], group=group)[0]
                results.append(tf.stack([npt.allreduce(x, group=group), mean, npt.broadcast(x, 1, group=group)]))
        return results

    expected = [[4, 2, 3]] * (pair is not None) + [[3, 1.5, 2]] * (other is not None)
    got = evaluate(style, build, value)
    np.testing.assert_array_equal([result[:, 0] for result in got], expected)


def _wrong_arguments():
    npucoll.init()
    with tf.Graph().as_default():
        with pytest.raises(npucoll.ConfigError, match="op='avg' is no reduction; known are sum, mean"):
            npt.allreduce(tf.ones([2]), "avg")
        with pytest.raises(npucoll.UnsupportedError, match="mean is not defined for bool"):
            npt.allreduce(tf.constant([True]), "mean")
        with pytest.raises(npucoll.UnsupportedError, match="scaling is not defined for int32"):
            npt.allreduce(tf.constant([1]), prescale=0.5)
        with pytest.raises(npucoll.UnsupportedError, match="dtype string"):
            npt.broadcast(tf.constant(["a"]))
        odd = np.ones([3], np.float32)
        _expect("session", lambda t: [npt.reduce_scatter(t)], odd, error=npucoll.ConfigError, words=["found 3"])
        assert npt.grouped_broadcast([]) == [] and npt.grouped_allreduce([]) == [] and npt.reduce_gradients([]) == []
        assert npt.reduce_gradients([None, None]) == [None, None]


@pytest.mark.parametrize("style", STYLES)
def test_mismatch(ranks, style):
    ranks(2, _mismatches, style, timeout=40)


@needs_eager
@pytest.mark.parametrize("program", [_retrace, _built_twice, _nested, _helper])
def test_functions(ranks, program):
    ranks(2, program)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("program", [_loop, _condition, _again], ids=["loop", "condition", "shutdown and init"])
def test_styles(ranks, program, style):
    ranks(2, program, style)


@pytest.mark.parametrize("program", [_partial_fetches, _two_sessions, _two_graphs, _from_another_process])
def test_sessions(ranks, program):
    ranks(2, program)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("program", [_late, _lost], ids=["late", "lost"])
def test_ends(ranks, program, style):
    ranks(2, program, style)


@pytest.mark.parametrize("style", STYLES)
def test_groups(ranks, style):
    ranks(4, _groups, style)


def test_wrong_arguments(ranks):
    ranks(2, _wrong_arguments)
