"""The hooks: an engine, a mode, and an observer. Imports nothing heavy."""

from __future__ import annotations

import npucoll
from npucoll.hooks import EngineProvider, ModeProvider
from stranger.observer import observed


def _open(world):
    from stranger.engine import SocketEngine

    return SocketEngine.connect(world)


def _load():
    import stranger.public

    return stranger.public


@npucoll.hookimpl
def npucoll_engines():
    return [EngineProvider(name="sockets", summary="a star of sockets around rank 0", open=_open)]


@npucoll.hookimpl
def npucoll_modes():
    return [ModeProvider(name="stranger", summary="averages lists of numbers", load=_load)]


@npucoll.hookimpl
def npucoll_initialized(comm):
    observed.append(("initialized", comm.size))


@npucoll.hookimpl
def npucoll_collective(event):
    observed.append((event.kind, event.nbytes))
