"""What a library must offer to be measured, and how it is installed and started. One file a family implements both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Tuple

if TYPE_CHECKING:
    import numpy as np

    from peers.environments import Venv
    from peers.options import Job

__all__ = ["Adapter", "Bound", "Peer", "into"]


class Bound(NamedTuple):
    """A collective on fixed buffers, ready to be called, and where its result is.

    Attributes:
        call: makes the collective; takes nothing, and costs as little as Python allows.
        result: takes what ``call`` returned and gives the result as an array.
        grows: a sum that replaces its input, so that each call of a batch sums what the one before has left.
    """

    call: Callable[[], Any]
    result: Callable[[Any], np.ndarray]
    grows: bool = False


def into(out: np.ndarray, call: Callable[[], Any], grows: bool = False) -> Bound:
    """Return a call whose result is in ``out``."""
    return Bound(call, lambda _: out, grows)


class Adapter:
    """A library in this process, one of the ranks. Every method binds a collective to buffers and makes no call.

    Arrays are flat, C-contiguous and of one dtype. A library that cannot write to ``out`` writes its result where it
    can: the Bound says where. None: the library lacks the collective.
    """

    rank: int
    size: int

    def setup(self, job: Job) -> None:
        """Join the other ranks; sets ``rank`` and ``size``."""
        raise NotImplementedError

    def version(self) -> str:
        """Return the library's name and version, for people."""
        raise NotImplementedError

    def settle(self) -> None:
        """Meet the other ranks, so that nothing of earlier calls is left to do on any of them."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave."""

    def allreduce(self, x: np.ndarray, out: np.ndarray) -> Optional[Bound]:
        """Bind a sum over all ranks."""
        return None

    def allreduce_prepared(self, x: np.ndarray, out: np.ndarray) -> Optional[Bound]:
        """Bind a sum that was prepared beforehand, where the library has a way of its own for that."""
        return None

    def broadcast(self, x: np.ndarray) -> Optional[Bound]:
        """Bind a broadcast from rank 0, in place."""
        return None

    def allgather(self, x: np.ndarray, out: np.ndarray) -> Optional[Bound]:
        """Bind an allgather; ``out`` has room for the arrays of all ranks."""
        return None

    def reduce_scatter(self, x: np.ndarray, out: np.ndarray) -> Optional[Bound]:
        """Bind a reduce_scatter of equal blocks; ``out`` is one block."""
        return None

    def alltoall(self, x: np.ndarray, out: np.ndarray) -> Optional[Bound]:
        """Bind an alltoall of equal blocks."""
        return None


class Peer:
    """How to install a library and start ranks with it. Nothing here imports it.

    Attributes:
        name: as on the command line.
        title: for people.
        requirements: what pip installs.
        variants: the ways to run it, each measured in processes of its own, with what people call it.
    """

    name: str
    title: str
    requirements: Tuple[str, ...]
    variants: Dict[str, str]

    def install(self, venv: Venv) -> None:
        """Install the library; CommandFailed says why it cannot be."""
        venv.pip("install", *self.requirements)

    def launcher(self, venv: Venv, ranks: int) -> List[str]:
        """Return the command that starts ranks, up to where the script's Python comes."""
        raise NotImplementedError

    def environment(self, venv: Venv, crowded: bool) -> Dict[str, str]:
        """Return variables that the ranks need; ``crowded``: there are more ranks than processors."""
        return {}

    def adapter(self, variant: str) -> Adapter:
        """Return the library's adapter, in a rank."""
        raise NotImplementedError
