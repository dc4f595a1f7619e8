"""npucoll itself, through its public names."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from peers.adapter import Adapter, Bound, into

if TYPE_CHECKING:
    import numpy as np

    from peers.options import Job

__all__ = ["Npucoll"]

_TIMEOUT = 300.0


class Npucoll(Adapter):
    """npucoll, started by the peer's launcher; ``comm`` is the communicator of all ranks."""

    comm: Any

    def setup(self, job: Job) -> None:
        import npucoll

        self._npucoll = npucoll
        # A slow peer makes ranks wait long for each other.
        self.comm = npucoll.init(timeout=_TIMEOUT)
        self.rank, self.size = self.comm.rank, self.comm.size

    def version(self) -> str:
        return f"npucoll {self._npucoll.__version__}"

    def settle(self) -> None:
        self.comm.barrier()

    def close(self) -> None:
        self._npucoll.shutdown()

    def allreduce(self, x: np.ndarray, out: np.ndarray) -> Bound:
        return into(out, functools.partial(self.comm.allreduce, x, out=out))

    def allreduce_plan(self, x: np.ndarray, out: np.ndarray) -> Bound:
        """Bind the same sum, as a plan of one call."""
        return into(out, self.comm.plan([self._npucoll.call("allreduce", x, out=out)]).run)

    def allreduce_shared(self, x: np.ndarray) -> Bound:
        """Bind a sum whose result all ranks read in one place; ``x`` is of ``comm.empty``."""
        return Bound(functools.partial(self.comm.allreduce, x, shared=True), lambda returned: returned)

    def broadcast(self, x: np.ndarray) -> Bound:
        return into(x, functools.partial(self.comm.broadcast, x, 0, out=x))

    def allgather(self, x: np.ndarray, out: np.ndarray) -> Bound:
        return into(out, functools.partial(self.comm.allgather, x, out=out))

    def reduce_scatter(self, x: np.ndarray, out: np.ndarray) -> Bound:
        return into(out, functools.partial(self.comm.reduce_scatter, x, out=out))

    def alltoall(self, x: np.ndarray, out: np.ndarray) -> Bound:
        return into(out, functools.partial(self.comm.alltoall, x, out=out))
