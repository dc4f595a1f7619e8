"""``torchrun`` and others that set ``RANK``, ``WORLD_SIZE`` and ``LOCAL_RANK``."""

from __future__ import annotations

from typing import Mapping, Optional

from npucoll.bootstrap.identity import Identity
from npucoll.bootstrap.variables import integer, text
from npucoll.errors import ConfigError

__all__ = ["detect"]


def detect(env: Mapping[str, str]) -> Optional[Identity]:
    """Return the identity from ``RANK`` and ``WORLD_SIZE``, or None where either is unset.

    Without ``LOCAL_WORLD_SIZE`` all ranks are on this host, unless ``LOCAL_RANK`` differs from ``RANK``.

    Raises:
        ConfigError: a companion is missing or contradicts another.
    """
    if text(env, "RANK") is None or text(env, "WORLD_SIZE") is None:
        return None
    rank, size = integer(env, "RANK") or 0, integer(env, "WORLD_SIZE", 1) or 1
    local_rank, local_size = integer(env, "LOCAL_RANK"), integer(env, "LOCAL_WORLD_SIZE", 1)
    if local_size is None:
        if local_rank is not None and local_rank != rank:
            raise ConfigError(
                f"RANK={rank} and LOCAL_RANK={local_rank} mean several hosts, but LOCAL_WORLD_SIZE is not set"
            )
        local_rank, local_size = rank, size
    elif local_rank is None:
        raise ConfigError(f"LOCAL_WORLD_SIZE={local_size} is set, but LOCAL_RANK is not: set both or neither")
    node_count = integer(env, "GROUP_WORLD_SIZE", 1) or -(-size // local_size)
    node_rank = integer(env, "GROUP_RANK") if node_count > 1 else 0
    if node_rank is None:
        node_rank = rank // local_size
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "JOB_ID")
    return Identity(
        rank,
        size,
        local_rank,
        local_size,
        node_rank,
        node_count,
        job="torchrun:" + ":".join(text(env, name) or "" for name in names),
        source="torchrun",
        detail=f"RANK={rank} WORLD_SIZE={size}",
    )
