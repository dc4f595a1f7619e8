"""Decides which launcher started this process: the first format that fits, in a fixed order."""

from __future__ import annotations

import os
import warnings
from typing import Callable, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from npucoll.bootstrap import (
    cm,
    horovod,
    mpich,
    npucoll_run,
    openmpi,
    pmix,
    rank_env,
    rank_table,
    slurm,
    tf_config,
    torchrun,
)
from npucoll.bootstrap.identity import Identity
from npucoll.bootstrap.variables import integer, text
from npucoll.errors import ConfigError

__all__ = ["LAUNCHERS", "Detector", "Finding", "explain", "identify"]

Detector = Callable[[Mapping[str, str]], Optional[Identity]]


class Finding(NamedTuple):
    """What one format said: an identity, or an error, or (both None) that it does not fit."""

    name: str
    identity: Optional[Identity]
    error: Optional[str]


# In the order in which they are asked.
LAUNCHERS: Tuple[Tuple[str, Detector], ...] = (
    ("npucoll run", npucoll_run.detect),
    ("rank table", rank_table.detect),
    ("RANK_ID/RANK_SIZE", rank_env.detect),
    ("CM_*", cm.detect),
    ("Open MPI", openmpi.detect),
    ("MPICH/PMI", mpich.detect),
    ("PMIx", pmix.detect),
    ("Slurm", slurm.detect),
    ("torchrun", torchrun.detect),
    ("Horovod", horovod.detect),
    ("TF_CONFIG", tf_config.detect),
)


def identify(
    env: Optional[Mapping[str, str]] = None, launchers: Optional[Iterable[Tuple[str, Detector]]] = None
) -> Identity:
    """Return who this process is: what the first launcher format that fits says, else one rank.

    Args:
        env: the variables to read; default: this process's.
        launchers: names and detectors of the formats, in the order to ask them; default: those built in.

    Raises:
        ConfigError: the first format that fits contradicts itself, or nothing fits but part of a format is there.
    """
    env = os.environ if env is None else env
    for _, detect in LAUNCHERS if launchers is None else launchers:
        identity = detect(env)
        if identity is not None:
            return identity
    return _alone(env)


def explain(
    env: Optional[Mapping[str, str]] = None, launchers: Optional[Iterable[Tuple[str, Detector]]] = None
) -> List[Finding]:
    """Return what every launcher format says, in the order they are asked, for people who wonder."""
    env = os.environ if env is None else env
    findings = []
    for name, detect in LAUNCHERS if launchers is None else launchers:
        try:
            findings.append(Finding(name, detect(env), None))
        except ConfigError as error:
            findings.append(Finding(name, None, str(error)))
    return findings


def _alone(env: Mapping[str, str]) -> Identity:
    # Half of a format is a mistake that would otherwise train alone, n times, without a word.
    size, rank, table = integer(env, "RANK_SIZE", 1), text(env, "RANK_ID"), text(env, "RANK_TABLE_FILE")
    if size is not None and size > 1:
        raise ConfigError(f"RANK_SIZE={size}, but RANK_ID is not set: nothing says which of the ranks this process is")
    if table is not None and rank is None and os.path.exists(table) and len(rank_table.read(table).servers) > 1:
        raise ConfigError(f"RANK_TABLE_FILE={table} is set, but RANK_ID is not: nothing says which rank this is")
    if rank is not None:
        if rank.isdigit() and int(rank) > 0:
            raise ConfigError(f"RANK_ID={rank}, but RANK_SIZE is not set: nothing says how many ranks there are")
        warnings.warn(f"RANK_ID={rank}, but RANK_SIZE is not set: npucoll runs as one rank", stacklevel=3)
    world = text(env, "WORLD_SIZE")
    if world is not None and world.isdigit() and int(world) > 1:
        warnings.warn(f"WORLD_SIZE={world}, but RANK is not set: npucoll runs as one rank", stacklevel=3)
    return Identity.on_one_host(0, 1, job="", source="single", detail="no launcher was found: one rank")
