"""Gradients of the collectives, and the reduction of a model's gradients."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from styles import STYLES, evaluate

import npucoll
import npucoll_tensorflow as npt

v1 = tf.compat.v1


def _derive(style, loss, *arrays):
    """Return the gradients of ``loss``, a function of tensors, at ``arrays``."""
    if style == "session":
        return evaluate(style, lambda *tensors: tf.gradients(loss(*tensors), list(tensors)), *arrays)

    def build(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = loss(*tensors)
        return tape.gradient(value, tensors)

    return evaluate(style, build, *arrays)


def _gradients(style, named):
    comm = npucoll.init()
    rank, size = comm.rank, comm.size
    x = np.float32([1.0, 2.0, 3.0]) + rank
    rows = np.ones([rank + 1, 2], np.float32)
    weight = np.float32(rank + 1)  # what each rank's loss makes of its output
    total = np.float32(size * (size + 1) / 2)

    def check(loss, *pairs):
        for got, expected in zip(_derive(style, loss, *[value for value, _ in pairs]), [one for _, one in pairs]):
            np.testing.assert_allclose(got, expected, rtol=1e-6)

    def name(what):
        return f"{what} {style}" if named else None

    ones = np.ones(3, np.float32)
    check(lambda t: tf.reduce_sum(npt.allreduce(t, "sum", name=name("sum"))) * weight, (x, ones * total))
    check(lambda t: tf.reduce_sum(npt.allreduce(t, "mean", name=name("mean"))) * weight, (x, ones * total / size))
    scaled = ones * total * 6
    check(
        lambda t: tf.reduce_sum(npt.allreduce(t, prescale=2.0, postscale=3.0, name=name("scaled"))) * weight,
        (x, scaled),
    )
    to_root = ones * total * (rank == size - 1)
    check(lambda t: tf.reduce_sum(npt.broadcast(t, size - 1, name=name("broadcast"))) * weight, (x, to_root))
    from_root = ones * size
    check(lambda t: tf.reduce_sum(npt.reduce(t, size - 1, name=name("reduce"))) * weight, (x, from_root))
    check(lambda t: tf.reduce_sum(npt.allgather(t, name=name("gather"))) * weight, (rows, np.ones_like(rows) * total))
    blocks = np.ones([2 * size, 2], np.float32)
    per_rank = np.repeat(np.arange(1, size + 1, dtype=np.float32), 2)[:, None] * np.ones([1, 2], np.float32)
    check(lambda t: tf.reduce_sum(npt.reduce_scatter(t, name=name("scatter"))) * weight, (blocks, per_rank))
    check(
        lambda t: tf.reduce_sum(npt.reduce_scatter(t, "mean", name=name("scatter mean"))) * weight,
        (blocks, per_rank / size),
    )
    check(lambda t: tf.reduce_sum(npt.alltoall(t, name=name("exchange"))[0]) * weight, (blocks, per_rank))
    check(
        lambda a, b: (
            tf.add_n([tf.reduce_sum(t) for t in npt.grouped_allreduce([a, b], "mean", name=name("pair"))]) * weight
        ),
        (x, ones * total / size),
        (blocks, np.ones_like(blocks) * total / size),
    )


def _no_gradient():
    npucoll.init()
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [3])
        with pytest.raises(npucoll.UnsupportedError, match="allreduce with op='max' has no gradient"):
            tf.gradients(npt.allreduce(x, "max"), x)


def _reduced(style, op):
    comm = npucoll.init()
    rank, size = comm.rank, comm.size
    dense = np.arange(6, dtype=np.float32).reshape(2, 3) * (rank + 1)
    double = np.float64([rank, 1.0])
    half = np.float16(30000.0)
    # Rank r looks up rows r, r again, and 4.
    values, indices = np.ones([3, 2], np.float32) * (rank + 1), np.int64([rank, rank, 4])

    def build(dense, double, half, values, indices):
        slices = tf.IndexedSlices(values, indices, tf.constant([10, 2], tf.int64))
        given = [dense, None, slices, double, half, dense * 2.0]
        found = npt.reduce_gradients(given, op)
        assert found[1] is None and isinstance(found[2], tf.IndexedSlices), found
        back = tf.convert_to_tensor(found[2])
        assert [t.shape.as_list() for t in (found[0], found[3], found[4], back)] == [[2, 3], [2], [], [10, 2]]
        return [found[0], back, found[3], found[4], found[5]]

    got = evaluate(style, build, dense, double, half, values, indices)
    divisor = size if op == "mean" else 1
    total = size * (size + 1) / 2
    embedding = np.zeros([10, 2], np.float32)
    for peer in range(size):
        embedding[peer] += 2 * (peer + 1)
        embedding[4] += peer + 1
    expected = [
        np.arange(6, dtype=np.float32).reshape(2, 3) * total / divisor,
        embedding / divisor,
        np.float64([sum(range(size)), size]) / divisor,
        np.float32(30000.0) * size / divisor,
        np.arange(6, dtype=np.float32).reshape(2, 3) * 2 * total / divisor,
    ]
    for mine, theirs in zip(got, expected):
        np.testing.assert_allclose(mine.astype(np.float64), np.float16(theirs) if mine.dtype == np.float16 else theirs)


def _sparse_only(style):
    comm = npucoll.init()
    rank, size = comm.rank, comm.size

    def build(values):
        slices = tf.IndexedSlices(values, tf.range(tf.shape(values)[0]), tf.constant([8, 2]))
        (found,) = npt.reduce_gradients([slices], "mean")
        (largest,) = npt.reduce_gradients([slices], "max")
        return [tf.convert_to_tensor(found), largest]

    mean, largest = evaluate(style, build, np.ones([rank, 2], np.float32) * (rank + 1))
    rows = [np.vstack([np.ones([r, 2]) * (r + 1), np.zeros([8 - r, 2])]) for r in range(size)]
    np.testing.assert_allclose(mean, np.mean(rows, axis=0), rtol=1e-6)
    np.testing.assert_allclose(largest, np.max(rows, axis=0))


def _disagree(style, kind):
    """Each rank has another plan; all must learn of it at once, and go on."""
    comm = npucoll.init()
    odd = comm.rank == comm.size - 1
    x = np.ones([4, 2], np.float32)

    def build(x):
        if kind == "none":
            given = [x, None if odd else x * 2.0, x]
        elif kind == "shape":
            given = [x, x[:2] if odd else x]
        elif kind == "number":
            given = [x, x, x] if odd else [x, x]
        elif kind == "dtype":
            given = [x, tf.cast(x, tf.float64) if odd else x]
        else:
            slices = tf.IndexedSlices(x, tf.constant([0, 1, 2, 3]), tf.constant([4, 2]))
            given = [slices, None if odd else slices] if kind == "sparse none" else [x if odd else slices, x]
        found = npt.reduce_gradients(given)
        return [tf.convert_to_tensor(one) for one in found if one is not None]

    try:
        evaluate(style, build, x)
    except Exception as error:
        mine = npt.translate(error)
        assert isinstance(mine, npucoll.MismatchError), repr(error)
        assert "gradients" in str(mine) or style == "eager", str(mine)
    else:
        raise AssertionError("no error")
    (again,) = evaluate(style, lambda x: [npt.allreduce(x)], x)
    np.testing.assert_array_equal(again, x * comm.size)


@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("n", [2, 4], ids=["2 ranks", "4 ranks"])
def test_gradients(ranks, n, style, named):
    ranks(n, _gradients, style, named)


def test_what_has_no_gradient_says_so(ranks):
    ranks(2, _no_gradient)


@pytest.mark.parametrize("op", ["mean", "sum"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("n", [2, 4], ids=["2 ranks", "4 ranks"])
def test_reduce_gradients(ranks, n, style, op):
    ranks(n, _reduced, style, op)


@pytest.mark.parametrize("style", STYLES)
def test_sparse_rows_differ(ranks, style):
    ranks(2, _sparse_only, style)


@pytest.mark.parametrize("kind", ["none", "shape", "number", "dtype", "sparse none", "sparse dense"])
@pytest.mark.parametrize("style", STYLES)
def test_ranks_disagree(ranks, style, kind):
    ranks(2, _disagree, style, kind, timeout=30)
