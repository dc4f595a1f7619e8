"""Closes in a forked child what belongs to the rank alone."""

from __future__ import annotations

import os
import weakref
from typing import Any

__all__ = ["close_in_child"]


class _Registry:
    """What to close after a fork. The hook is registered on first use, because it cannot be taken back."""

    def __init__(self) -> None:
        self._objects: weakref.WeakSet[Any] = weakref.WeakSet()
        self._hooked = False

    def add(self, thing: Any) -> None:
        if not self._hooked:
            os.register_at_fork(after_in_child=self._close_all)
            self._hooked = True
        self._objects.add(thing)

    def _close_all(self) -> None:
        for thing in list(self._objects):
            thing.close()
        self._objects.clear()


_registry = _Registry()


def close_in_child(thing: Any) -> None:
    """Have ``thing.close()`` called in every child that ``os.fork`` makes while ``thing`` is alive.

    A child that kept a rank's socket would keep the rank's name taken after the rank's end.
    """
    _registry.add(thing)
