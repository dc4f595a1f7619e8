"""Which rank this process is, under the names that training scripts use."""

from __future__ import annotations

import npucoll

__all__ = ["get_local_rank_id", "get_local_rank_size", "get_rank_id", "get_rank_size"]


def get_rank_size() -> int:
    """Return the number of ranks."""
    return npucoll.size()


def get_rank_id() -> int:
    """Return this process's number, 0 to ``get_rank_size() - 1``."""
    return npucoll.rank()


def get_local_rank_size() -> int:
    """Return the number of ranks on this host."""
    return npucoll.local_size()


def get_local_rank_id() -> int:
    """Return this process's number among the ranks of this host."""
    return npucoll.local_rank()
