"""The functions a user calls, on the one Runtime of the process.

No module is called ``enable`` or ``communicator``: importing it would hide the function of that name in npucoll.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from npucoll.runtime import Runtime

if TYPE_CHECKING:
    from npucoll.communicators import Communicator

__all__ = [
    "communicator",
    "enable",
    "init",
    "local_rank",
    "local_size",
    "node_count",
    "node_rank",
    "rank",
    "runtime",
    "shutdown",
    "size",
]

#: The state of this process. There is one, as there is one sys.excepthook and one rank.
runtime = Runtime()


def enable(*modes: str) -> Any:
    """Initialize npucoll and load ``modes``; a mode is named by its plugin, such as "keras".

    Returns the mode's public module for one name, a tuple of modules for several. Without a name: a tuple of the modes
    that the configuration names. Again: the same modules. PluginError says what is unknown, broken or not installed,
    and what to do.
    """
    return runtime.enable(*modes)


def init(engine: Optional[str] = None, timeout: Optional[float] = None) -> Communicator:
    """Meet the other ranks and return the communicator of all.

    ``engine``: its name; None: the configuration's, else the first that serves these ranks. ``timeout``: seconds after
    which a collective fails on all ranks; None: the configuration's, else 1800. Called again with the same arguments it
    returns the same communicator, with others it is a ConfigError. CollectiveTimeout names the ranks that did not come
    within the connect timeout; UnsupportedError says why no engine can serve them.
    """
    return runtime.init(engine, timeout)


def shutdown() -> None:
    """Leave. Local and never blocks; also done at exit. Later collectives raise NotInitialized until ``init``."""
    runtime.shutdown()


def communicator() -> Communicator:
    """Return the communicator of all ranks; NotInitialized before ``init`` or ``enable``."""
    return runtime.communicator()


def rank() -> int:
    """Return this process's number among all, 0 to ``size() - 1``; it is known before ``init``."""
    return runtime.identity().rank


def size() -> int:
    """Return the number of all ranks; it is known before ``init``."""
    return runtime.identity().size


def local_rank() -> int:
    """Return this process's number among the ranks of its host."""
    return runtime.identity().local_rank


def local_size() -> int:
    """Return the number of ranks on this host."""
    return runtime.identity().local_size


def node_rank() -> int:
    """Return the number of this host, 0 to ``node_count() - 1``."""
    return runtime.identity().node_rank


def node_count() -> int:
    """Return the number of hosts."""
    return runtime.identity().node_count
