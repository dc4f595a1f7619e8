"""npucoll's own engines and launchers, offered through the same hooks as a stranger's."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Iterable, Optional

from npucoll.hooks import EngineProvider, LauncherProvider, hookimpl

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
        return "the compiled module npucoll._engine is absent: reinstall npucoll from a wheel or with a C compiler"
    return None


@hookimpl
def npucoll_engines() -> Iterable[EngineProvider]:
    return [
        EngineProvider("native", "shared memory of one host, in C", _open_native, _native_unavailable, order=10),
        EngineProvider("single", "one rank, NumPy alone", _open_single, max_ranks=1, order=900),
    ]


@hookimpl
def npucoll_launchers() -> Iterable[LauncherProvider]:
    from npucoll.bootstrap import detect

    return [
        LauncherProvider(name, 10 * place, detector) for place, (name, detector) in enumerate(detect.LAUNCHERS, start=1)
    ]
