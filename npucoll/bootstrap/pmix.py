"""PMIx launchers (``prun``) that are neither Open MPI's ``mpirun`` nor Slurm."""

from __future__ import annotations

from typing import Mapping, Optional

from npucoll.bootstrap.identity import Identity, place_evenly
from npucoll.bootstrap.variables import integer, text
from npucoll.errors import ConfigError

__all__ = ["detect"]


def detect(env: Mapping[str, str]) -> Optional[Identity]:
    """Return the identity from ``PMIX_RANK`` and ``PMIX_NAMESPACE``, or None where they are not set.

    PMIx gives the size through its library only; launchers that also export ``PMIX_SIZE`` or ``PMI_SIZE`` are
    understood. In a Slurm step this returns None: Slurm's variables say it all.

    Raises:
        ConfigError: nothing says how many ranks there are.
    """
    rank = integer(env, "PMIX_RANK")
    if rank is None or text(env, "SLURM_STEP_ID") is not None:
        return None
    size = integer(env, "PMIX_SIZE", 1) or integer(env, "PMI_SIZE", 1)
    if size is None:
        raise ConfigError(
            f"PMIX_RANK={rank} is set, but no variable says how many ranks there are: set NPUCOLL_RANK and "
            "NPUCOLL_SIZE, or start the ranks with npucoll run"
        )
    local_rank, local_size = integer(env, "PMIX_LOCAL_RANK"), integer(env, "PMIX_LOCAL_SIZE", 1)
    if local_rank is None or local_size is None:
        local_rank, local_size = rank, size
    return Identity(
        rank,
        size,
        *place_evenly(rank, size, local_rank, local_size),
        job=f"pmix:{text(env, 'PMIX_NAMESPACE') or ''}",
        source="PMIx",
        detail=f"PMIX_RANK={rank} size {size} PMIX_NAMESPACE={env.get('PMIX_NAMESPACE', '')}",
    )
