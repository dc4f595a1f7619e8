"""From a Call to the engine's ``npc_desc``.

A descriptor owns the C memory that it points to and is used again for later calls: making C structures costs more than
a small collective.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, List, Optional, Sequence

import numpy as np

from npucoll import _ffi
from npucoll._ffi import ffi, lib
from npucoll.buffers import address
from npucoll.engines.base import Call
from npucoll.engines.memory import array_on
from npucoll.types import DTYPES, dtype_code, dtype_from_code, reduce_code

__all__ = ["Descriptor", "call_key"]

_KINDS = {
    "barrier": lib.NPC_BARRIER,
    "allreduce": lib.NPC_ALLREDUCE,
    "broadcast": lib.NPC_BROADCAST,
    "allgather": lib.NPC_ALLGATHER,
    "reduce_scatter": lib.NPC_REDUCE_SCATTER,
    "alltoall": lib.NPC_ALLTOALL,
    "reduce": lib.NPC_REDUCE,
    "gather": lib.NPC_GATHER,
    "scatter": lib.NPC_SCATTER,
    "send": lib.NPC_SEND,
    "recv": lib.NPC_RECV,
}
_MAX_DIMS = 8
# Arrays of this dtype refuse the buffer protocol.
_BFLOAT16 = DTYPES["bfloat16"]


@functools.lru_cache(maxsize=4096)
def call_key(name: str) -> int:
    """Return the 64-bit key of a named call. Never 0, which stands for the next call number."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") or 1


class Descriptor:
    """One ``npc_desc`` with everything it points to, and the error text of its call."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.desc = ffi.new("npc_desc *")
        self.desc.size = ffi.sizeof("npc_desc")
        self.error = _ffi.new_error()
        self._one_in = ffi.new("npc_buf[1]")
        self._one_out = ffi.new("npc_buf[1]")
        self._shape = ffi.new("int64_t[]", _MAX_DIMS)
        self._handle = ffi.new_handle(self)
        self._call: Optional[Call] = None
        self._shared: Any = None
        self._kept: List[Any] = []

    def fill(self, call: Call) -> None:
        """Describe ``call``, which is kept, and with it its buffers, until :meth:`take`."""
        self._call = call
        kept: List[Any] = []
        desc, inputs, outputs = self.desc, call.inputs, call.outputs
        dtype = dtype_code(inputs[0].dtype) if inputs else 0
        desc.kind = _KINDS[call.kind]
        desc.dtype = dtype
        desc.root = call.root
        desc.tag = call.tag
        desc.detail = call.detail
        desc.op = 0 if call.op is None else reduce_code(call.op)
        desc.prescale = call.prescale
        desc.postscale = call.postscale
        desc.timeout_ms = 0 if call.timeout is None else max(1, int(call.timeout * 1000))
        if call.name is None:
            desc.key = 0
            desc.name = ffi.NULL
        else:
            name = ffi.new("char[]", call.name.encode())
            kept.append(name)
            desc.key = call_key(call.name)
            desc.name = name
        desc.n_in = len(inputs)
        setattr(desc, "in", _point(self._one_in, inputs, dtype, kept))  # `in` is a keyword here
        desc.n_out = 0 if outputs is None else len(outputs)
        desc.out = ffi.NULL if outputs is None else _point(self._one_out, outputs, dtype, kept)
        desc.ndim = len(call.shape)
        desc.shape = self._shape
        for i, length in enumerate(call.shape):
            self._shape[i] = length
        desc.splits = ffi.NULL if call.splits is None else ffi.cast("int64_t *", address(call.splits))
        self._shared = ffi.new("npc_buf[]", len(inputs)) if call.shared else None
        desc.shared = ffi.NULL if self._shared is None else self._shared
        desc.alloc = lib.npucoll_alloc if outputs is None else ffi.NULL
        desc.alloc_user = self._handle
        self._kept = kept

    def allocate(self, dtype: int, shape: Sequence[int]) -> Any:
        """Called back by the engine when the ranks have met: make the result, return its address or NULL."""
        assert self._call is not None
        try:
            return ffi.cast("void *", address(self._call.allocate(shape, dtype_from_code(dtype))))
        except Exception as error:  # Whatever it is, it must not cross C; take() raises it when the call returns.
            self._call.failure = error
            return ffi.NULL

    def take(self, status: int) -> List[np.ndarray]:
        """Return the results of the call that ended with ``status``, or raise its error; let go of its buffers."""
        call, self._call, self._kept = self._call, None, []
        assert call is not None
        if status != lib.NPC_OK:
            if status == lib.NPC_ERR_MEMORY and call.failure is not None:
                raise call.failure
            _ffi.check(status, self.error)
        self._provide(call)
        return call.finish()

    def provide(self) -> None:
        """Make the outputs of the filled call, if it is shared, from what its first run has provided."""
        assert self._call is not None
        self._provide(self._call)

    def _provide(self, call: Call) -> None:
        if not call.shared:
            return
        call.outputs = [
            array_on(self._comm, self._shared[i].data, array.shape, array.dtype, writeable=False)
            for i, array in enumerate(call.inputs)
        ]


def _point(one: Any, arrays: Sequence[np.ndarray], dtype: int, kept: List[Any]) -> Any:
    """Return ``npc_buf`` structures for the arrays: ``one`` where that is enough, else new ones, put into ``kept``."""
    if len(arrays) > 1:
        one = ffi.new("npc_buf[]", len(arrays))
        kept.append(one)
    for i, array in enumerate(arrays):
        slot = one[i]
        slot.data = ffi.cast("void *", address(array)) if dtype == _BFLOAT16 else ffi.from_buffer(array)
        slot.count = array.size
    return one
