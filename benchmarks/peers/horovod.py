"""Horovod, through its ops for torch, with gloo underneath: what its pip package builds where there is no MPI."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, ClassVar, Dict, List

from peers.adapter import Adapter, Bound, Peer, into
from peers.gloo import install_torch

if TYPE_CHECKING:
    import numpy as np

    from peers.environments import Venv
    from peers.options import Job

__all__ = ["Horovod"]

# Its last release is older than the C++17 that torch needs, and than compilers that ask for <cstdint>.
_COMPILER = '#!/bin/sh\nexec c++ "$@" -std=gnu++17 -include cstdint\n'


class _Horovod(Adapter):
    """horovod.torch. Sums and broadcasts work in place; the others return a new tensor."""

    def setup(self, job: Job) -> None:
        import horovod
        import horovod.torch as hvd
        import torch

        self._torch, self._hvd, self._horovod = torch, hvd, horovod
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()
        # With a name of its own that stays the same, each call finds the answer that was agreed on last time.
        self._numbers = itertools.count()

    def version(self) -> str:
        return f"Horovod {self._horovod.__version__}, torch {self._torch.__version__}"

    def settle(self) -> None:
        self._hvd.barrier()

    def close(self) -> None:
        self._hvd.shutdown()

    def _name(self) -> str:
        return f"peers.{next(self._numbers)}"

    def allreduce(self, x: np.ndarray, out: np.ndarray) -> Bound:
        tensor = self._torch.from_numpy(x)
        call = functools.partial(self._hvd.allreduce_, tensor, op=self._hvd.Sum, name=self._name())
        return into(x, call, grows=True)

    def broadcast(self, x: np.ndarray) -> Bound:
        return into(x, functools.partial(self._hvd.broadcast_, self._torch.from_numpy(x), 0, name=self._name()))

    def allgather(self, x: np.ndarray, out: np.ndarray) -> Bound:
        call = functools.partial(self._hvd.allgather, self._torch.from_numpy(x), name=self._name())
        return Bound(call, lambda tensor: tensor.numpy())

    def reduce_scatter(self, x: np.ndarray, out: np.ndarray) -> Bound:
        given = self._torch.from_numpy(x)
        call = functools.partial(self._hvd.reducescatter, given, op=self._hvd.Sum, name=self._name())
        return Bound(call, lambda tensor: tensor.numpy())

    def alltoall(self, x: np.ndarray, out: np.ndarray) -> Bound:
        call = functools.partial(self._hvd.alltoall, self._torch.from_numpy(x), name=self._name())
        return Bound(call, lambda tensor: tensor.numpy())


class Horovod(Peer):
    """Horovod, built against torch."""

    name = "horovod"
    title = "Horovod"
    requirements = ("horovod", "torch")
    variants: ClassVar[Dict[str, str]] = {"": ""}

    def install(self, venv: Venv) -> None:
        install_torch(venv)
        venv.pip("install", "cloudpickle", "packaging", "psutil", "pyyaml", "wheel")
        compiler = venv.path / "c++17"
        compiler.write_text(_COMPILER)
        compiler.chmod(0o755)
        venv.pip(
            "install",
            "--no-build-isolation",
            "--no-deps",
            "horovod",
            CXX=str(compiler),
            HOROVOD_WITH_PYTORCH="1",
            HOROVOD_WITHOUT_TENSORFLOW="1",
            HOROVOD_WITHOUT_MXNET="1",
            HOROVOD_WITHOUT_MPI="1",
            HOROVOD_WITH_GLOO="1",
        )

    def launcher(self, venv: Venv, ranks: int) -> List[str]:
        return [str(venv.bin / "horovodrun"), "--gloo", "-np", str(ranks), "-H", f"localhost:{ranks}"]

    def environment(self, venv: Venv, crowded: bool) -> Dict[str, str]:
        return {"HOROVOD_GLOO_IFACE": "lo"}

    def adapter(self, variant: str) -> Adapter:
        return _Horovod()
