"""Arrays in and out: whatever the caller has, as C-contiguous NumPy arrays that the engine can point into."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

import numpy as np

from npucoll.errors import ConfigError
from npucoll.types import dtype_code

__all__ = ["address", "as_in_place", "as_input", "check_overlap", "output_for"]


def as_input(x: Any) -> np.ndarray:
    """Return ``x`` as a C-contiguous array in native byte order, sharing memory where that is possible.

    ``x`` is a NumPy array or scalar, a Python number or nested list, or anything with the buffer protocol,
    ``__array__`` or DLPack on the host. UnsupportedError names a dtype that cannot be sent.
    """
    array = x if isinstance(x, np.ndarray) else _to_array(x)
    dtype_code(array.dtype)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    flags = array.flags
    if not flags.c_contiguous or not flags.aligned:
        # ascontiguousarray would turn a scalar into one dimension and keep a misaligned array as it is.
        array = array.copy(order="C")
    return array


def _to_array(x: Any) -> np.ndarray:
    if hasattr(x, "__dlpack__") and not hasattr(x, "__array__") and hasattr(np, "from_dlpack"):
        return np.from_dlpack(x)
    return np.asarray(x)


def as_in_place(x: Any) -> np.ndarray:
    """Return a writable array on the memory of ``x`` itself; ConfigError where that is impossible."""
    array = x if isinstance(x, np.ndarray) else _to_array(x)
    if not isinstance(x, np.ndarray) and isinstance(x, (list, tuple, int, float, complex, np.generic)):
        raise ConfigError(f"an in-place collective needs an array to write to, found {type(x).__name__}")
    if not array.flags.writeable:
        raise ConfigError("an in-place collective needs a writable array, found a read-only one; pass out= instead")
    dtype_code(array.dtype)
    return array


def output_for(
    out: Any, shape: Sequence[int], dtype: np.dtype, what: str = "out"
) -> Tuple[np.ndarray, Optional[np.ndarray]]:
    """Return ``(buffer, target)``: where the engine writes, and the caller's array to copy it to afterwards, if any.

    ``out`` is None (a new array) or a writable array of exactly this shape and dtype, in any layout.
    """
    shape = tuple(shape)
    if out is None:
        return np.empty(shape, dtype), None
    target = check_output(out, dtype, what)
    if target.shape != shape:
        raise ConfigError(f"{what} must have shape {shape}, found {target.shape}")
    return contiguous_output(target)


def check_output(out: Any, dtype: np.dtype, what: str = "out") -> np.ndarray:
    """Return ``out`` if it is a writable array of this dtype, whatever its shape."""
    if not isinstance(out, np.ndarray):
        raise ConfigError(f"{what} must be a NumPy array, found {type(out).__name__}")
    if out.dtype != dtype and out.dtype.name != dtype.name:
        raise ConfigError(f"{what} must have dtype {dtype}, found {out.dtype}")
    if not out.flags.writeable:
        raise ConfigError(f"{what} must be writable, found a read-only array")
    return out


def contiguous_output(target: np.ndarray) -> Tuple[np.ndarray, Optional[np.ndarray]]:
    """Return ``(target, None)`` where the engine can write straight into it, else ``(temporary, target)``."""
    flags = target.flags
    if flags.c_contiguous and flags.aligned and target.dtype.isnative:
        return target, None
    return np.empty(target.shape, target.dtype.newbyteorder("=")), target


def check_overlap(x: Any, out: Any) -> None:
    """Refuse an output that shares only a part of its memory with the input. The same array is in place."""
    if out is None or out is x or not isinstance(x, np.ndarray) or not isinstance(out, np.ndarray):
        return
    if not np.may_share_memory(x, out) or _same_view(x, out):
        return
    effort: Any = 10000  # NumPy's types know the named efforts only.
    try:
        overlaps = np.shares_memory(x, out, max_work=effort)
    except Exception as error:  # NumPy's TooHardError moved between versions; too hard to tell is an overlap here.
        if "TooHard" not in type(error).__name__:
            raise
        overlaps = True
    if overlaps:
        raise ConfigError("out overlaps a part of x; pass the same array (in place) or one that shares no memory")


def _same_view(a: np.ndarray, b: np.ndarray) -> bool:
    same_start = a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
    return same_start and a.shape == b.shape and a.strides == b.strides and a.dtype == b.dtype


def address(array: np.ndarray) -> int:
    """Return the address of the first element. (The buffer protocol would refuse bfloat16.)"""
    return int(array.__array_interface__["data"][0])
