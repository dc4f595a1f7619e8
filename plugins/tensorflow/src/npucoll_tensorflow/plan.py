"""Keys: how a collective in one rank's graph finds its peers in the other ranks' graphs.

1. A name that the caller gives is the key.
2. An eager call without a name has no key: it takes the communicator's next call number, like any unnamed call.
3. A collective of a graph without a name is noted, with a text that describes it, in its graph's plan. When the first
   of them runs, native code sorts and numbers them (csrc/plan.c), so the order in which a rank built them does not
   matter, nor TensorFlow's names, nor how often a function was traced.
"""

from __future__ import annotations

import hashlib
import re
import threading
import weakref
from typing import Any, Callable, Dict, NamedTuple, Sequence

from npucoll_tensorflow.compat import in_function, root_graph

__all__ = ["Key", "Plans", "hash64"]


_SHAPES = re.compile(r"\([^)]*\)|\?")


class Key(NamedTuple):
    """What an op carries to find its peers: a 64-bit key (0: the next call number) and a slot of its graph's plan."""

    key: int
    slot: int


def hash64(*parts: Any) -> int:
    """Return a 64-bit hash of ``parts``, equal in every process. Never 0, which stands for the next call number."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") or 1


class _GraphPlan:
    """What one graph holds so far."""

    def __init__(self, ident: int, of_function: bool) -> None:
        self.ident = ident
        self.of_function = of_function
        self._counts: Dict[str, int] = {}

    def count(self, what: str) -> int:
        """Return how often ``what`` was counted before, and count it."""
        before = self._counts.get(what, 0)
        self._counts[what] = before + 1
        return before


class Plans:
    """The plans of this process's graphs."""

    def __init__(
        self, add: Callable[[int, int, bytes, int, int, bytes], int], name: Callable[[int, bytes], None]
    ) -> None:
        self._add = add
        self._name = name
        self._lock = threading.Lock()
        self._graphs: weakref.WeakKeyDictionary[Any, _GraphPlan] = weakref.WeakKeyDictionary()
        self._made = 0

    def named(self, name: str) -> Key:
        """Return the key of a collective that the caller gave a name."""
        key = hash64("tensorflow", "name", name)
        self._name(key, name.encode())
        return Key(key, 0)

    def place(self, graph: Any, comm: int, group: str, order: str, title: str) -> Key:
        """Note a collective of ``graph`` and return its key.

        ``comm``: the communicator's number; what a graph holds for others, their members alone know. ``group``: the
        class of collectives that are numbered together. ``order``: describes this one, the same on every
        rank, beginning with what matters most. ``title``: for messages.
        """
        with self._lock:
            plan = self._plan(graph)
            occurrence = plan.count(f"{comm} {group}\0{order}")
            fallback = hash64("tensorflow", group, order, occurrence)
            # Only of functions, and without shapes: another trace may know other ones. See csrc/plan.c.
            content = hash64(group, _SHAPES.sub("", order)) if plan.of_function else 0
            add = (
                hash64(plan.ident, comm),
                hash64("tensorflow", group),
                order.encode(),
                content,
                fallback,
                title.encode(),
            )
            slot = self._add(*add)
        if slot == 0:
            raise MemoryError("no memory to note a collective")
        return Key(fallback, slot)

    def count(self, graph: Any, what: str) -> int:
        """Return how often ``what`` was counted in ``graph`` before, and count it."""
        with self._lock:
            return self._plan(graph).count(what)

    def _plan(self, graph: Any) -> _GraphPlan:
        root = root_graph(graph)
        plan = self._graphs.get(root)
        if plan is None:
            self._made += 1
            plan = self._graphs[root] = _GraphPlan(self._made, in_function(root))
        return plan


def describe_shape(shape: Any) -> str:
    """Return a static shape as text: ``(3, ?)``, ``(4,)``, or ``?`` where not even the rank is known."""
    if shape.ndims is None:
        return "?"
    sizes = ["?" if size is None else str(size) for size in shape.as_list()]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def describe_rows(shape: Any) -> str:
    """Return a static shape as text but for dimension 0, which may differ between ranks."""
    return "?" if shape.ndims is None else describe_shape(shape[1:])


def describe_shapes(tensors: Sequence[Any], limit: int = 6) -> str:
    """Return the shapes of ``tensors`` as text, the first few of a long list."""
    shown = [describe_shape(tensor.shape) for tensor in tensors[:limit]]
    more = len(tensors) - len(shown)
    return " ".join(shown) + (f" and {more} more" if more > 0 else "")
