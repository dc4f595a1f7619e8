"""From the arguments of a collective to its Call: everything that one rank can check alone is checked here."""

from __future__ import annotations

import hashlib
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

from npucoll import buffers
from npucoll.engines.base import Call
from npucoll.errors import ConfigError
from npucoll.types import reduce_code

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "gather",
    "grouped_allreduce",
    "receive",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
    "short",
    "ungroup",
]

_MAX_DIMS = 8


def barrier(name: Optional[str], timeout: Optional[float]) -> Call:
    """Describe a barrier."""
    return Call("barrier", (), [], name=name, timeout=timeout)


def allreduce(
    x: Any,
    op: str,
    out: Any,
    prescale: float,
    postscale: float,
    name: Optional[str],
    timeout: Optional[float],
    shared: bool = False,
) -> Call:
    """Describe an allreduce of one array; the result has the shape and dtype of ``x``."""
    array = _input(x, out)
    _check_reduction(op, prescale, postscale)
    call = _fixed("allreduce", array, array.shape, out, name, timeout, receives=not shared)
    _share(call, shared, out)
    call.op, call.prescale, call.postscale = op, prescale, postscale
    return call


def grouped_allreduce(
    xs: Sequence[Any],
    op: str,
    out: Optional[Sequence[Any]],
    prescale: float,
    postscale: float,
    name: Optional[str],
    timeout: Optional[float],
    shared: bool = False,
) -> Dict[int, Call]:
    """Describe the fused allreduces of a list, one for each dtype: index of the first array to Call.

    The arrays of one dtype keep their order; :func:`by_dtype` says which went where.
    """
    arrays = [buffers.as_input(x) for x in xs]
    _check_reduction(op, prescale, postscale)
    if out is not None and len(out) != len(arrays):
        raise ConfigError(f"out must hold {len(arrays)} arrays, one for each of xs, found {len(out)}")
    calls = {}
    for dtype, indices in by_dtype(arrays).items():
        call = Call(
            "allreduce",
            [arrays[i] for i in indices],
            [],
            op=op,
            prescale=prescale,
            postscale=postscale,
            shape=(sum(arrays[i].size for i in indices),),
            detail=_shapes_hash([arrays[i].shape for i in indices]),
            name=None if name is None else f"{name}/{dtype}",
            timeout=timeout,
        )
        _share(call, shared, out)
        for position, i in enumerate(() if shared else indices):
            target = None if out is None else out[i]
            buffers.check_overlap(xs[i], target)
            _add_output(call, position, target, arrays[i].shape, arrays[i].dtype, f"out[{i}]")
        call.indices = indices
        calls[indices[0]] = call
    return calls


def by_dtype(arrays: Sequence[np.ndarray]) -> Dict[str, List[int]]:
    """Return the indices of the arrays of each dtype, in order of first appearance."""
    indices: Dict[str, List[int]] = {}
    for i, array in enumerate(arrays):
        indices.setdefault(array.dtype.name, []).append(i)
    return indices


def ungroup(results: Mapping[int, Sequence[np.ndarray]], grouped: Mapping[int, Call]) -> List[np.ndarray]:
    """Put the results of a grouped allreduce back in the order of its arrays."""
    ordered: Dict[int, np.ndarray] = {}
    for first, call in grouped.items():
        ordered.update(zip(call.indices, results[first]))
    return [ordered[i] for i in range(len(ordered))]


def broadcast(x: Any, root: int, size: int, out: Any, name: Optional[str], timeout: Optional[float]) -> Call:
    """Describe a broadcast; ``x`` has the same shape and dtype on all ranks, and the root's values win."""
    array = _input(x, out)
    call = _fixed("broadcast", array, array.shape, out, name, timeout)
    call.root = _rank("root", root, size)
    return call


def allgather(x: Any, out: Any, name: Optional[str], timeout: Optional[float]) -> Call:
    """Describe an allgather: concatenation along dimension 0, which may differ between ranks."""
    array = _at_least_1d(_input(x, out))
    return _sized_later("allgather", array, out, name, timeout)


