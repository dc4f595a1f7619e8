"""The hooks: the one way by which engines, modes, launchers and observers join, ours as well as anybody's.

``hookimpl`` marks a plugin's function; ``hookspec`` marks a specification, for plugins that offer hooks of their own.
"""

from __future__ import annotations

import pluggy

from npucoll.hooks.providers import CollectiveEvent, EngineProvider, LauncherProvider, ModeProvider

__all__ = ["CollectiveEvent", "EngineProvider", "LauncherProvider", "ModeProvider", "hookimpl", "hookspec"]

hookspec = pluggy.HookspecMarker("npucoll")
hookimpl = pluggy.HookimplMarker("npucoll")
