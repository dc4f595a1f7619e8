"""What the tests of the rendezvous run as ranks, in threads and in processes. Imports little: processes start fast."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any, Optional, Sequence

from npucoll.bootstrap.identity import Identity
from npucoll.bootstrap.rendezvous import meet
from npucoll.errors import NpucollError


def memory(_: int) -> int:
    """What stands in for the engine's shared memory."""
    fd = ctypes.CDLL(None).memfd_create(b"test", 1)
    os.ftruncate(fd, 4096)
    return int(fd)


def identity(rank: int, size: int, job: str) -> Identity:
    return Identity.on_one_host(rank, size, job=job, source="test", detail=f"rank {rank}")


def join(
    rank: int,
    size: int,
    job: str,
    *,
    timeout: float = 10.0,
    delay: float = 0.0,
    scope: str = "world",
    members: Optional[Sequence[int]] = None,
    generation: int = 1,
) -> Any:
    """Meet as ``rank``; returns the Meeting or npucoll's error."""
    time.sleep(delay)
    try:
        return meet(
            identity(rank, size, job),
            generation=generation,
            scope=scope,
            members=members,
            timeout=timeout,
            create_area=memory,
        )
    except NpucollError as error:
        return error
