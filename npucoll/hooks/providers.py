"""What plugins hand to core through the hooks: plain records, so that listing them imports no framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple, Optional, Tuple

if TYPE_CHECKING:
    from npucoll.bootstrap.identity import Identity
    from npucoll.engines.base import Engine, World

__all__ = ["CollectiveEvent", "EngineProvider", "LauncherProvider", "ModeProvider"]


def _nothing_missing() -> Optional[str]:
    return None


class EngineProvider(NamedTuple):
    """An engine that ``npucoll.init(engine=name)`` can open.

    ``open`` makes the engine of one rank; it may block until the ranks have met, at most ``world.connect_timeout``.
    ``unavailable`` says in one sentence what is missing on this machine, or returns None. ``order`` decides which
    engine is taken where none is asked for: the lowest that is available, serves this many ranks (``max_ranks``; None:
    any number) and this many hosts (``crosses_hosts``).
    """

    name: str
    summary: str
    open: Callable[[World], Engine]
    unavailable: Callable[[], Optional[str]] = _nothing_missing
    crosses_hosts: bool = False
    max_ranks: Optional[int] = None
    order: int = 100


class ModeProvider(NamedTuple):
    """A mode that ``npucoll.enable(name)`` can load.

    ``load`` imports the framework and returns the module with the mode's public names; it is called once a process.
    ``unavailable`` says in one sentence what to install, without importing the framework, or returns None.
    """

    name: str
    summary: str
    load: Callable[[], Any]
    unavailable: Callable[[], Optional[str]] = _nothing_missing


class LauncherProvider(NamedTuple):
    """A way to learn from the environment which rank this process is.

    ``detect`` gets the environment and returns an Identity, or None where another launcher (or none) started this
    process; variables that contradict each other are a ConfigError. The lowest ``order`` is asked first; the built-in
    launchers have 10, 20, 30, … in the documented order.
    """

    name: str
    order: int
    detect: Callable[[Mapping[str, str]], Optional[Identity]]


class CollectiveEvent(NamedTuple):
    """One collective as this rank saw it, after it ended.

    ``communicator`` and ``name`` (None: unnamed) say which call it was; ``dtype`` and ``shape`` describe this rank's
    input (None and () where there is none); ``nbytes`` is the size of that input, ``seconds`` the time from the call to
    the result. ``error`` is the exception that the call raised, or None.
    """

    communicator: str
    kind: str
    name: Optional[str]
    dtype: Optional[str]
    shape: Tuple[int, ...]
    nbytes: int
    seconds: float
    error: Optional[BaseException]
