"""Is there a TensorFlow to work with? Answers without importing it."""

from __future__ import annotations

import importlib.util
import sys
from typing import Optional

__all__ = ["missing"]


def missing() -> Optional[str]:
    """Return one sentence that says what to install, or None where TensorFlow is there."""
    if "tensorflow" in sys.modules or importlib.util.find_spec("tensorflow") is not None:
        return None
    package = "tensorflow==1.15.5" if sys.version_info < (3, 8) else "tensorflow"
    return f"TensorFlow is not installed in this Python; install it with: pip install {package}"
