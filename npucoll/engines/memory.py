"""NumPy arrays on memory that the engine owns: communication memory, and results that it provides."""

from __future__ import annotations

import functools
from typing import Any, Sequence

import numpy as np

from npucoll import _ffi
from npucoll._ffi import ffi, lib

__all__ = ["array_on", "new_array"]


def new_array(comm: Any, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Return a new array in the communication memory of this ``npc_comm *``; its content is arbitrary."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    data, error = ffi.new("void **"), _ffi.new_error()
    _ffi.check(lib.npc_memory_new(comm, nbytes, data, error), error)
    return array_on(comm, data[0], shape, dtype, writeable=True)


def array_on(comm: Any, data: Any, shape: Sequence[int], dtype: np.dtype, *, writeable: bool) -> np.ndarray:
    """Return an array on memory of the engine, which gets it back when the array and all its views are dropped."""
    owner = ffi.gc(data, functools.partial(lib.npc_memory_release, comm))
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    view = memoryview(ffi.buffer(owner, nbytes))
    if not writeable and hasattr(view, "toreadonly"):  # Python 3.8; else the flag alone has to do
        view = view.toreadonly()
    array: np.ndarray = np.ndarray(tuple(shape), dtype, buffer=view)
    if not writeable:
        array.flags.writeable = False
    return array
