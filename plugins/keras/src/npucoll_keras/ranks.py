"""Which rank this process is, under the names that training scripts use. Every failure is a ValueError."""

from __future__ import annotations

import npucoll

__all__ = ["WORLD", "check_group", "get_local_rank_id", "get_local_rank_size", "get_rank_id", "get_rank_size"]

#: The name of the group of all ranks, the only one in this mode.
WORLD = "hccl_world_group"


def check_group(group: str) -> None:
    """Raise ConfigError for another group than all ranks."""
    if group != WORLD:
        raise npucoll.ConfigError(
            f"the mode 'keras' works with all ranks, {WORLD!r}, found the group {group!r}; "
            "the mode 'tf1' has groups, and npucoll.communicator().group() makes them for any code"
        )


def get_rank_size(group: str = WORLD) -> int:
    """Return the number of ranks."""
    check_group(group)
    return npucoll.size()


def get_rank_id(group: str = WORLD) -> int:
    """Return this process's number, 0 to ``get_rank_size() - 1``."""
    check_group(group)
    return npucoll.rank()


def get_local_rank_size(group: str = WORLD) -> int:
    """Return the number of ranks on this host."""
    check_group(group)
    return npucoll.local_size()


def get_local_rank_id(group: str = WORLD) -> int:
    """Return this process's number among the ranks of this host."""
    check_group(group)
    return npucoll.local_rank()
