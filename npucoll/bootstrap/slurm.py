"""Slurm: the tasks of an ``srun`` step."""

from __future__ import annotations

import re
from typing import List, Mapping, Optional, Tuple

from npucoll.bootstrap.identity import Identity
from npucoll.bootstrap.variables import integer, required, text
from npucoll.errors import ConfigError

__all__ = ["detect", "tasks_per_node"]

# Slurm numbers the pseudo-steps of batch scripts, interactive shells and the like down from here (slurm.h).
_PSEUDO_STEPS = 0xFFFFFFF0

# A launcher that was itself started by a step, one process a node: it says more about this process than the step.
_NEARER_LAUNCHERS = ("TORCHELASTIC_RUN_ID", "HOROVOD_RANK")


def detect(env: Mapping[str, str]) -> Optional[Identity]:
    """Return the identity of a task of a step; None outside steps: in an allocation and in a batch script.

    Raises:
        ConfigError: a companion is missing or contradicts another.
    """
    step = integer(env, "SLURM_STEP_ID")
    if step is None or step >= _PSEUDO_STEPS or integer(env, "SLURM_PROCID") is None:
        return None
    if any(text(env, name) is not None for name in _NEARER_LAUNCHERS):
        return None
    rank = required(env, "SLURM_PROCID", beside="SLURM_STEP_ID")
    size = integer(env, "SLURM_STEP_NUM_TASKS", 1) or required(env, "SLURM_NTASKS", 1, beside="SLURM_PROCID")
    local_rank = required(env, "SLURM_LOCALID", beside="SLURM_PROCID")
    node_rank = required(env, "SLURM_NODEID", beside="SLURM_PROCID")
    job = text(env, "SLURM_JOB_ID") or text(env, "SLURM_JOBID") or ""
    local_size, node_count = _nodes(env, size, node_rank)
    return Identity(
        rank,
        size,
        local_rank,
        local_size,
        node_rank,
        node_count,
        job=f"slurm:{job}.{step}",
        source="Slurm",
        detail=f"SLURM_PROCID={rank} of {size} tasks in step {job}.{step}",
    )


def tasks_per_node(value: str) -> List[int]:
    """Return the number of tasks of every node from Slurm's notation, such as ``"2(x3),1"``.

    Raises:
        ConfigError: it is not of that form.
    """
    counts: List[int] = []
    for part in value.split(","):
        match = re.match(r"^(\d+)(?:\(x(\d+)\))?$", part.strip())
        if match is None:
            raise ConfigError(f"SLURM_STEP_TASKS_PER_NODE={value!r} is not of the form 2(x3),1")
        counts += [int(match.group(1))] * int(match.group(2) or 1)
    return counts


def _nodes(env: Mapping[str, str], size: int, node_rank: int) -> Tuple[int, int]:
    layout = text(env, "SLURM_STEP_TASKS_PER_NODE") or text(env, "SLURM_TASKS_PER_NODE")
    if layout is not None:
        counts = tasks_per_node(layout)
        if sum(counts) == size and node_rank < len(counts):
            return counts[node_rank], len(counts)
    count = integer(env, "SLURM_STEP_NUM_NODES", 1) or integer(env, "SLURM_NNODES", 1) or 1
    return -(-size // count), count
