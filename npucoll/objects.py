"""Collectives on Python objects, made of collectives on bytes. Only bytes from our own ranks are ever unpickled."""

from __future__ import annotations

import hashlib
import pickle
from typing import TYPE_CHECKING, Any, List, Mapping, Optional, Sequence, Union

import numpy as np

from npucoll import buffers
from npucoll.errors import MismatchError

if TYPE_CHECKING:
    from npucoll.communicators import Communicator

__all__ = ["allgather", "assert_in_sync", "broadcast"]

# Protocol 4 is the newest that Python 3.7 reads, and takes objects above 4 GiB.
_PROTOCOL = 4


def broadcast(comm: Communicator, obj: Any, root: int, name: Optional[str], timeout: Optional[float]) -> Any:
    """Return a copy of the root's object (on the root, the object itself)."""
    data = _pickled(obj) if comm.rank == root else np.empty(0, np.uint8)
    length = comm.broadcast(np.int64(data.size), root, name=_part(name, "length"), timeout=timeout)
    if comm.rank != root:
        data = np.empty(int(length), np.uint8)
    data = comm.broadcast(
        data, root, out=None if comm.rank == root else data, name=_part(name, "bytes"), timeout=timeout
    )
    return obj if comm.rank == root else pickle.loads(data.data)


def allgather(comm: Communicator, obj: Any, name: Optional[str], timeout: Optional[float]) -> List[Any]:
    """Return the list of copies of every rank's object."""
    data = _pickled(obj)
    lengths = comm.allgather(np.int64(data.size), name=_part(name, "length"), timeout=timeout)
    everything = comm.allgather(data, name=_part(name, "bytes"), timeout=timeout)
    ends = np.cumsum(lengths)
    return [pickle.loads(everything[end - length : end].data) for length, end in zip(lengths, ends)]


def assert_in_sync(comm: Communicator, arrays: Union[Mapping[str, Any], Sequence[Any]]) -> None:
    """Compare a hash of each array's shape, dtype and bits between all ranks."""
    if not isinstance(arrays, Mapping):
        arrays = {f"array {i}": array for i, array in enumerate(arrays)}
    mine = {str(key): _digest(array) for key, array in arrays.items()}
    everyone = allgather(comm, mine, None, None)
    first = everyone[0]
    for rank, theirs in enumerate(everyone):
        if list(theirs) != list(first):
            raise MismatchError(f"ranks 0 and {rank} compare different arrays: {list(first)} and {list(theirs)}")
        different = [key for key in first if theirs[key] != first[key]]
        if different:
            named = ", ".join(different[:5]) + (" …" if len(different) > 5 else "")
            raise MismatchError(
                f"ranks 0 and {rank} hold different values in {len(different)} of {len(first)} arrays: {named}. Were "
                "the variables broadcast before the first step, and is every optimizer wrapped?"
            )


def _pickled(obj: Any) -> np.ndarray:
    return np.frombuffer(pickle.dumps(obj, protocol=_PROTOCOL), np.uint8)


def _part(name: Optional[str], part: str) -> Optional[str]:
    return None if name is None else f"{name}/{part}"


def _digest(array: Any) -> str:
    contiguous = buffers.as_input(array)
    digest = hashlib.blake2b(f"{contiguous.dtype} {contiguous.shape}".encode(), digest_size=16)
    digest.update(contiguous.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
