"""Which TensorFlow is installed, learnt without importing it."""

from __future__ import annotations

import importlib.util
import sys
from typing import Optional

__all__ = ["tensorflow_version"]

# The distributions that provide the module ``tensorflow``.
DISTRIBUTIONS = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-gpu",
    "tensorflow-cpu-aws",
    "tensorflow-rocm",
    "tensorflow-aarch64",
    "intel-tensorflow",
    "tf-nightly",
    "tf-nightly-cpu",
)


def tensorflow_version() -> Optional[str]:
    """Return the version of the installed TensorFlow, "" where it has no known distribution, None without one."""
    if sys.version_info >= (3, 8):
        from importlib import metadata
    else:
        import importlib_metadata as metadata
    loaded = getattr(sys.modules.get("tensorflow"), "__version__", None)
    if loaded is not None:
        return str(loaded)
    if importlib.util.find_spec("tensorflow") is None:
        return None
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""
