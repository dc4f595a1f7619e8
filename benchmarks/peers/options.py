"""What is measured, as plain values that the process that starts the ranks and the ranks themselves share."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

__all__ = ["COLLECTIVES", "DTYPES", "DTYPE_SIZE", "Job"]

#: The collectives, and the sizes in bytes at which each is measured.
COLLECTIVES: dict[str, tuple[int, ...]] = {
    "allreduce": (4, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20),
    **dict.fromkeys(("broadcast", "allgather", "reduce_scatter", "alltoall"), (4, 64 << 10, 1 << 20, 64 << 20)),
}
#: The first is what the others are compared with.
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64")
DTYPE_SIZE = 16 << 20


@dataclass(frozen=True)
class Job:
    """What the ranks of one run measure.

    Attributes:
        peer: the peer's name; empty: npucoll alone, over the dtypes.
        variant: which of the peer's ways to run, such as a thread level of MPI.
        work: collectives, each with its sizes in bytes.
        seconds: about how long one size of one collective is measured.
        patience: seconds; what takes longer is spared the larger sizes.
        path: the file that rank 0 writes, a JSON object a line.
        scratch: a directory of this run alone.
    """

    peer: str
    variant: str
    work: dict[str, tuple[int, ...]]
    seconds: float
    patience: float
    path: str
    scratch: str

    def dump(self) -> str:
        """Return the job as one argument of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Job:
        """Return what ``dump`` was called on."""
        return cls(**json.loads(text))
