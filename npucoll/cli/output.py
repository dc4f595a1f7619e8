"""What the ranks print: whole lines with the rank in front, one file a rank, and each rank's last words."""

from __future__ import annotations

import os
import re
import select
import time
from typing import BinaryIO, Dict, List, Optional

__all__ = ["Console", "Stream"]

_CHUNK = 1 << 16
_LONGEST = 1 << 16
_TAIL = 1 << 14
_HOLD_SECONDS = 0.5


class Console:
    """The launcher's own stdout and stderr, where lines of all ranks appear without cutting into each other."""

    def __init__(self, stdout: int = 1, stderr: int = 2) -> None:
        # Where both are one terminal or file, a line that is open on one of them is open on both.
        self._key = {stdout: stdout, stderr: stdout if _same_file(stdout, stderr) else stderr}
        self._open: Dict[int, Optional[Stream]] = {}
        self.stdout = stdout
        self.stderr = stderr

    def write(self, stream: Stream, data: bytes) -> None:
        """Print ``data`` of one rank; it may end in the middle of a line, which then stays open for more."""
        key = self._key[stream.fd]
        before = self._open.get(key)
        start = b"" if before is stream else stream.prefix if before is None else b"\n" + stream.prefix
        ended = data.endswith(b"\n")
        body = data[:-1] if ended else data
        body = body.replace(b"\n", b"\n" + stream.prefix)
        if b"\r" in body:
            # A progress bar goes back to the start of its line: there the rank has to stand again.
            body = re.sub(rb"\r(?!\n|\Z)", lambda _: b"\r" + stream.prefix, body)
        self._open[key] = None if ended else stream
        _write_all(stream.fd, start + body + (b"\n" if ended else b""))

    def close_line(self, stream: Stream) -> None:
        """End the line that ``stream`` has left open, if it is still the last."""
        if self._open.get(self._key[stream.fd]) is stream:
            self._open[self._key[stream.fd]] = None
            _write_all(stream.fd, b"\n")

    def say(self, text: str) -> None:
        """Print lines of the launcher itself, on stderr."""
        key = self._key[self.stderr]
        start = b"" if self._open.get(key) is None else b"\n"
        self._open[key] = None
        _write_all(self.stderr, start + text.encode("utf-8", "replace") + b"\n")


class Stream:
    """One stream of one rank, from the pipe to the console and to the rank's file.

    Whole lines are printed at once. A line that is not finished is held for half a second, because most are finished by
    then; so are progress bars, which rewrite one line many times a second.
    """

    def __init__(self, rank: int, pipe: int, console: Console, fd: int, file: Optional[BinaryIO]) -> None:
        self.prefix = f"[{rank}] ".encode()
        self.pipe = pipe
        self.fd = fd
        self._console = console
        self._file = file
        self._pending = b""
        self._since = 0.0
        self._tail = b""
        os.set_blocking(pipe, False)

    @property
    def due(self) -> Optional[float]:
        """When the unfinished line has been held long enough; None where there is none."""
        return self._since + _HOLD_SECONDS if self._pending else None

    def read(self) -> bool:
        """Take what has arrived; returns False at the end."""
        try:
            data = os.read(self.pipe, _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            self.finish()
            return False
        if self._file is not None:
            self._file.write(data)
            self._file.flush()
        self._tail = (self._tail + data)[-_TAIL:]
        if not self._pending:
            self._since = time.monotonic()
        self._pending += data
        cut = self._pending.rfind(b"\n") + 1
        if cut:
            self._print(cut)
            self._since = time.monotonic()
        if len(self._pending) > _LONGEST:
            self.flush()
        return True

    def flush(self) -> None:
        """Print the unfinished line as far as it goes, but not a carriage return that a newline may follow."""
        self._print(len(self._pending) - (1 if self._pending.endswith(b"\r") else 0))

    def finish(self) -> None:
        """Print all that is left and end the line."""
        self._print(len(self._pending))
        self._console.close_line(self)

    def has_said(self, word: bytes) -> bool:
        """Return whether ``word`` occurs in the last few pages of what was printed."""
        return word in self._tail

    def last_words(self, lines: int) -> List[str]:
        """Return the last lines that were printed, without blank ones at the end."""
        text = self._tail.decode("utf-8", "replace").replace("\r\n", "\n")
        return [line.rsplit("\r", 1)[-1] for line in text.rstrip().split("\n")][-lines:] if text.strip() else []

    def _print(self, count: int) -> None:
        if count > 0:
            data, self._pending = self._pending[:count], self._pending[count:]
            self._console.write(self, data)


def _same_file(one: int, other: int) -> bool:
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:
        return False


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])
