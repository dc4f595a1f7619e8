"""What npucoll finds at the entry point: the mode ``estimator``."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from typing import Any, Iterable, Optional

import npucoll
from npucoll.hooks import ModeProvider
from npucoll_tf1 import tensorflow_version

__all__ = ["npucoll_modes"]


def _load() -> Any:
    public = importlib.import_module("npucoll_estimator")
    for name in public.__all__:
        getattr(public, name)
    import tensorflow as tf

    # Scripts also write tf.estimator.NPURunConfig, as the device's documentation does.
    if not hasattr(tf.estimator, "NPURunConfig"):
        tf.estimator.NPURunConfig = public.NPURunConfig
    return public


def _unavailable() -> Optional[str]:
    version = tensorflow_version()
    old = sys.version_info < (3, 8)
    wanted = "pip install 'tensorflow==1.15.5' 'protobuf<3.21'" if old else "pip install 'tensorflow==2.15.1'"
    if version is None:
        return f"TensorFlow is not installed; {wanted}"
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    if numbers and not [1, 15] <= numbers < [2, 16]:
        return f"TensorFlow {version} has no Estimator; versions 1.15 and 2.0 to 2.15 have it ({wanted})"
    if importlib.util.find_spec("tensorflow_estimator") is None:
        return f"TensorFlow {version} is here without its package tensorflow-estimator; {wanted}"
    return None


@npucoll.hookimpl
def npucoll_modes() -> Iterable[ModeProvider]:
    return [ModeProvider("estimator", "TensorFlow Estimators: NPUEstimator, NPURunConfig", _load, _unavailable)]
