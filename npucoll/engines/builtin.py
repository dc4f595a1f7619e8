"""The engines that come with core, offered through the same hook as anybody's."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, List, Optional

from npucoll.hooks import EngineProvider, hookimpl

if TYPE_CHECKING:
    from npucoll.engines.base import Engine, World


def _open_native(world: World) -> Engine:
    from npucoll.engines import native

    return native.open_engine(world)


def _open_single(world: World) -> Engine:
    from npucoll.engines import single

    return single.open_engine(world)


def _native_unavailable() -> Optional[str]:
    if importlib.util.find_spec("npucoll._engine") is None:
        return "this installation has no compiled engine; install a wheel, or build from source with a C compiler"
    return None


@hookimpl
def npucoll_engines() -> List[EngineProvider]:
    """Offer the engine of one host, and the one that needs nothing compiled."""
    return [
        EngineProvider("native", "shared memory of one host, in C", _open_native, _native_unavailable, order=10),
        EngineProvider("single", "one rank, in NumPy", _open_single, max_ranks=1, order=20),
    ]
