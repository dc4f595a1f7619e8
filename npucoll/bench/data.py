"""The data of a measurement, and the oracle that every result is compared with.

1. Every rank knows the data of all ranks: a *block* of PERIOD random elements, drawn from the rank's number. An array
   is that block, repeated. PERIOD is a prime, so that no piece of an array can stand in for another unnoticed.
2. Each call starts at another place in the blocks (its *shift*), so every call has fresh data, and what an earlier call
   has left behind is wrong now. Outputs are overwritten with something that is no result before each call.
3. What a collective must give is then a repeated block too, computed by NumPy once: a look at the result costs little
   more than reading it.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional

import numpy as np

from npucoll.bench.kinds import BFLOAT16

__all__ = ["PERIOD", "Block", "Blocks", "Expected", "numpy_dtype", "poison", "reduction", "shift", "wrong_elements"]

PERIOD = 65521
_STEP = 7919  # From one shift to the next; coprime to PERIOD, so that PERIOD calls have different shifts.
_LARGEST_INTEGER = 1000

# The distance from 1 to the next number of each dtype, and the smallest number in full precision.
_EPSILON = {"float16": 2.0**-10, BFLOAT16: 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
_SMALLEST = {"float16": 2.0**-14, BFLOAT16: 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
_PARTS = {"complex64": "float32", "complex128": "float64"}
_HALF = ("float16", BFLOAT16)


def numpy_dtype(name: str) -> np.dtype:
    """Return the NumPy dtype of a name; bfloat16 is ml_dtypes'."""
    if name == BFLOAT16:
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def shift(number: int) -> int:
    """Return where in the blocks the data of call ``number`` starts."""
    return number * _STEP % PERIOD


class Block:
    """PERIOD elements that repeat without end."""

    def __init__(self, elements: np.ndarray) -> None:
        # Twice, so that PERIOD elements from any start are one slice.
        self._twice = np.concatenate([elements, elements])

    def piece(self, start: int, count: int) -> np.ndarray:
        """Return ``count`` elements, at most PERIOD, from ``start`` on."""
        start %= PERIOD
        return self._twice[start : start + count]

    def fill(self, target: np.ndarray, start: int) -> None:
        """Write the block into a flat array, from ``start`` on."""
        for i in range(0, target.size, PERIOD):
            part = target[i : i + PERIOD]
            part[...] = self.piece(start, part.size)


class Expected(NamedTuple):
    """What a piece of a result must be.

    Attributes:
        exact: the elements in the result's dtype.
        wide: the same in double precision, where rounding may differ; else None.
        tolerance: by how much a result may differ from ``wide``, element by element.
    """

    exact: Block
    wide: Optional[Block] = None
    tolerance: Optional[Block] = None


def wrong_elements(found: np.ndarray, expected: Expected, start: int) -> int:
    """Return how many elements of a flat array are not those of ``expected`` from ``start`` on."""
    wrong = 0
    for i in range(0, found.size, PERIOD):
        part = found[i : i + PERIOD]
        same = part == expected.exact.piece(start, part.size)
        if same.all():
            continue
        if expected.wide is not None and expected.tolerance is not None:
            wide = expected.wide.piece(start, part.size)
            with np.errstate(invalid="ignore"):
                same = np.abs(part.astype(wide.dtype) - wide) <= expected.tolerance.piece(start, part.size)
        wrong += int(part.size - np.count_nonzero(same))
    return wrong


def poison(array: np.ndarray, number: int) -> None:
    """Overwrite an output with what is hardly a result: NaN, or a number that the data keep away from."""
    if array.dtype.kind == "b":
        array.fill(bool(number & 1))
    else:
        array.view(np.uint8).fill(0x80 if array.dtype.kind in "iu" else 0xFF)


