"""What npucoll finds at the entry point: the mode ``tf1``."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Iterable, Optional

import npucoll
from npucoll.hooks import ModeProvider
from npucoll_tf1.installed import tensorflow_version

__all__ = ["npucoll_modes"]


def _load() -> Any:
    public = importlib.import_module("npucoll_tf1")
    for name in public.__all__:
        getattr(public, name)
    return public


def _unavailable() -> Optional[str]:
    version = tensorflow_version()
    if version is None:
        wanted = "'tensorflow==1.15.5' 'protobuf<3.21'" if sys.version_info < (3, 8) else "tensorflow"
        return f"TensorFlow is not installed; pip install {wanted}"
    if version.startswith("0.") or version.split(".")[:2] in [["1", str(minor)] for minor in range(15)]:
        return (
            f"TensorFlow {version} is too old; tf1 works with 1.15 and with every 2.x (pip install tensorflow==1.15.5)"
        )
    return None


@npucoll.hookimpl
def npucoll_modes() -> Iterable[ModeProvider]:
    return [ModeProvider("tf1", "TensorFlow sessions: tf.train optimizers", _load, _unavailable)]
