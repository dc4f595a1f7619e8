"""Broadcast of variables: ref and resource, every dtype, initialized or not, in finalized graphs and eagerly."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import npucoll
import npucoll_tensorflow as npt

v1 = tf.compat.v1
DTYPES = ["float32", "float64", "float16", "bfloat16", "int32", "int64", "bool", "complex64"]


def _value(rank, shape, dtype):
    return ((np.arange(int(np.prod(shape))).reshape(shape) + 3 * rank) % 5).astype(tf.as_dtype(dtype).as_numpy_dtype)


def _make(rank, use_resource):
    shapes = [(3, 4), (), (0,), (70, 1000)]
    return [
        v1.get_variable(
            f"v{i}_{'resource' if use_resource else 'ref'}",
            initializer=_value(rank, shapes[i % len(shapes)], dtype),
            use_resource=use_resource,
        )
        for i, dtype in enumerate(DTYPES)
    ]


def _check(variables, values, root):
    for variable, value in zip(variables, values):
        expected = _value(root, value.shape, variable.dtype.base_dtype.name)
        np.testing.assert_array_equal(np.asarray(value).astype(np.complex64), expected.astype(np.complex64))


def _graph(use_resource, initialized):
    comm = npucoll.init()
    for root in range(comm.size):
        with tf.Graph().as_default() as graph:
            variables = _make(comm.rank, use_resource)
            operation = npt.broadcast_variables(variables, root)
            initializers = [variable.initializer for variable in variables]
            graph.finalize()
            with v1.Session() as session:
                if initialized == "all" or comm.rank == root:
                    session.run(initializers)
                elif initialized == "some":
                    session.run(initializers[::2])
                session.run(operation)
                _check(variables, session.run(variables), root)
                session.run(operation)
                _check(variables, session.run(variables), root)


def _not_on_root(use_resource):
    comm = npucoll.init()
    with tf.Graph().as_default():
        variables = _make(comm.rank, use_resource)
        operation = npt.broadcast_variables(variables, 1)
        with v1.Session() as session:
            session.run([one.initializer for i, one in enumerate(variables) if comm.rank != 1 or i not in (1, 4)])
            with pytest.raises(tf.errors.OpError) as caught:
                session.run(operation)
            mine = npt.translate(caught.value)
            assert isinstance(mine, npucoll.ConfigError), str(caught.value)
            names = f"{variables[1].name}, {variables[4].name}"
            assert f"rank 1 has not initialized, so cannot send, {names}" in str(mine), str(mine)
            if comm.rank == 0:
                _check(variables, session.run(variables), 0)  # nothing was written


def _partial(use_resource):
    comm = npucoll.init()
    with tf.Graph().as_default():
        rows = comm.rank + 2
        start = v1.placeholder_with_default(np.full([rows, 3], rows, np.float32), [None, 3])
        open_shape = v1.get_variable("open", initializer=start, validate_shape=False, use_resource=use_resource)
        plain = v1.get_variable("plain", initializer=float(rows), use_resource=use_resource)
        operation = npt.broadcast_variables([open_shape, plain], 1)
        with v1.Session() as session:
            if comm.rank == 1:
                session.run([open_shape.initializer, plain.initializer])
            session.run(operation)
            np.testing.assert_array_equal(session.run(open_shape), np.full([3, 3], 3.0))
            assert session.run(plain) == 3.0


def _lists_differ():
    comm = npucoll.init()
    with tf.Graph().as_default():
        variables = _make(comm.rank, True)
        operation = npt.broadcast_variables(variables[: 3 + comm.rank])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            with pytest.raises(tf.errors.OpError) as caught:
                session.run(operation)
            mine = npt.translate(caught.value)
            assert isinstance(mine, npucoll.MismatchError) and "broadcast of 3 variables" in str(mine), str(mine)


def _special():
    npucoll.init()
    with tf.Graph().as_default():
        assert isinstance(npt.broadcast_variables([]), tf.Operation)
        parts = v1.get_variable(
            "parts",
            [6, 2],
            partitioner=v1.fixed_size_partitioner(3),
            initializer=v1.constant_initializer(float(npucoll.rank())),
        )
        operation = npt.broadcast_variables([parts, parts], 1)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(operation)
            assert session.run(parts.as_tensor()).tolist() == [[1.0, 1.0]] * 6


def _strings(use_resource):
    comm = npucoll.init()
    roots = [[b"one", b""], [b"\x00\xff and more", b"end"]]
    words = roots if comm.rank == 1 else [[b"x", b"x"], [b"x", b"x"]]
    with tf.Graph().as_default():
        variables = [
            v1.get_variable("words", initializer=tf.constant(words), use_resource=use_resource),
            v1.get_variable("number", initializer=float(comm.rank), use_resource=use_resource),
            v1.get_variable("word", initializer=tf.constant(f"of rank {comm.rank}"), use_resource=use_resource),
        ]
        operation = npt.broadcast_variables(variables, 1)
        with v1.Session() as session:
            if comm.rank == 1:
                session.run(v1.global_variables_initializer())
            session.run(operation)
            got = session.run(variables)
            assert got[0].tolist() == roots
            assert (got[1], got[2]) == (1.0, b"of rank 1")


def _eager():
    comm = npucoll.init()
    variables = [tf.Variable(_value(comm.rank, shape, dtype)) for shape in [(2, 3), ()] for dtype in DTYPES]
    open_shape = tf.Variable(np.ones([comm.rank + 1], np.float32), shape=tf.TensorShape([None]))
    assert npt.broadcast_variables([*variables, open_shape], 1) is None
    _check(variables, [variable.numpy() for variable in variables], 1)
    assert open_shape.numpy().tolist() == [1.0, 1.0]
    assert npt.broadcast_variables([]) is None

    @tf.function
    def update():
        npt.broadcast_variables(variables, 0)

    for variable in variables:
        variable.assign(_value(comm.rank, variable.shape.as_list(), variable.dtype.name))
    update()
    _check(variables, [variable.numpy() for variable in variables], 0)


@pytest.mark.parametrize("initialized", ["all", "some", "root"])
@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
@pytest.mark.parametrize("n", [2, 4], ids=["2 ranks", "4 ranks"])
def test_in_a_graph(ranks, n, use_resource, initialized):
    ranks(n, _graph, use_resource, initialized)


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_not_initialized_on_the_root(ranks, use_resource):
    ranks(2, _not_on_root, use_resource)


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_shape_that_the_graph_does_not_know(ranks, use_resource):
    ranks(2, _partial, use_resource)


def test_lists_differ(ranks):
    ranks(2, _lists_differ)


def test_partitions_and_nothing(ranks):
    ranks(2, _special)


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_strings(ranks, use_resource):
    ranks(2, _strings, use_resource)


@pytest.mark.skipif(tf.__version__.startswith("1."), reason="TensorFlow 1.15 is not eager")
def test_eagerly_and_in_a_function(ranks):
    ranks(2, _eager)
