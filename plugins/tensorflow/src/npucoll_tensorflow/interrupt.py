"""Ctrl-C while a graph runs.

1. The main thread is inside TensorFlow then, which a Python signal handler cannot interrupt: it would wait for a
   collective that may take half an hour.
2. Python writes a byte to a *wakeup* descriptor for each signal, in whatever state the main thread is. A thread of ours
   reads it.
3. If the signal is Ctrl-C, nobody handles it in a way of his own, and a collective that was under way still is a moment
   later, the thread ends the communicators of then. The collective fails, TensorFlow returns, and Python raises
   KeyboardInterrupt.
4. In a session of TensorFlow 2.x the interrupt would hit while TensorFlow makes the exception of the failed collective,
   which it reports as a RuntimeError. So our handler lets that be made, and raises at the next function call.
5. The other ranks get PeerLost with the reason. An eager call needs none of this: the engine asks Python itself.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import weakref
from types import FrameType
from typing import TYPE_CHECKING, Any, Callable, Optional

import npucoll

if TYPE_CHECKING:
    from npucoll import Communicator

__all__ = ["Watcher"]

# Long enough for a collective that is about to end, and for Python to raise where it can by itself.
_GRACE_SECONDS = 0.2


class Watcher:
    """Waits for Ctrl-C, in a thread of its own."""

    def __init__(self, mark: Callable[[], None], pending: Callable[[], int]) -> None:
        """``pending`` says how many collectives that were under way at the last ``mark`` still are."""
        self._mark = mark
        self._pending = pending
        self._groups: weakref.WeakSet[Communicator] = weakref.WeakSet()
        self._started = False

    def add(self, group: Communicator) -> None:
        """End this communicator too."""
        self._groups.add(group)

    def start(self) -> None:
        """Start to watch; not outside the main thread, nor where somebody else (asyncio) uses the descriptor."""
        if self._started or threading.current_thread() is not threading.main_thread():
            return
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self._started = True
        if previous != -1:
            signal.set_wakeup_fd(previous)
            reader.close()
            writer.close()
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _on_interrupt)
        os.register_at_fork(after_in_child=lambda: _forget(writer))
        thread = threading.Thread(target=self._watch, args=(reader, writer), name="npucoll-interrupt", daemon=True)
        thread.start()

    def _watch(self, reader: socket.socket, _writer: socket.socket) -> None:
        while True:
            signals = reader.recv(64)
            if not signals:
                return
            if signal.SIGINT in signals and signal.getsignal(signal.SIGINT) in _OURS:
                self._interrupt()

    def _interrupt(self) -> None:
        self._mark()
        try:
            comms = [npucoll.communicator(), *self._groups]
        except npucoll.NotInitialized:
            return
        time.sleep(_GRACE_SECONDS)
        if not self._pending():
            return
        for comm in comms:
            if not comm.closed:
                comm.engine.abort(f"rank {comms[0].rank} was interrupted (Ctrl-C)")


def _makes_exception(frame: Optional[FrameType]) -> bool:
    return frame is not None and os.path.basename(frame.f_code.co_filename) == "errors_impl.py"


def _on_interrupt(number: int, frame: Optional[FrameType]) -> None:
    """Raise KeyboardInterrupt, as Python's own handler does, but never while TensorFlow makes an exception."""
    if _makes_exception(frame) and sys.gettrace() is None:
        sys.settrace(_raise_at_next_call)
    else:
        signal.default_int_handler(number, frame)


def _raise_at_next_call(frame: FrameType, _event: str, _argument: Any) -> None:
    if not _makes_exception(frame):
        sys.settrace(None)
        raise KeyboardInterrupt()


_OURS = (signal.default_int_handler, _on_interrupt)


def _forget(writer: socket.socket) -> None:
    """In a forked child: its signals are not the parent's."""
    current = signal.set_wakeup_fd(-1)
    if current not in (-1, writer.fileno()):
        signal.set_wakeup_fd(current)
    writer.close()
