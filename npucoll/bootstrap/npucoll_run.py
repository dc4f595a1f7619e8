"""The variables that ``npucoll run`` gives to its ranks."""

from __future__ import annotations

from typing import Mapping, Optional

from npucoll.bootstrap.identity import Identity
from npucoll.bootstrap.variables import integer, required, text
from npucoll.errors import ConfigError

__all__ = ["detect"]


def detect(env: Mapping[str, str]) -> Optional[Identity]:
    """Return the identity from ``NPUCOLL_RANK`` and its companions, or None where it is not set.

    Raises:
        ConfigError: a companion is missing or contradicts another.
    """
    rank, size = integer(env, "NPUCOLL_RANK"), integer(env, "NPUCOLL_SIZE", 1)
    if rank is None and size is None:
        return None
    if rank is None:
        raise ConfigError("NPUCOLL_SIZE is set, but NPUCOLL_RANK is not: set both or neither")
    size = required(env, "NPUCOLL_SIZE", 1, beside="NPUCOLL_RANK")
    local_rank = integer(env, "NPUCOLL_LOCAL_RANK")
    local_size = integer(env, "NPUCOLL_LOCAL_SIZE", 1)
    node_rank = integer(env, "NPUCOLL_NODE_RANK")
    node_count = integer(env, "NPUCOLL_NODE_COUNT", 1)
    return Identity(
        rank,
        size,
        rank if local_rank is None else local_rank,
        size if local_size is None else local_size,
        node_rank or 0,
        node_count or 1,
        text(env, "NPUCOLL_JOB") or "",
        "npucoll run",
        f"NPUCOLL_RANK={rank} NPUCOLL_SIZE={size}",
    )
