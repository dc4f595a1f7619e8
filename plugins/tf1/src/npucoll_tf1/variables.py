"""``broadcast_global_variables``: one operation that gives every rank the variables of one rank.

1. The operation takes the variables that exist when it is made. Which ones were made later is only known when it runs,
   so a small Python function runs with it and names them in a warning.
2. Built again for the same variables it is the same operation, so it can be asked for again when the graph is frozen.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import tensorflow.compat.v1 as tf

import npucoll
import npucoll_tensorflow
from npucoll.errors import ConfigError, NpucollError, UnsupportedError

__all__ = ["FrozenGraph", "broadcast_global_variables"]

# How many names a warning lists.
NAMED = 8


class FrozenGraph(NpucollError, RuntimeError):
    """The operation is not in the graph, and the graph takes no more operations."""


class Operations:
    """The broadcast operations made so far: by graph, then by root and variables, the operation's name."""

    def __init__(self) -> None:
        self._made: weakref.WeakKeyDictionary[Any, Dict[Tuple[Any, ...], str]] = weakref.WeakKeyDictionary()

    def find(self, graph: Any, key: Tuple[Any, ...]) -> Optional[Any]:
        """Return the operation that was made in ``graph`` for ``key``, or None."""
        name = self._made.get(graph, {}).get(key)
        return None if name is None else graph.get_operation_by_name(name)

    def add(self, graph: Any, key: Tuple[Any, ...], operation: Any) -> None:
        """Remember ``operation``."""
        self._made.setdefault(graph, {})[key] = operation.name


_operations = Operations()


def broadcast_global_variables(root_rank: int, index: Optional[int] = None) -> Any:
    """Return an operation that, run once by every rank, gives all of them the global variables of ``root_rank``.

    It takes every global variable of every dtype that exists now: weights, optimizer slots, batch-norm statistics,
    ``global_step``. Call it when the model is built, and run it after the variables are initialized or restored; on
    other ranks than ``root_rank`` they need not be. Running it again is harmless. Variables made after the call are
    not sent, and named in a warning when the operation runs. ``index`` is accepted and has no meaning.

    Errors: UnsupportedError in eager mode, FrozenGraph (a RuntimeError) where the graph was finalized before.
    """
    root = _check_root(root_rank)
    if tf.executing_eagerly():
        raise UnsupportedError(
            "broadcast_global_variables() makes an operation of a graph, and this is eager mode, which has no global "
            "variables: use npucoll_tensorflow.broadcast_variables(variables, root), or build a graph"
        )
    graph = tf.get_default_graph()
    variables = _distinct(tf.global_variables())
    key = (root, *[variable.name for variable in variables])
    made = _operations.find(graph, key)
    if made is not None:
        return made
    if graph.finalized:
        raise FrozenGraph(
            "broadcast_global_variables() cannot add to a finalized graph: call it before the session or the "
            "tf.train.Supervisor is made, or use NPUBroadcastGlobalVariablesHook"
        )
    with tf.name_scope("npucoll"):
        operation = _build(graph, variables, root)
    _operations.add(graph, key, operation)
    return operation


def _build(graph: Any, variables: List[Any], root: int) -> Any:
    update = npucoll_tensorflow.broadcast_variables(variables, root)
    with tf.device("/device:CPU:0"):
        check = tf.numpy_function(_late_variables(graph, variables), [], [], name="late_variables")
    return tf.group(update, check, name="broadcast_global_variables")


def _late_variables(graph: Any, variables: List[Any]) -> Callable[[], None]:
    """Return a function that warns about global variables of ``graph`` that are not among ``variables``."""
    # Python functions live as long as the graph: what they hold must not hold the graph.
    reference = weakref.ref(graph)
    known: Set[str] = {variable.name for variable in variables}

    def warn() -> None:
        now = reference()
        if now is None:
            return
        late = [one.name for one in now.get_collection(tf.GraphKeys.GLOBAL_VARIABLES) if one.name not in known]
        if late:
            known.update(late)
            warnings.warn(_describe(late), RuntimeWarning, stacklevel=2)

    return warn


def _describe(late: List[str]) -> str:
    names = ", ".join(name.partition(":")[0] for name in late[:NAMED])
    more = f" and {len(late) - NAMED} more" if len(late) > NAMED else ""
    return (
        f"broadcast_global_variables: made after the operation, so not broadcast: {names}{more}; call it after "
        "everything that makes variables, the optimizer's minimize() too"
    )


def _distinct(variables: List[Any]) -> List[Any]:
    """Return the variables in the order in which they were made, each once."""
    return list({id(variable): variable for variable in variables}.values())


def _check_root(root_rank: Any) -> int:
    try:
        root = int(root_rank)
    except (TypeError, ValueError):
        raise ConfigError(f"root_rank must be a rank, found {root_rank!r}") from None
    if not 0 <= root < npucoll.size():
        raise ConfigError(f"root_rank must be from 0 to {npucoll.size() - 1}, found {root_rank!r}")
    return root
