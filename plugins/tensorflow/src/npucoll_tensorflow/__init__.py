"""npucoll for TensorFlow: collectives in graphs, in ``tf.function`` and eagerly, on TensorFlow 1.15 and every 2.x.

The modes (``npucoll.enable("tf1")``, ``"keras"``, ``"estimator"``) are built on it. Importing this package imports no
TensorFlow; its functions do.
"""

from __future__ import annotations

import importlib
from typing import Any, List

__version__ = "0.1.0"

_HOME = {
    "allgather": "ops",
    "allreduce": "ops",
    "alltoall": "ops",
    "broadcast": "ops",
    "broadcast_variables": "variables",
    "grouped_allreduce": "ops",
    "grouped_broadcast": "ops",
    "reduce": "ops",
    "reduce_gradients": "reduction",
    "reduce_scatter": "ops",
    "translate": "errors",
}

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_variables",
    "grouped_allreduce",
    "grouped_broadcast",
    "reduce",
    "reduce_gradients",
    "reduce_scatter",
    "translate",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'npucoll_tensorflow' has no attribute {name!r}")
    from npucoll_tensorflow.availability import missing

    absent = missing()
    if absent is not None:
        import npucoll

        raise npucoll.PluginError(absent)
    value = getattr(importlib.import_module(f"npucoll_tensorflow.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted(__all__)
