"""``horovodrun`` without MPI."""

from __future__ import annotations

from typing import Mapping, Optional

from npucoll.bootstrap.identity import Identity, place_evenly
from npucoll.bootstrap.launching import launcher_process
from npucoll.bootstrap.variables import integer, required, text

__all__ = ["detect"]


def detect(env: Mapping[str, str]) -> Optional[Identity]:
    """Return the identity from ``HOROVOD_*``, or None where ``HOROVOD_RANK`` is not set.

    Raises:
        ConfigError: a companion is missing or contradicts another.
    """
    rank = integer(env, "HOROVOD_RANK")
    if rank is None:
        return None
    size = required(env, "HOROVOD_SIZE", 1, beside="HOROVOD_RANK")
    local_rank, local_size = integer(env, "HOROVOD_LOCAL_RANK"), integer(env, "HOROVOD_LOCAL_SIZE", 1)
    if local_rank is None or local_size is None:
        local_rank, local_size = rank, size
    place = place_evenly(rank, size, local_rank, local_size)
    node_rank, node_count = integer(env, "HOROVOD_CROSS_RANK"), integer(env, "HOROVOD_CROSS_SIZE", 1)
    if node_rank is not None and node_count is not None:
        place = (local_rank, local_size, node_rank, node_count)
    address, port = text(env, "HOROVOD_GLOO_RENDEZVOUS_ADDR"), text(env, "HOROVOD_GLOO_RENDEZVOUS_PORT")
    return Identity(
        rank,
        size,
        *place,
        job=f"horovod:{address}:{port}" if port is not None else f"horovod:{launcher_process('HOROVOD_RANK')}",
        source="Horovod",
        detail=f"HOROVOD_RANK={rank} HOROVOD_SIZE={size}",
    )
