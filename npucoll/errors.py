"""The exceptions of npucoll: one root, and each leaf is also the builtin that a caller would expect."""

from __future__ import annotations

__all__ = [
    "CollectiveTimeout",
    "ConfigError",
    "MismatchError",
    "NotInitialized",
    "NpucollError",
    "PeerLost",
    "PluginError",
    "UnsupportedError",
]


class NpucollError(Exception):
    """Root of every error that npucoll raises on purpose."""


class ConfigError(NpucollError, ValueError):
    """A configuration file, a variable, an argument or a launcher's description contradicts itself or is unknown."""


class MismatchError(NpucollError, ValueError):
    """Ranks disagree about a collective. Every rank raises it at the same call; the communicator goes on."""


class CollectiveTimeout(NpucollError, TimeoutError):
    """A collective, or the meeting of the ranks, passed its deadline. The communicator has ended."""


class PeerLost(NpucollError, ConnectionError):
    """A rank died, left or was interrupted while others needed it. The communicator has ended."""


class NotInitialized(NpucollError, RuntimeError):
    """A call without ``init``, after ``shutdown``, or in a forked child."""


class PluginError(NpucollError, ImportError):
    """A plugin is unknown, broken, or lacks what it needs."""


class UnsupportedError(NpucollError, TypeError):
    """The operation is not defined for this dtype, or nothing installed here can do it."""
