"""Every collective against NumPy, in every style."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from styles import STYLES, evaluate

import npucoll
import npucoll_tensorflow as npt

REDUCE = {"sum": np.add.reduce, "min": np.minimum.reduce, "max": np.maximum.reduce, "prod": np.multiply.reduce}
DTYPES = ["float32", "float64", "float16", "bfloat16", "int32", "int64", "int8", "uint8", "bool", "complex64"]
SHAPES = [(), (1,), (3, 5), (0,), (2, 0, 3), (1000,), (40, 30, 20)]


def _value(rank, shape, dtype, place=0):
    """Return whole numbers so small that sums and products of them are exact in every dtype."""
    numbers = (np.arange(int(np.prod(shape))).reshape(shape) + rank + place) % 3 + (dtype != "bool") * (rank % 2)
    return numbers.astype(tf.as_dtype(dtype).as_numpy_dtype)


def _same(got, expected, what):
    assert got.dtype == expected.dtype, what
    assert got.shape == expected.shape, what
    np.testing.assert_array_equal(got.astype(np.complex128), expected.astype(np.complex128), err_msg=str(what))


def _reduce(values, op, dtype):
    kept = values[0].dtype
    if dtype == "bool":
        return np.logical_or.reduce(values)
    wide = [value.astype(np.complex128 if dtype == "complex64" else np.float64) for value in values]
    if op != "mean":
        return REDUCE[op](wide).astype(kept)
    mean = np.add.reduce(wide) / len(values)
    return (np.trunc(mean) if tf.as_dtype(dtype).is_integer else mean).astype(kept)


def _allreduces(style):
    comm = npucoll.init()
    cases = [("float32", shape, op) for shape in SHAPES for op in ("sum", "mean", "min")]
    for dtype in DTYPES:
        ops = (
            ["max"] if dtype == "bool" else ["sum", "mean"] if dtype == "complex64" else ["sum", "mean", "max", "prod"]
        )
        cases += [(dtype, (3, 5), op) for op in ops]
    arrays = [_value(comm.rank, shape, dtype, i) for i, (dtype, shape, _) in enumerate(cases)]

    def build(*tensors):
        return [npt.allreduce(tensor, op) for tensor, (_, _, op) in zip(tensors, cases)]

    for i, (case, got) in enumerate(zip(cases, evaluate(style, build, *arrays))):
        values = [_value(rank, case[1], case[0], i) for rank in range(comm.size)]
        _same(got, _reduce(values, case[2], case[0]), case)


def _others(style):
    comm = npucoll.init()
    rank, size = comm.rank, comm.size
    one, rows = _value(rank, (4, 3), "float32"), _value(rank, (rank + 1, 2), "int64")
    even, none = _value(rank, (2 * size, 3), "float32"), _value(rank, (rank, 2), "float32")
    parts = _value(rank, (size * (size + 1) // 2, 2), "float64")
    splits = np.arange(1, size + 1)

    def build(one, rows, even, none, parts, scalar):
        exchanged, received = npt.alltoall(parts, splits)
        return [
            npt.broadcast(one, size - 1),
            npt.allgather(rows),
            npt.allgather(none),
            npt.allgather(scalar),
            npt.reduce_scatter(even),
            npt.reduce_scatter(even, "mean"),
            npt.reduce(one, size - 1),
            exchanged,
            received,
            npt.alltoall(even)[0],
            *npt.grouped_allreduce([one, even, parts, one], "mean"),
            *npt.grouped_broadcast([one, tf.cast(even, tf.int32), scalar], 0),
            npt.allreduce(one, prescale=0.5, postscale=4.0),
        ]

    def everywhere(shape, dtype):
        return [_value(peer, shape, dtype) for peer in range(size)]

    got = evaluate(style, build, one, rows, even, none, parts, np.float32(rank))
    total = np.add.reduce(everywhere((2 * size, 3), "float32"))
    offsets = np.concatenate([[0], np.cumsum(splits)])
    sent = everywhere(parts.shape, "float64")
    blocks = [value.reshape(size, 2, 3)[rank] for value in everywhere((2 * size, 3), "float32")]
    expected = [
        _value(size - 1, (4, 3), "float32"),
        np.concatenate([_value(peer, (peer + 1, 2), "int64") for peer in range(size)]),
        np.concatenate([_value(peer, (peer, 2), "float32") for peer in range(size)]),
        np.arange(size, dtype=np.float32),
        total[2 * rank : 2 * rank + 2],
        total[2 * rank : 2 * rank + 2] / np.float32(size),
        np.add.reduce(everywhere((4, 3), "float32")) * np.float32(rank == size - 1),
        np.concatenate([value[offsets[rank] : offsets[rank + 1]] for value in sent]),
        np.full(size, rank + 1, np.int64),
        np.concatenate(blocks),
        np.add.reduce(everywhere((4, 3), "float32")) / np.float32(size),
        total / np.float32(size),
        np.add.reduce(sent) / size,
        np.add.reduce(everywhere((4, 3), "float32")) / np.float32(size),
        _value(0, (4, 3), "float32"),
        _value(0, (2 * size, 3), "float32").astype(np.int32),
        np.float32(0),
        np.add.reduce(everywhere((4, 3), "float32")) * np.float32(2),
    ]
    assert len(got) == len(expected)
    for place, (mine, theirs) in enumerate(zip(got, expected)):
        _same(np.asarray(mine), np.asarray(theirs), place)


def _big():
    comm = npucoll.init()
    value = np.random.RandomState(comm.rank).rand(3_000_000).astype(np.float32)
    values = [np.random.RandomState(rank).rand(3_000_000).astype(np.float32) for rank in range(comm.size)]
    expected = values[0]
    for other in values[1:]:
        expected = expected + other
    for style in STYLES:
        (got,) = evaluate(style, lambda tensor: [npt.allreduce(tensor)], value)
        np.testing.assert_array_equal(got, expected)


def _shapes():
    npucoll.init()
    with tf.Graph().as_default():
        known, open_rows = tf.ones([3, 4]), tf.compat.v1.placeholder(tf.float32, [None, 5])
        nothing = tf.compat.v1.placeholder(tf.float32)
        found = [
            npt.allreduce(known),
            npt.allreduce(open_rows),
            npt.allreduce(nothing),
            *npt.grouped_allreduce([known, open_rows]),
            *npt.grouped_broadcast([known, open_rows]),
            npt.allgather(known),
            npt.allgather(tf.constant(1.0)),
            npt.reduce_scatter(known),
            npt.alltoall(known)[0],
            npt.reduce(open_rows),
        ]
        shapes = [tensor.shape.as_list() if tensor.shape.ndims is not None else None for tensor in found]
    assert shapes == [
        [3, 4],
        [None, 5],
        None,
        [3, 4],
        [None, 5],
        [3, 4],
        [None, 5],
        [None, 4],
        [None],
        [None, 4],
        [None, 4],
        [None, 5],
    ]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("n", [1, 2, 4], ids=["1 rank", "2 ranks", "4 ranks"])
def test_allreduce(ranks, n, style):
    ranks(n, _allreduces, style)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("n", [1, 2, 4], ids=["1 rank", "2 ranks", "4 ranks"])
def test_other_collectives(ranks, n, style):
    ranks(n, _others, style)


def test_large_messages_have_the_same_bits(ranks):
    ranks(2, _big)


def test_static_shapes(ranks):
    ranks(2, _shapes)
