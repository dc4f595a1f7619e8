"""npucoll's Keras mode: what ``npucoll.enable("keras")`` returns.

Public names only. Each is loaded when it is first used, so that the plugin can be listed where TensorFlow is absent.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from npucoll_keras.callback import NPUBroadcastGlobalVariablesCallback
    from npucoll_keras.collectives import allgather, allreduce, broadcast, npu_allreduce
    from npucoll_keras.optimizer import KerasDistributeOptimizer, npu_distributed_optimizer_wrapper
    from npucoll_keras.ranks import get_local_rank_id, get_local_rank_size, get_rank_id, get_rank_size
    from npucoll_keras.variables import broadcast_variables

_HOME = {
    "KerasDistributeOptimizer": "npucoll_keras.optimizer",
    "NPUBroadcastGlobalVariablesCallback": "npucoll_keras.callback",
    "allgather": "npucoll_keras.collectives",
    "allreduce": "npucoll_keras.collectives",
    "broadcast": "npucoll_keras.collectives",
    "broadcast_variables": "npucoll_keras.variables",
    "get_local_rank_id": "npucoll_keras.ranks",
    "get_local_rank_size": "npucoll_keras.ranks",
    "get_rank_id": "npucoll_keras.ranks",
    "get_rank_size": "npucoll_keras.ranks",
    "npu_allreduce": "npucoll_keras.collectives",
    "npu_distributed_optimizer_wrapper": "npucoll_keras.optimizer",
}

__all__ = [
    "KerasDistributeOptimizer",
    "NPUBroadcastGlobalVariablesCallback",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_variables",
    "get_local_rank_id",
    "get_local_rank_size",
    "get_rank_id",
    "get_rank_size",
    "npu_allreduce",
    "npu_distributed_optimizer_wrapper",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'npucoll_keras' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted(__all__)
