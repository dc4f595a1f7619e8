"""The hooks that core calls. A plugin implements any of them in a module, marked with ``@npucoll.hookimpl``.

Each is called once for every plugin that has it. What is said here is the contract with plugin authors: see
docs/reference/hooks.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable

from npucoll.hooks import hookspec

if TYPE_CHECKING:
    from npucoll.communicators import Communicator
    from npucoll.hooks.providers import CollectiveEvent, EngineProvider, LauncherProvider, ModeProvider


@hookspec
def npucoll_engines() -> Iterable[EngineProvider]:  # type: ignore[empty-body]  # a specification has no body
    """Offer engines. Called when ``init`` chooses one and when engines are listed; all answers are joined."""


@hookspec
def npucoll_modes() -> Iterable[ModeProvider]:  # type: ignore[empty-body]  # a specification has no body
    """Offer modes. Called by ``enable`` and when modes are listed; all answers are joined. Must import no framework."""


@hookspec
def npucoll_launchers() -> Iterable[LauncherProvider]:  # type: ignore[empty-body]  # a specification has no body
    """Offer ways to tell which rank this process is. Called before ``init`` and by the rank queries; all are joined."""


@hookspec
def npucoll_initialized(comm: Communicator) -> None:
    """Note that the ranks have met. Called once a generation on every rank, in the thread that initializes."""


@hookspec
def npucoll_shutdown(comm: Communicator) -> None:
    """Note that this rank is about to leave. Called before ``comm`` closes; must not wait for other ranks."""


@hookspec
def npucoll_collective(event: CollectiveEvent) -> None:
    """Observe a collective of this rank that ended. Called in the thread that waited for it, before its result returns.

    It must be quick and call no collective. Where no plugin has this hook, collectives are not timed at all. Those that
    a framework's graph runs do not pass through here.
    """
