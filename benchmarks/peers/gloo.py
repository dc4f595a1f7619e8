"""gloo, through torch.distributed on CPU tensors that share memory with the arrays."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, ClassVar, Dict, List

from peers.adapter import Adapter, Bound, Peer, into
from peers.environments import CommandFailed

if TYPE_CHECKING:
    import numpy as np

    from peers.environments import Venv
    from peers.options import Job

__all__ = ["Gloo", "install_torch"]

_BESIDE_TORCH = ("filelock", "fsspec", "jinja2", "networkx", "setuptools<81", "sympy", "typing-extensions")


class _Gloo(Adapter):
    """torch.distributed with the backend gloo. Its allreduce works in place."""

    def setup(self, job: Job) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = f"file://{os.path.abspath(job.scratch)}/gloo-store"
        dist.init_process_group("gloo", init_method=store, rank=self.rank, world_size=self.size)
        # The names that newer releases of torch prefer.
        self._gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        self._scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

    def version(self) -> str:
        return f"gloo of torch {self._torch.__version__}"

    def settle(self) -> None:
        self._dist.barrier()

    def close(self) -> None:
        self._dist.destroy_process_group()

    def allreduce(self, x: np.ndarray, out: np.ndarray) -> Bound:
        return into(x, functools.partial(self._dist.all_reduce, self._torch.from_numpy(x)), grows=True)

    def broadcast(self, x: np.ndarray) -> Bound:
        return into(x, functools.partial(self._dist.broadcast, self._torch.from_numpy(x), 0))

    def allgather(self, x: np.ndarray, out: np.ndarray) -> Bound:
        given, got = self._torch.from_numpy(x), self._torch.from_numpy(out)
        return into(out, functools.partial(self._gather, got, given))

    def reduce_scatter(self, x: np.ndarray, out: np.ndarray) -> Bound:
        given, got = self._torch.from_numpy(x), self._torch.from_numpy(out)
        return into(out, functools.partial(self._scatter, got, given))

    def alltoall(self, x: np.ndarray, out: np.ndarray) -> Bound:
        given, got = self._torch.from_numpy(x), self._torch.from_numpy(out)
        return into(out, functools.partial(self._dist.all_to_all_single, got, given))


def install_torch(venv: Venv) -> None:
    """Install torch: the build among pip's own links, which may be one without CUDA, else the index's."""
    try:
        venv.pip("install", "--no-index", "--no-deps", "torch")
    except CommandFailed:
        venv.pip("install", "torch")
    venv.pip("install", *_BESIDE_TORCH)


class Gloo(Peer):
    """gloo; ``npucoll run`` starts the ranks, because gloo has no launcher."""

    name = "gloo"
    title = "gloo"
    requirements = ("torch",)
    variants: ClassVar[Dict[str, str]] = {"": ""}

    def install(self, venv: Venv) -> None:
        install_torch(venv)

    def launcher(self, venv: Venv, ranks: int) -> List[str]:
        return [venv.python, "-m", "npucoll", "run", "-n", str(ranks), "--"]

    def environment(self, venv: Venv, crowded: bool) -> Dict[str, str]:
        # Otherwise gloo looks for the interface of the host's name, which not every machine can resolve.
        return {"GLOO_SOCKET_IFNAME": "lo"}

    def adapter(self, variant: str) -> Adapter:
        return _Gloo()
