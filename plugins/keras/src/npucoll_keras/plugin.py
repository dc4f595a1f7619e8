"""Offers the mode "keras" to npucoll. Imports no framework."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Iterable, Optional

from npucoll.hooks import ModeProvider, hookimpl

__all__ = ["npucoll_modes"]


def _load() -> Any:
    module = importlib.import_module("npucoll_keras")
    # Fails now, in words, rather than at the first use of a name, where TensorFlow is broken.
    for name in module.__all__:
        getattr(module, name)
    return module


def _unavailable() -> Optional[str]:
    if importlib.util.find_spec("tensorflow") is None:
        return "TensorFlow is not installed; pip install 'npucoll-keras[tensorflow]', or the TensorFlow you train with"
    return None


@hookimpl
def npucoll_modes() -> Iterable[ModeProvider]:
    return [ModeProvider("keras", "Keras: fit, custom train steps and GradientTape loops", _load, _unavailable)]
