"""Builds one node: the attributes that every operator has, its key, its device, and the errors of an eager call."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

import tensorflow as tf

import npucoll
from npucoll_tensorflow import compat, library
from npucoll_tensorflow.errors import translated
from npucoll_tensorflow.plan import Key

if TYPE_CHECKING:
    from npucoll import Communicator

__all__ = ["REDUCTIONS", "Node", "communicator_id"]

# The numbers are npc_op of native/include/npucoll.h.
REDUCTIONS = {"sum": 1, "mean": 2, "min": 3, "max": 4, "prod": 5}


def halves(name: str, value: int) -> Dict[str, int]:
    """Return a 64-bit number as the two 32-bit attributes that TensorFlow 1.15's C API can read."""
    high, low = struct.unpack("<ii", struct.pack("<Q", value & 0xFFFFFFFFFFFFFFFF))[::-1]
    return {f"{name}_high": high, f"{name}_low": low}


def double_bits(value: float) -> int:
    """Return the 64 bits of a float as a number."""
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def communicator_id(group: Optional[Communicator]) -> int:
    """Return the number by which an op finds its communicator when it runs; 0 is the world, whichever that is then."""
    if group is None:
        return 0
    ident = group.engine.native_handle()
    if ident is None:
        raise npucoll.UnsupportedError(
            f"collectives in TensorFlow need npucoll's native engine; communicator {group.name!r} uses engine "
            f"{group.engine.name!r}"
        )
    return ident


class Node:
    """The description of one operator, from which its node is made or its eager call done."""

    def __init__(
        self,
        kind: str,
        *,
        op: str = "sum",
        root: int = 0,
        prescale: float = 1.0,
        postscale: float = 1.0,
        name: Optional[str] = None,
        group: Optional[Communicator] = None,
        comm: Optional[int] = None,
    ) -> None:
        if op not in REDUCTIONS:
            raise npucoll.ConfigError(f"op={op!r} is no reduction; known are {', '.join(REDUCTIONS)}")
        if root < 0:
            raise npucoll.ConfigError(f"root={root} is no rank")
        self.kind = kind
        self.op = op
        self.name = name
        self.root = root
        if prescale == 0.0 or postscale == 0.0:
            raise npucoll.ConfigError("prescale and postscale must not be 0")
        self.group = group
        self.comm = communicator_id(group) if comm is None else comm
        self.prescale, self.postscale = prescale, postscale
        self._attributes: Dict[str, int] = {"reduction": REDUCTIONS[op], "root": root}
        if self.comm:
            self._attributes.update(halves("comm", self.comm))
        if prescale != 1.0:
            self._attributes.update(halves("prescale", double_bits(prescale)))
        if postscale != 1.0:
            self._attributes.update(halves("postscale", double_bits(postscale)))

    def order(self, dtype: Any, shapes: str) -> str:
        """Return the text that describes this collective in its graph's plan, the same on every rank."""
        scale = "" if self.prescale == self.postscale == 1.0 else f"{self.prescale!r} {self.postscale!r}"
        return f"{self.kind}|{dtype}|{shapes}|{self.op}|{self.root}|{self.comm}|{scale}"

    def run(
        self,
        inputs: Dict[str, Any],
        *,
        describe: Callable[[], Tuple[str, str]],
        plan: str = "collectives",
        detail: int = 0,
    ) -> Any:
        """Make the node, or do the eager call, and return what TensorFlow's function returns.

        ``inputs``: by the operator's names of them. ``describe``: returns order and title, which with ``plan`` are for
        ``Plans.place``; called only where they are needed. ``detail``: what else must be equal on all ranks.
        """
        loaded = library.load()
        loaded.check_engine()
        attributes = dict(self._attributes)
        if detail:
            attributes.update(halves("detail", detail))
        function = getattr(loaded.ops, f"npucoll_{self.kind}")
        eager = tf.executing_eagerly()
        if self.name is not None:
            key: Optional[Key] = loaded.plans.named(self.name)
        elif eager:
            key = None
        else:
            key = loaded.plans.place(compat.v1.get_default_graph(), self.comm, plan, *describe())
        if key is not None:
            attributes.update(halves("key", key.key), slot=key.slot)
        if eager:
            with translated():
                return function(**inputs, **attributes, blocking=1)
        loaded.watcher.start()
        if self.group is not None:
            loaded.watcher.add(self.group)
        compat.run_loops_in_order(compat.v1.get_default_graph())
        with tf.device("/device:CPU:0"):
            result = function(**inputs, **attributes, name=self._node_name())
        compat.run_independently(_operation(result))
        return result

    def _node_name(self) -> str:
        return (
            re.sub(r"[^A-Za-z0-9_.\\/-]", "_", re.sub(r"^[^A-Za-z0-9.]+", "", self.name or ""))
            or f"npucoll_{self.kind}"
        )


def _operation(result: Any) -> Any:
    return (result[0] if isinstance(result, (list, tuple)) else result).op


def read_halves(operation: Any, name: str) -> int:
    """Return a 64-bit attribute of a node."""
    high, low = operation.get_attr(f"{name}_high"), operation.get_attr(f"{name}_low")
    return struct.unpack("<Q", struct.pack("<ii", low, high))[0]


def read_double(operation: Any, name: str) -> float:
    """Return a float attribute of a node; 1.0 where it was never set."""
    bits = read_halves(operation, name)
    return struct.unpack("<d", struct.pack("<Q", bits))[0] if bits else 1.0


def as_tensors(values: Any) -> List[Any]:
    """Return a list of tensors; IndexedSlices become dense."""
    return [tf.convert_to_tensor(value) for value in values]
