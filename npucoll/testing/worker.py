"""The process of one rank in a test: takes functions from a connection, runs them, sends back what they return."""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import importlib.util
import os
import pickle
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any, Callable, Optional, Tuple

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


def main(fd: int, parent: int) -> None:
    """Serve calls from the connection ``fd`` until it says stop, or a function raises."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    connection = Connection(fd)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        if request is None:
            return
        if not _serve(connection, *request):
            # What an uncaught exception does to a script: the interpreter shuts down, with code 1.
            sys.exit(1)


def _serve(connection: Connection, module: str, file: Optional[str], qualname: str, arguments: bytes) -> bool:
    try:
        function = _find(module, file, qualname)
        reply: Tuple[Any, ...] = ("result", pickle.dumps(function(*pickle.loads(arguments))))
    except BaseException as error:
        text = traceback.format_exc()
        connection.send(("error", _pickled(error), type(error).__name__, text))
        _report(error)
        return False
    sys.stdout.flush()
    connection.send(reply)
    return True


def _report(error: BaseException) -> None:
    # The hook is what tells the other ranks in a script, so it has to run here too. It prints as well.
    if isinstance(error, Exception):
        sys.excepthook(type(error), error, error.__traceback__)


def _pickled(error: BaseException) -> Optional[bytes]:
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        return None
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
        return data
    except Exception:
        return None  # The text of the traceback goes anyway.


def _find(module: str, file: Optional[str], qualname: str) -> Callable[..., Any]:
    found: Any = _load(module, file)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


def _load(name: str, file: Optional[str]) -> Any:
    """Return the module ``name``, from ``file`` where the import system would find another one, or none."""
    if name == "__main__":
        if sys.modules.get("__npucoll_main__") is None:
            sys.modules["__main__"] = _load_file("__npucoll_main__", file)
        return sys.modules["__npucoll_main__"]
    if name in sys.modules:
        return sys.modules[name]
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if file is None or (spec is not None and spec.origin is not None and _same(spec.origin, file)):
        return importlib.import_module(name)
    return _load_file(name, file)


def _load_file(name: str, file: Optional[str]) -> Any:
    if file is None:
        raise ImportError(f"the module {name} has no file")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be loaded as the module {name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
