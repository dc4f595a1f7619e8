"""Every collective on arrays that hypothesis makes up, against NumPy in one process, on 1 to 5 ranks.

All ranks draw the same cases (derandomized), make every rank's input from the case's seed, and so each rank can compute
what the collective must return. One set of processes runs all cases of a rank count.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import npucoll
from npucoll.testing import run_ranks

EXAMPLES = int(os.environ.get("NPUCOLL_TEST_EXAMPLES", "60"))
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
REALS = ["float16", "bfloat16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
SHAPES = [(), (0,), (1,), (3,), (17,), (2, 3), (5, 1, 7), (0, 4), (130, 9), (257, 64), (3, 50000)]
LAYOUTS = ["plain", "transposed", "strided", "reversed", "read-only", "swapped", "misaligned"]
TOLERANCE = {
    "float16": 1e-2,
    "bfloat16": 5e-2,
    "float32": 1e-5,
    "float64": 1e-12,
    "complex64": 1e-4,
    "complex128": 1e-11,
}


def numpy_dtype(name):
    if name == "bfloat16":
        ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy comes with ml_dtypes")
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def known_dtypes():
    try:
        import ml_dtypes  # noqa: F401  # only whether it is there
    except ImportError:
        return ["bool"] + INTEGERS + [name for name in REALS if name != "bfloat16"] + COMPLEX
    return ["bool"] + INTEGERS + REALS + COMPLEX


def make(seed, rank, shape, dtype):
    """Return rank's input of a case; every rank can make every other's."""
    random = np.random.RandomState((seed * 7919 + rank) % 2**32)
    if dtype == "bool":
        return random.randint(0, 2, size=shape).astype(bool)
    if dtype in INTEGERS:
        return random.randint(-100 if dtype.startswith("i") else 0, 100, size=shape).astype(dtype)
    values = random.uniform(-2, 2, size=shape)
    if dtype in COMPLEX:
        values = values + 1j * random.uniform(-2, 2, size=shape)
    return np.asarray(values).astype(numpy_dtype(dtype))


def lay_out(array, layout):
    """Return equal values in another memory layout."""
    if layout == "transposed" and array.ndim:
        return np.asfortranarray(array)
    if layout == "strided" and array.ndim:
        wide = np.zeros(array.shape[:-1] + (array.shape[-1] * 2,), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if layout == "reversed" and array.ndim:
        return array[::-1].copy()[::-1]
    if layout == "read-only":
        array = array.copy()
        array.flags.writeable = False
    if layout == "swapped" and array.dtype.isbuiltin == 1 and array.dtype.itemsize > 1:
        return array.astype(array.dtype.newbyteorder())
    if layout == "misaligned" and array.dtype.isbuiltin == 1 and array.size:
        raw = np.zeros(array.nbytes + 1, np.uint8)
        view = raw[1:].view(array.dtype).reshape(array.shape)
        view[...] = array
        return view
    return array


def reduced(inputs, op, dtype, prescale=1.0, postscale=1.0):
    """Return what a reduction must give, in more precision than the dtype has."""
    size = len(inputs)
    if dtype == "bool":
        return {"min": np.logical_and, "max": np.logical_or, "prod": np.logical_and}[op].reduce(inputs)
    if dtype in INTEGERS:
        stack = np.stack(inputs)
        if op == "mean":
            total = stack.astype(object).sum(axis=0) if stack.size else stack.astype(np.int64).sum(axis=0)
            truncate = np.vectorize(lambda value: abs(int(value)) // size * (1 if value >= 0 else -1), otypes=[object])
            return truncate(total).astype(dtype) if stack.size else np.zeros(inputs[0].shape, dtype)
        with np.errstate(over="ignore"):
            function = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
            return function.reduce(stack, axis=0, dtype=stack.dtype)
    wide = np.complex128 if dtype in COMPLEX else np.float64
    stack = np.stack([value.astype(wide) * prescale for value in inputs])
    function = {"sum": np.add, "mean": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
    result = function.reduce(stack, axis=0)
    return result / (size if op == "mean" else 1) * postscale


def check_reduced(actual, expected, dtype):
    assert actual.dtype == numpy_dtype(dtype)
    assert actual.shape == expected.shape
    if dtype in TOLERANCE:
        wide = np.complex128 if dtype in COMPLEX else np.float64
        np.testing.assert_allclose(actual.astype(wide), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    else:
        np.testing.assert_array_equal(actual, expected)


def defined(op, dtype):
    return not (dtype == "bool" and op in ("sum", "mean")) and not (dtype in COMPLEX and op in ("min", "max"))


cases = given(
    kind=st.sampled_from(
        ["allreduce", "grouped", "reduce", "reduce_scatter", "broadcast", "allgather", "gather", "scatter", "alltoall"]
    ),
    dtype=st.sampled_from(known_dtypes()),
    shape=st.sampled_from(SHAPES),
    layout=st.sampled_from(LAYOUTS),
    op=st.sampled_from(["sum", "mean", "min", "max", "prod"]),
    root=st.integers(0, 4),
    seed=st.integers(0, 2**20),
    style=st.sampled_from(["blocking", "out", "async", "named"]),
)


class Cases:
    """One method a collective: make all ranks' inputs, run it, compare."""

    def __init__(self, comm, dtype, layout, op, root, seed, style):
        self.comm, self.dtype, self.layout, self.op = comm, dtype, layout, op
        self.root, self.seed, self.style = root % comm.size, seed, style

    def inputs(self, shape):
        return [make(self.seed, rank, shape, self.dtype) for rank in range(self.comm.size)]

    def mine(self, inputs):
        return lay_out(inputs[self.comm.rank], self.layout)

    def call(self, method, *args, like=None, **options):
        if self.style == "out" and like is not None:
            out = np.empty(like.shape, numpy_dtype(self.dtype))
            result = getattr(self.comm, method)(*args, out=out, **options)
            assert result is out
            return result
        if self.style == "async":
            return getattr(self.comm, method + "_async")(*args, **options).wait(60)
        if self.style == "named":
            options["name"] = f"case {self.seed}"
        return getattr(self.comm, method)(*args, **options)

    def allreduce(self, shape):
        inputs = self.inputs(shape)
        scales = {} if self.dtype in INTEGERS + ["bool"] else {"prescale": 0.5, "postscale": 2.0}
        expected = reduced(inputs, self.op, self.dtype, **scales)
        check_reduced(
            self.call("allreduce", self.mine(inputs), self.op, like=inputs[0], **scales), expected, self.dtype
        )

    def grouped(self, shape):
        lists = [
            [make(self.seed + i, rank, s, self.dtype) for i, s in enumerate([shape, (3,), ()])]
            for rank in range(self.comm.size)
        ]
        mine = [lay_out(array, self.layout) for array in lists[self.comm.rank]] + [np.float64(self.comm.rank)]
        results = self.call("grouped_allreduce", mine, self.op)
        for i in range(3):
            check_reduced(results[i], reduced([rank[i] for rank in lists], self.op, self.dtype), self.dtype)
        check_reduced(
            results[3], reduced([np.float64(r) for r in range(self.comm.size)], self.op, "float64"), "float64"
        )

    def reduce(self, shape):
        inputs = self.inputs(shape)
        result = self.call("reduce", self.mine(inputs), self.root, self.op)
        if self.comm.rank == self.root:
            check_reduced(result, reduced(inputs, self.op, self.dtype), self.dtype)
        else:
            assert result is None

    def reduce_scatter(self, shape):
        shape = (max(shape[0] if shape else 1, 1) * self.comm.size,) + tuple(shape[1:])
        inputs = self.inputs(shape)
        block = shape[0] // self.comm.size
        rows = slice(self.comm.rank * block, (self.comm.rank + 1) * block)
        expected = reduced(inputs, self.op, self.dtype)[rows]
        check_reduced(self.call("reduce_scatter", self.mine(inputs), self.op, like=expected), expected, self.dtype)

    def broadcast(self, shape):
        inputs = self.inputs(shape)
        result = self.call("broadcast", self.mine(inputs), self.root, like=inputs[0])
        np.testing.assert_array_equal(result, inputs[self.root])
        assert result.dtype == inputs[0].dtype

    def parts(self, shape):
        """Inputs whose first dimension differs between ranks; some are empty."""
        rows = [(self.seed + 3 * rank) % 5 for rank in range(self.comm.size)]
        tail = tuple(shape[1:])
        return [make(self.seed, rank, (rows[rank],) + tail, self.dtype) for rank in range(self.comm.size)]

    def allgather(self, shape):
        inputs = self.parts(shape)
        expected = np.concatenate(inputs)
        np.testing.assert_array_equal(self.call("allgather", self.mine(inputs), like=expected), expected)

    def gather(self, shape):
        inputs = self.parts(shape)
        result = self.call("gather", self.mine(inputs), self.root)
        if self.comm.rank == self.root:
            np.testing.assert_array_equal(result, np.concatenate(inputs))
        else:
            assert result is None

    def scatter(self, shape):
        shape = ((shape[0] if shape else 1) * self.comm.size,) + tuple(shape[1:])
        whole = make(self.seed, 0, shape, self.dtype)
        block = shape[0] // self.comm.size
        expected = whole[self.comm.rank * block : (self.comm.rank + 1) * block]
        x = lay_out(whole, self.layout) if self.comm.rank == self.root else None
        result = self.call("scatter", x, self.root, like=expected)
        np.testing.assert_array_equal(result, expected)
        assert result.dtype == whole.dtype and result.shape == expected.shape

    def alltoall(self, shape):
        size, tail = self.comm.size, tuple(shape[1:])
        splits = np.array([[(self.seed + 3 * a + 5 * b) % 4 for b in range(size)] for a in range(size)])
        inputs = [make(self.seed, rank, (int(splits[rank].sum()),) + tail, self.dtype) for rank in range(size)]
        starts = np.concatenate([np.zeros((size, 1), int), np.cumsum(splits, axis=1)], axis=1)
        me = self.comm.rank
        expected = np.concatenate([inputs[a][starts[a][me] : starts[a][me + 1]] for a in range(size)])
        result = self.call("alltoall", self.mine(inputs), splits[me], like=expected)
        np.testing.assert_array_equal(result, expected)


def run_cases():
    comm = npucoll.init(timeout=60)

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @cases
    def one(kind, dtype, shape, layout, op, root, seed, style):
        if kind in ("allreduce", "grouped", "reduce", "reduce_scatter") and not defined(op, dtype):
            with pytest.raises(npucoll.UnsupportedError):
                comm.allreduce(make(seed, comm.rank, shape, dtype), op)
            return
        getattr(Cases(comm, dtype, layout, op, root, seed, style), kind)(shape)

    one()
    return comm.rank


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_every_collective_equals_numpy(size):
    assert run_ranks(run_cases, size, timeout=300) == list(range(size))