class Blocks:
    """The blocks of all ranks, for one dtype and one reduction (None where data are only moved)."""

    def __init__(self, dtype: np.dtype, op: Optional[str], ranks: int) -> None:
        self.dtype = dtype
        self.op = op
        self.ranks = ranks
        self._blocks: Dict[int, Block] = {}

    def of(self, rank: int) -> Block:
        """Return the block of one rank."""
        if rank not in self._blocks:
            self._blocks[rank] = Block(self.elements(rank))
        return self._blocks[rank]

    def elements(self, rank: int) -> np.ndarray:
        """Draw the elements of one rank: of any value where data are moved, else such that no result overflows."""
        random = np.random.RandomState(rank + 1)
        kind, dtype = self.dtype.kind, self.dtype
        if kind == "b":
            return random.randint(0, 2, PERIOD).astype(bool)
        if kind in "iu":
            return self._integers(random)
        if self.op == "prod":
            # All products stay between 1/256 and 256.
            values = 2.0 ** random.uniform(-8 / self.ranks, 8 / self.ranks, PERIOD) * random.choice([-1, 1], PERIOD)
            return (values * np.exp(2j * np.pi * random.rand(PERIOD)) if kind == "c" else values).astype(dtype)
        values = random.uniform(-1, 1, PERIOD)
        return (values + 1j * random.uniform(-1, 1, PERIOD) if kind == "c" else values).astype(dtype)

    def _integers(self, random: np.random.RandomState) -> np.ndarray:
        dtype, signed = self.dtype, self.dtype.kind == "i"
        if self.op == "prod":
            # Products wrap around, here as in the engine.
            return random.choice([-3, -1, 1, 2] if signed else [1, 2, 3], PERIOD).astype(dtype)
        if self.op in ("sum", "mean"):
            bound = max(1, min(_LARGEST_INTEGER, int(np.iinfo(dtype).max) // self.ranks))
            return random.randint(-bound if signed else 0, bound + 1, PERIOD).astype(dtype)
        return np.frombuffer(random.bytes(PERIOD * dtype.itemsize), dtype)


def reduction(blocks: Blocks, accumulates_in_float32: bool) -> Expected:
    """Return the reduction of all ranks' blocks, as NumPy computes it.

    Integers, bools, minima and maxima are exact. Else a result may differ from that in double precision by one rounding
    to its dtype, and by the roundings of an accumulation in any order: for r ranks, r ε Σ|x| of the accumulator's ε,
    which is that of the dtype, or that of float32 for float16 and bfloat16 where the engine says so.
    """
    dtype, op, ranks = blocks.dtype, blocks.op, blocks.ranks
    if dtype.kind in "biu" or op in ("min", "max"):
        return Expected(Block(_exactly(blocks)))
    wide_dtype = np.dtype(np.complex128 if dtype.kind == "c" else np.float64)
    total = blocks.elements(0).astype(wide_dtype)
    magnitude = np.abs(total)
    for rank in range(1, ranks):
        more = blocks.elements(rank).astype(wide_dtype)
        total = total * more if op == "prod" else total + more
        # A complex product is made of four real ones.
        magnitude = 4 * np.abs(total) if op == "prod" else magnitude + np.abs(more)
    if op == "mean":
        total, magnitude = total / ranks, magnitude / ranks
    part = _PARTS.get(dtype.name, dtype.name)
    accumulator = "float32" if part in _HALF and accumulates_in_float32 else part
    tolerance = _EPSILON[part] * (np.abs(total) + _SMALLEST[part]) + ranks * _EPSILON[accumulator] * magnitude
    return Expected(Block(total.astype(dtype)), Block(total), Block(tolerance))


def _exactly(blocks: Blocks) -> np.ndarray:
    dtype, op = blocks.dtype, blocks.op
    # Half precision has no minimum of its own everywhere; in float64 it is the same number.
    compared = np.dtype(np.float64) if dtype.kind not in "biu" else dtype
    work = np.dtype(np.int64) if op == "mean" else compared
    combine = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply}[op or "sum"]
    total = blocks.elements(0).astype(work)
    for rank in range(1, blocks.ranks):
        total = combine(total, blocks.elements(rank).astype(work))
    if op == "mean":
        # Toward zero.
        total = np.sign(total) * (np.abs(total) // blocks.ranks)
    return total.astype(dtype)
