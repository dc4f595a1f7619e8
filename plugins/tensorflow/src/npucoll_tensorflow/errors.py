"""Turns what TensorFlow raises when one of our ops fails back into npucoll's own exceptions."""

from __future__ import annotations

import contextlib
import re
from typing import Iterator, Optional

import npucoll

__all__ = ["translate", "translated"]

# The op's message is "npucoll.<class>: <one line>"; TensorFlow puts its own words before and after it.
_MARK = re.compile(r"npucoll\.([A-Z][A-Za-z]+): (.*?)(?:\s*\[\[|\s*\[Op:|\n|$)")
_CLASSES = {
    one.__name__: one
    for one in (
        npucoll.CollectiveTimeout,
        npucoll.ConfigError,
        npucoll.MismatchError,
        npucoll.NotInitialized,
        npucoll.NpucollError,
        npucoll.PeerLost,
        npucoll.UnsupportedError,
    )
}


def translate(error: BaseException) -> Optional[npucoll.NpucollError]:
    """Return the npucoll exception that a TensorFlow error stands for, or None where it came from something else.

    For graphs: ``sess.run`` and functions raise ``tf.errors.OpError``; its text holds ours.
    """
    if isinstance(error, npucoll.NpucollError):
        return error
    found = _MARK.search(str(error))
    if found is None or found.group(1) not in _CLASSES:
        return None
    return _CLASSES[found.group(1)](found.group(2).strip().rstrip("]"))


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise npucoll's exceptions instead of TensorFlow's from the block."""
    try:
        yield
    except Exception as error:
        found = _MARK.search(str(error))
        if found is not None and found.group(1) == "KeyboardInterrupt":
            raise KeyboardInterrupt() from None
        ours = translate(error)
        if ours is None or ours is error:
            raise
        raise ours from error
