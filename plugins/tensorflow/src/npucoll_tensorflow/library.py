"""Loads the compiled operators into TensorFlow, once, and connects them to npucoll's engine."""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
from typing import Any

import tensorflow as tf

import npucoll
from npucoll_tensorflow.interrupt import Watcher
from npucoll_tensorflow.plan import Plans

__all__ = ["MODES", "Library", "load"]

# How kernels run, by the number that the library gives: npt_mode in csrc/kernel.h.
MODES = {0: "none", 1: "asynchronous", 2: "asynchronous (hand-made)", 3: "one at a time"}


class Library:
    """The operators as TensorFlow's Python functions (``ops``), and what graphs are noted for them (``plans``)."""

    def __init__(self, path: str) -> None:
        self.ops: Any = tf.load_op_library(path)
        self._native = ctypes.CDLL(path)
        self._native.npt_problem.restype = ctypes.c_char_p
        problem = self._native.npt_problem().decode("utf-8", "replace")
        if problem:
            raise npucoll.PluginError(
                f"npucoll's operators cannot be registered in TensorFlow {tf.__version__}: {problem}"
            )
        self._native.npt_plan.argtypes = [
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.c_char_p,
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.c_char_p,
        ]
        self._native.npt_plan.restype = ctypes.c_int32
        self._native.npt_name.argtypes = [ctypes.c_uint64, ctypes.c_char_p]
        self._native.npt_name.restype = None
        self.plans = Plans(self._native.npt_plan, self._native.npt_name)
        self._native.npt_mark_calls.restype = None
        self.watcher = Watcher(self._native.npt_mark_calls, self._native.npt_marked_calls)
        self._bound = self._bind()

    @property
    def mode(self) -> str:
        """How this TensorFlow runs our kernels: a value of :data:`MODES`."""
        return MODES[self._native.npt_mode_of_kernels()]

    def check_engine(self) -> None:
        """Raise UnsupportedError where the operators have no native engine to call, now or when they run."""
        if not self._bound:
            raise npucoll.UnsupportedError(
                "collectives in TensorFlow need npucoll's native engine, which is not installed here "
                "(npucoll._engine is missing); install npucoll from a wheel, or with a C compiler"
            )
        try:
            engine = npucoll.communicator().engine
        except npucoll.NotInitialized:
            return  # A graph may be built before.
        if engine.native_handle() is None:
            raise npucoll.UnsupportedError(
                f"collectives in TensorFlow need npucoll's native engine; npucoll was initialized with {engine.name!r}"
            )

    def wait_inside(self, yes: bool) -> None:
        """Make kernels wait in TensorFlow's threads, one at a time, as where no better way is known: for tests."""
        self._native.npt_wait_inside(yes)

    def _bind(self) -> bool:
        """Hand the engine's table of functions to the operators. It is one for the life of the process."""
        try:
            address = npucoll.native_api()
        except ImportError:
            return False
        self._native.npt_bind_engine.argtypes = [ctypes.c_void_p]
        if not self._native.npt_bind_engine(address):
            raise npucoll.PluginError(
                "the installed npucoll is older or newer than npucoll-tensorflow can work with; install the same "
                "version of both"
            )
        return True


@functools.lru_cache(maxsize=None)
def load() -> Library:
    """Return the operators, and register their gradients; the first call loads them."""
    importlib.import_module("npucoll_tensorflow.gradients")
    return Library(os.path.join(os.path.dirname(os.path.abspath(__file__)), "_ops.abi3.so"))
