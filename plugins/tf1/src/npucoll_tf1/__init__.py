"""The mode ``tf1``: data-parallel training with ``tf.train`` optimizers, in sessions.

Public names only. Each is loaded when it is first used, since npucoll lists its plugins without importing TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from npucoll_tf1.collectives import allgather, allreduce, alltoall, broadcast, reduce, reduce_scatter
    from npucoll_tf1.distributed import NPUDistributedOptimizer
    from npucoll_tf1.gradients import npu_allreduce
    from npucoll_tf1.groups import (
        create_group,
        destroy_group,
        get_group_rank_from_world_rank,
        get_local_rank_id,
        get_local_rank_size,
        get_rank_id,
        get_rank_size,
        get_world_rank_from_group_rank,
    )
    from npucoll_tf1.hook import NPUBroadcastGlobalVariablesHook
    from npucoll_tf1.installed import tensorflow_version
    from npucoll_tf1.variables import broadcast_global_variables
    from npucoll_tf1.wrapper import npu_distributed_optimizer_wrapper

__version__ = "0.1.0"

_HOME = {
    "NPUBroadcastGlobalVariablesHook": "hook",
    "NPUDistributedOptimizer": "distributed",
    "allgather": "collectives",
    "allreduce": "collectives",
    "alltoall": "collectives",
    "broadcast": "collectives",
    "broadcast_global_variables": "variables",
    "create_group": "groups",
    "destroy_group": "groups",
    "get_group_rank_from_world_rank": "groups",
    "get_local_rank_id": "groups",
    "get_local_rank_size": "groups",
    "get_rank_id": "groups",
    "get_rank_size": "groups",
    "get_world_rank_from_group_rank": "groups",
    "npu_allreduce": "gradients",
    "npu_distributed_optimizer_wrapper": "wrapper",
    "reduce": "collectives",
    "reduce_scatter": "collectives",
    "tensorflow_version": "installed",
}

__all__ = [
    "NPUBroadcastGlobalVariablesHook",
    "NPUDistributedOptimizer",
    "__version__",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_global_variables",
    "create_group",
    "destroy_group",
    "get_group_rank_from_world_rank",
    "get_local_rank_id",
    "get_local_rank_size",
    "get_rank_id",
    "get_rank_size",
    "get_world_rank_from_group_rank",
    "npu_allreduce",
    "npu_distributed_optimizer_wrapper",
    "reduce",
    "reduce_scatter",
    "tensorflow_version",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'npucoll_tf1' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"npucoll_tf1.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted(__all__)
