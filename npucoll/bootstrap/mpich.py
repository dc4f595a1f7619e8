"""MPICH's ``mpiexec`` (hydra) and its relatives, such as Intel MPI: the PMI variables."""

from __future__ import annotations

from typing import Mapping, Optional

from npucoll.bootstrap.identity import Identity, place_evenly
from npucoll.bootstrap.launching import launcher_process
from npucoll.bootstrap.variables import integer, required, text

__all__ = ["detect"]


def detect(env: Mapping[str, str]) -> Optional[Identity]:
    """Return the identity from ``PMI_RANK``, ``PMI_SIZE`` and ``MPI_LOCALRANKID``, or None where they are not set.

    Slurm sets ``PMI_RANK`` in its own steps too; there Slurm's variables say more, so this returns None.

    Raises:
        ConfigError: a companion is missing or contradicts another.
    """
    rank = integer(env, "PMI_RANK")
    if rank is None or (text(env, "SLURM_STEP_ID") is not None and text(env, "MPI_LOCALRANKID") is None):
        return None
    size = required(env, "PMI_SIZE", 1, beside="PMI_RANK")
    local_rank, local_size = integer(env, "MPI_LOCALRANKID"), integer(env, "MPI_LOCALNRANKS", 1)
    if local_rank is None or local_size is None:
        local_rank, local_size = rank, size
    return Identity(
        rank,
        size,
        *place_evenly(rank, size, local_rank, local_size),
        job=f"mpich:{text(env, 'PMI_JOBID') or ''}:{launcher_process('PMI_RANK')}",
        source="MPICH/PMI",
        detail=f"PMI_RANK={rank} PMI_SIZE={size}",
    )
