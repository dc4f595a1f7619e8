"""What the launcher makes of the ranks' output: pipes in, two files out."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, Iterator, List, Optional

import pytest

from npucoll.cli import output
from npucoll.cli.output import Console, Stream


class Job:
    """Some ranks' stdout streams whose console is a file."""

    def __init__(self, ranks: int, console: int, log: Optional[Any] = None) -> None:
        self._console_file = console
        self.console = Console(console, console)
        self.writers: List[int] = []
        self.streams: List[Stream] = []
        for rank in range(ranks):
            read_end, write_end = os.pipe()
            self.writers.append(write_end)
            self.streams.append(Stream(rank, read_end, self.console, console, log))

    def say(self, rank: int, data: bytes) -> None:
        os.write(self.writers[rank], data)
        assert self.streams[rank].read()

    def end(self, rank: int) -> None:
        os.close(self.writers[rank])
        assert not self.streams[rank].read()

    def printed(self) -> bytes:
        return os.pread(self._console_file, 1 << 22, 0)


@pytest.fixture
def console(tmp_path: Path) -> Iterator[int]:
    fd = os.open(str(tmp_path / "console"), os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def test_lines_get_their_rank(console: int) -> None:
    job = Job(2, console)
    job.say(0, b"one\ntwo\n")
    job.say(1, b"\n")
    job.say(0, b"\xff\x00binary\n")
    assert job.printed() == b"[0] one\n[0] two\n[1] \n[0] \xff\x00binary\n"


def test_a_line_in_pieces_is_printed_whole(console: int) -> None:
    job = Job(2, console)
    job.say(0, b"fir")
    job.say(1, b"other\n")
    job.say(0, b"st\nsec")
    job.end(0)
    assert job.printed() == b"[1] other\n[0] first\n[0] sec\n"


def test_a_held_line_appears_after_a_while_and_may_go_on(console: int) -> None:
    job = Job(2, console)
    job.say(0, b"loading ")
    assert job.streams[0].due is not None
    assert job.printed() == b""
    job.streams[0].flush()
    assert job.streams[0].due is None
    job.say(0, b"done\n")
    assert job.printed() == b"[0] loading done\n"


def test_another_rank_does_not_cut_into_an_open_line(console: int) -> None:
    job = Job(2, console)
    job.say(0, b"loading ")
    job.streams[0].flush()
    job.say(1, b"hello\n")
    job.say(0, b"done\n")
    assert job.printed() == b"[0] loading \n[1] hello\n[0] done\n"


def test_the_launchers_own_words_start_a_line(console: int) -> None:
    job = Job(1, console)
    job.say(0, b"loading ")
    job.streams[0].flush()
    job.console.say("npucoll: news")
    assert job.printed() == b"[0] loading \nnpucoll: news\n"


def test_a_progress_bar_keeps_its_rank_and_all_its_bytes(console: int) -> None:
    job = Job(1, console)
    job.say(0, b"10%\r50%\r")
    job.streams[0].flush()
    job.say(0, b"100%\r\ndone\n")
    assert job.printed() == b"[0] 10%\r[0] 50%\r[0] 100%\r\n[0] done\n"


def test_windows_line_ends_stay(console: int) -> None:
    job = Job(1, console)
    job.say(0, b"a\r\nb\r")
    job.streams[0].flush()
    job.say(0, b"\nc\r\n")
    assert job.printed() == b"[0] a\r\n[0] b\r\n[0] c\r\n"


def test_a_very_long_line_is_not_held(console: int) -> None:
    job = Job(1, console)
    line = b"x" * 200_000 + b"\n"
    rest = line
    while rest:
        job.say(0, rest[:30_000])
        rest = rest[30_000:]
        assert len(job.streams[0]._pending) <= output._LONGEST
    assert job.printed() == b"[0] " + line


def test_the_ranks_file_has_the_bytes_as_they_came(console: int) -> None:
    log = io.BytesIO()
    job = Job(1, console, log)
    job.say(0, b"50%\r100%\nno end")
    job.end(0)
    assert log.getvalue() == b"50%\r100%\nno end"


def test_last_words(console: int) -> None:
    job = Job(1, console)
    job.say(0, b"\n".join(b"line %d" % n for n in range(5000)) + b"\n10%\r99%\n\n\n")
    assert job.streams[0].last_words(3) == ["line 4998", "line 4999", "99%"]
    assert Job(1, console).streams[0].last_words(3) == []


def test_order_within_a_stream_holds_for_any_pieces(console: int) -> None:
    job = Job(1, console)
    text = b"".join(b"%d\n" % n for n in range(3000))
    step = 0
    rest = text
    while rest:
        step = step % 97 + 1
        job.say(0, rest[:step])
        if step % 5 == 0:
            job.streams[0].flush()
        rest = rest[step:]
    assert job.printed() == b"".join(b"[0] %d\n" % n for n in range(3000))
