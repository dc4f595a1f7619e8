"""Reductions and dtypes that the collectives know."""

from __future__ import annotations

from typing import Dict, Optional

import numpy as np

from npucoll.errors import ConfigError, UnsupportedError

__all__ = ["DTYPES", "ReduceOp", "dtype_code", "dtype_from_code", "reduce_code"]


class ReduceOp:
    """Names of the reductions, as the ``op`` argument of the collectives takes them."""

    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    PROD = "prod"


_REDUCE_CODES = {ReduceOp.SUM: 1, ReduceOp.MEAN: 2, ReduceOp.MIN: 3, ReduceOp.MAX: 4, ReduceOp.PROD: 5}

# The numbers are npc_dtype of native/include/npucoll.h.
DTYPES: Dict[str, int] = {
    "bool": 1,
    "int8": 2,
    "uint8": 3,
    "int16": 4,
    "uint16": 5,
    "int32": 6,
    "uint32": 7,
    "int64": 8,
    "uint64": 9,
    "float16": 10,
    "bfloat16": 11,
    "float32": 12,
    "float64": 13,
    "complex64": 14,
    "complex128": 15,
}
_NAMES = {code: name for name, code in DTYPES.items()}


def reduce_code(op: str) -> int:
    """Return the engine's number of the reduction ``op``; an unknown name is a ConfigError that lists the known."""
    code = _REDUCE_CODES.get(op)
    if code is None:
        raise ConfigError(f"op={op!r} is no reduction; known are {', '.join(_REDUCE_CODES)}")
    return code


# A dtype's name is made anew at each look; a dict finds the dtype itself twenty times faster.
_CODES: Dict[np.dtype, int] = {}


def dtype_code(dtype: np.dtype) -> int:
    """Return the engine's number of a NumPy dtype; UnsupportedError lists the known ones."""
    code = _CODES.get(dtype) or DTYPES.get(dtype.name)
    if code is None:
        raise UnsupportedError(
            f"arrays of dtype {dtype} cannot be sent; known dtypes are {', '.join(DTYPES)} "
            "(for other Python objects use broadcast_object or allgather_object)"
        )
    _CODES[dtype] = code
    return code


def dtype_from_code(code: int) -> np.dtype:
    """Return the NumPy dtype of an engine's number. bfloat16 needs the package ``ml_dtypes``."""
    name: Optional[str] = _NAMES.get(code)
    if name is None:
        raise UnsupportedError(f"the engine names dtype number {code}, which this version does not know")
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise UnsupportedError("a bfloat16 array arrived; install ml_dtypes to receive it as NumPy") from error
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)
