"""The mode ``estimator``: data-parallel training with TensorFlow's Estimators.

Public names only. Each is loaded when it is first used, since npucoll lists its plugins without importing TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from npucoll_estimator.estimator import NPUEstimator
    from npucoll_estimator.run_config import NPURunConfig
    from npucoll_estimator.spec import NPUEstimatorSpec
    from npucoll_tf1 import (
        NPUBroadcastGlobalVariablesHook,
        NPUDistributedOptimizer,
        create_group,
        destroy_group,
        get_local_rank_id,
        get_local_rank_size,
        get_rank_id,
        get_rank_size,
        npu_allreduce,
        npu_distributed_optimizer_wrapper,
    )

__version__ = "0.1.0"

_HOME = {
    "NPUEstimator": "npucoll_estimator.estimator",
    "NPUEstimatorSpec": "npucoll_estimator.spec",
    "NPURunConfig": "npucoll_estimator.run_config",
}
_HOME.update(
    dict.fromkeys(
        (
            "NPUBroadcastGlobalVariablesHook",
            "NPUDistributedOptimizer",
            "create_group",
            "destroy_group",
            "get_local_rank_id",
            "get_local_rank_size",
            "get_rank_id",
            "get_rank_size",
            "npu_allreduce",
            "npu_distributed_optimizer_wrapper",
        ),
        "npucoll_tf1",
    )
)

__all__ = [
    "NPUBroadcastGlobalVariablesHook",
    "NPUDistributedOptimizer",
    "NPUEstimator",
    "NPUEstimatorSpec",
    "NPURunConfig",
    "__version__",
    "create_group",
    "destroy_group",
    "get_local_rank_id",
    "get_local_rank_size",
    "get_rank_id",
    "get_rank_size",
    "npu_allreduce",
    "npu_distributed_optimizer_wrapper",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'npucoll_estimator' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted(__all__)
