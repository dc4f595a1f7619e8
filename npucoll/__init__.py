"""npucoll: train one model on many processes.

Public names only; each is loaded when it is first used, so that ``import npucoll`` starts nothing, and the launcher
starts without NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from npucoll._ffi import native_api
    from npucoll.communicators import Communicator
    from npucoll.engines.base import Engine, Work
    from npucoll.errors import (
        CollectiveTimeout,
        ConfigError,
        MismatchError,
        NotInitialized,
        NpucollError,
        PeerLost,
        PluginError,
        UnsupportedError,
    )
    from npucoll.hooks import hookimpl, hookspec
    from npucoll.lifecycle import (
        communicator,
        enable,
        init,
        local_rank,
        local_size,
        node_count,
        node_rank,
        rank,
        shutdown,
        size,
    )
    from npucoll.plans import Plan, call
    from npucoll.types import ReduceOp

__version__ = "0.1.0"

_HOME = {
    "native_api": "npucoll._ffi",
    "Communicator": "npucoll.communicators",
    "Engine": "npucoll.engines.base",
    "Work": "npucoll.engines.base",
    "Plan": "npucoll.plans",
    "ReduceOp": "npucoll.types",
    "call": "npucoll.plans",
    "hookimpl": "npucoll.hooks",
    "hookspec": "npucoll.hooks",
}
_HOME.update(
    dict.fromkeys(
        (
            "communicator",
            "enable",
            "init",
            "local_rank",
            "local_size",
            "node_count",
            "node_rank",
            "rank",
            "shutdown",
            "size",
        ),
        "npucoll.lifecycle",
    )
)
_HOME.update(
    dict.fromkeys(
        (
            "CollectiveTimeout",
            "ConfigError",
            "MismatchError",
            "NotInitialized",
            "NpucollError",
            "PeerLost",
            "PluginError",
            "UnsupportedError",
        ),
        "npucoll.errors",
    )
)

__all__ = [
    "CollectiveTimeout",
    "Communicator",
    "ConfigError",
    "Engine",
    "MismatchError",
    "NotInitialized",
    "NpucollError",
    "PeerLost",
    "Plan",
    "PluginError",
    "ReduceOp",
    "UnsupportedError",
    "Work",
    "__version__",
    "call",
    "communicator",
    "enable",
    "hookimpl",
    "hookspec",
    "init",
    "local_rank",
    "local_size",
    "native_api",
    "node_count",
    "node_rank",
    "rank",
    "shutdown",
    "size",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'npucoll' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted(__all__)
