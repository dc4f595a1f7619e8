"""Open MPI's ``mpirun``."""

from __future__ import annotations

from typing import Mapping, Optional

from npucoll.bootstrap.identity import Identity, place_evenly
from npucoll.bootstrap.launching import launcher_process
from npucoll.bootstrap.variables import integer, required, text

__all__ = ["detect"]


def detect(env: Mapping[str, str]) -> Optional[Identity]:
    """Return the identity from ``OMPI_COMM_WORLD_*``, or None where they are not set.

    Raises:
        ConfigError: a companion is missing or contradicts another.
    """
    rank = integer(env, "OMPI_COMM_WORLD_RANK")
    if rank is None:
        return None
    size = required(env, "OMPI_COMM_WORLD_SIZE", 1, beside="OMPI_COMM_WORLD_RANK")
    local_rank = required(env, "OMPI_COMM_WORLD_LOCAL_RANK", beside="OMPI_COMM_WORLD_RANK")
    local_size = required(env, "OMPI_COMM_WORLD_LOCAL_SIZE", 1, beside="OMPI_COMM_WORLD_RANK")
    job = text(env, "PMIX_NAMESPACE") or text(env, "OMPI_MCA_ess_base_jobid")
    return Identity(
        rank,
        size,
        *place_evenly(rank, size, local_rank, local_size),
        job=f"openmpi:{job or launcher_process('OMPI_COMM_WORLD_RANK')}",
        source="Open MPI",
        detail=f"OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_SIZE={size}",
    )
