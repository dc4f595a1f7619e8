"""The launchers that core knows, offered through the same hook as anybody's."""

from __future__ import annotations

from typing import List

from npucoll.bootstrap import detect
from npucoll.hooks import LauncherProvider, hookimpl


@hookimpl
def npucoll_launchers() -> List[LauncherProvider]:
    """Offer every launcher and rank-table format, in the documented order."""
    return [
        LauncherProvider(name, 10 * place, detector) for place, (name, detector) in enumerate(detect.LAUNCHERS, start=1)
    ]