def gather(x: Any, root: int, rank: int, size: int, out: Any, name: Optional[str], timeout: Optional[float]) -> Call:
    """Describe a gather: an allgather whose result is on the root only."""
    array = _at_least_1d(_input(x, out))
    root = _rank("root", root, size)
    call = _sized_later("gather", array, out, name, timeout) if rank == root else Call("gather", [array], [])
    call.shape, call.root, call.name, call.timeout = array.shape[:_MAX_DIMS], root, name, timeout
    return call


def reduce_scatter(
    x: Any,
    op: str,
    size: int,
    out: Any,
    prescale: float,
    postscale: float,
    name: Optional[str],
    timeout: Optional[float],
) -> Call:
    """Describe a reduce_scatter: this rank's block, along dimension 0, of the reduction."""
    array = _divisible("reduce_scatter", _input(x, out), size)
    _check_reduction(op, prescale, postscale)
    call = _fixed("reduce_scatter", array, (array.shape[0] // size,) + array.shape[1:], out, name, timeout)
    call.op, call.prescale, call.postscale = op, prescale, postscale
    return call


def alltoall(x: Any, splits: Any, size: int, out: Any, name: Optional[str], timeout: Optional[float]) -> Call:
    """Describe an alltoall: rows of ``x`` go to the ranks as ``splits`` says."""
    array = _input(x, out)
    if array.ndim == 0:
        raise ConfigError("alltoall needs an array with at least one dimension, found a scalar")
    if splits is None:
        array = _divisible("alltoall without splits", array, size)
    call = _sized_later("alltoall", array, out, name, timeout)
    if splits is not None:
        call.splits = _checked_splits(splits, array.shape[0], size)
    return call


def reduce(
    x: Any,
    root: int,
    op: str,
    rank: int,
    size: int,
    out: Any,
    prescale: float,
    postscale: float,
    name: Optional[str],
    timeout: Optional[float],
) -> Call:
    """Describe a reduce: the reduction on the root only."""
    array = _input(x, out)
    _check_reduction(op, prescale, postscale)
    root = _rank("root", root, size)
    call = _fixed("reduce", array, array.shape, out, name, timeout, receives=rank == root)
    call.root, call.op, call.prescale, call.postscale = root, op, prescale, postscale
    return call


def scatter(x: Any, root: int, rank: int, size: int, out: Any, name: Optional[str], timeout: Optional[float]) -> Call:
    """Describe a scatter of the root's blocks along dimension 0; the other ranks need pass no ``x``."""
    root = _rank("root", root, size)
    if rank == root:
        array = _divisible("scatter", _input(x, out), size)
        call = _fixed("scatter", array, (array.shape[0] // size,) + array.shape[1:], out, name, timeout)
        call.root = root
        return call
    return _received("scatter", root, out, name, timeout)


def send(x: Any, to: int, tag: int, size: int, name: Optional[str], timeout: Optional[float]) -> Call:
    """Describe a send to rank ``to``."""
    array = buffers.as_input(x)
    call = Call("send", [array], [], root=_rank("to", to, size), tag=tag, name=name, timeout=timeout)
    call.shape = array.shape[:_MAX_DIMS]
    return call


def receive(source: int, tag: int, size: int, out: Any, name: Optional[str], timeout: Optional[float]) -> Call:
    """Describe a receive from rank ``source``; the sender's shape and dtype come with the message."""
    call = _received("recv", _rank("source", source, size), out, name, timeout)
    call.tag = tag
    return call


def short(kind: str, argument: Any, x: np.ndarray, out: np.ndarray, size: int) -> Optional[Call]:
    """Describe an unnamed, unscaled call from ``x`` to ``out``; ``argument`` is the reduction or the root."""
    if kind == "allreduce":
        return allreduce(x, argument, out, 1.0, 1.0, None, None)
    if kind == "reduce_scatter":
        return reduce_scatter(x, argument, size, out, 1.0, 1.0, None, None)
    if kind == "broadcast":
        return broadcast(x, argument, size, out, None, None)
    if kind == "allgather":
        return allgather(x, out, None, None)
    if kind == "alltoall":
        return alltoall(x, None, size, out, None, None)
    return None


def _share(call: Call, shared: bool, out: Any) -> None:
    if shared and out is not None:
        raise ConfigError("a shared result has its own memory: pass either shared=True or out=")
    call.shared = shared


def _input(x: Any, out: Any) -> np.ndarray:
    buffers.check_overlap(x, out)
    return buffers.as_input(x)


def _fixed(
    kind: str,
    array: np.ndarray,
    shape: Sequence[int],
    out: Any,
    name: Optional[str],
    timeout: Optional[float],
    receives: bool = True,
) -> Call:
    """Describe a call with one input, and one output of known shape on the ranks that receive."""
    call = Call(kind, [array], [], name=name, timeout=timeout, shape=array.shape)
    if array.ndim > _MAX_DIMS:
        call.shape, call.detail = (array.size,), _shapes_hash([array.shape])
    if receives:
        _add_output(call, 0, out, shape, array.dtype, "out")
    return call


def _sized_later(kind: str, array: np.ndarray, out: Any, name: Optional[str], timeout: Optional[float]) -> Call:
    """Describe a call whose output's dimension 0 the ranks learn from each other."""
    _few_dims(kind, array)
    call = Call(kind, [array], None, shape=array.shape, name=name, timeout=timeout)
    if out is not None:
        call.outputs = []
        _place(call, 0, *buffers.contiguous_output(buffers.check_output(out, array.dtype)))
    return call


def _received(kind: str, root: int, out: Any, name: Optional[str], timeout: Optional[float]) -> Call:
    """Describe a call whose output another rank describes; ``out`` is filled when that description is known to fit."""
    call = Call(kind, (), None, root=root, name=name, timeout=timeout)
    if out is not None:
        call.targets.append((0, buffers.check_output(out, np.asarray(out).dtype)))
    return call


def _add_output(call: Call, position: int, out: Any, shape: Sequence[int], dtype: np.dtype, what: str) -> None:
    _place(call, position, *buffers.output_for(out, shape, dtype, what))


def _place(call: Call, position: int, buffer: np.ndarray, target: Optional[np.ndarray]) -> None:
    assert call.outputs is not None
    call.outputs.append(buffer)
    if target is not None:
        call.targets.append((position, target))


def _check_reduction(op: str, prescale: float, postscale: float) -> None:
    reduce_code(op)
    # A zero stands for "not scaled" where calls are described to engines.
    if prescale == 0 or postscale == 0:
        raise ConfigError(f"a scale must not be 0, found prescale={prescale!r}, postscale={postscale!r}")


def _rank(what: str, rank: int, size: int) -> int:
    if not isinstance(rank, (int, np.integer)) or isinstance(rank, bool) or not 0 <= rank < size:
        raise ConfigError(f"{what}={rank!r} is no rank of this communicator; its ranks are 0 to {size - 1}")
    return int(rank)


def _at_least_1d(array: np.ndarray) -> np.ndarray:
    return array.reshape(1) if array.ndim == 0 else array


def _few_dims(kind: str, array: np.ndarray) -> None:
    if array.ndim > _MAX_DIMS:
        raise ConfigError(
            f"{kind} takes arrays of at most {_MAX_DIMS} dimensions, found {array.ndim}; reshape it first"
        )


def _divisible(kind: str, array: np.ndarray, size: int) -> np.ndarray:
    _few_dims(kind, array)
    if array.ndim == 0 or array.shape[0] % size:
        raise ConfigError(f"{kind} needs a dimension 0 that {size} ranks can share evenly, found shape {array.shape}")
    return array


def _checked_splits(splits: Any, rows: int, size: int) -> np.ndarray:
    array = np.ascontiguousarray(splits)
    if array.shape != (size,) or array.dtype.kind not in "iu" or (array < 0).any() or int(array.sum()) != rows:
        raise ConfigError(
            f"splits must be {size} whole numbers >= 0 that add up to dimension 0 of x ({rows}), found {splits!r}"
        )
    return array.astype(np.int64)


def _shapes_hash(shapes: Sequence[Sequence[int]]) -> int:
    text = ";".join(",".join(map(str, shape)) for shape in shapes)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
