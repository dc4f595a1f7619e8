"""``npucoll run``: start a script as several ranks on this machine."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import BinaryIO, Callable, Dict, List, Optional, Sequence, Tuple

from npucoll.cli.output import Console, Stream
from npucoll.cli.spawn import Spawner, find_program
from npucoll.cli.supervise import Rank, Supervisor
from npucoll.cli.watchdog import Watchdog
from npucoll.errors import ConfigError

SUMMARY = "start a script as several ranks on this machine"

_USAGE = "npucoll run -n N [--timeout S] [--output-dir D] script.py [arguments ...]"
_WITH_VALUE = ("-n", "--ranks", "--hosts", "--timeout", "--output-dir")
_FLAGS = ("-h", "--help")
_TABLE, _STATUS = "rank_table.json", "status.json"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.usage = _USAGE
    parser.epilog = (
        "A .py file runs under this Python; anything else is run as a command. All that follows it is its own. "
        "Lines of the ranks appear with [rank] in front. When a rank fails the others are ended, and its code is "
        "the exit code."
    )
    parser.add_argument("-n", "--ranks", metavar="N", required=True, help="how many ranks to start")
    parser.add_argument("--timeout", metavar="S", help="seconds that a collective may take (NPUCOLL_TIMEOUT)")
    parser.add_argument("--output-dir", metavar="D", help="also write what each rank prints to D/rank-N.log")
    parser.add_argument("--hosts", metavar="A:N,B:N", help="not available: no engine crosses hosts yet")


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Return the options before the script, and the script with all that follows as ``command``."""
    options, command = split(argv)
    arguments = parser.parse_args(options)
    arguments.command = command
    return arguments


def split(argv: Sequence[str]) -> Tuple[List[str], List[str]]:
    """Return our options, and the script with its own.

    Raises:
        ConfigError: an unknown option stands before the script; the text names the nearest known one.
    """
    words, options = list(argv), []  # type: List[str], List[str]
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        name, equals, _ = word.partition("=")
        if word in _FLAGS:
            options.append(word)
        elif word in _WITH_VALUE:
            options += [word, *words[:1]]
            del words[:1]
        elif name.startswith("--") and equals and name in _WITH_VALUE:
            options.append(word)
        elif word.startswith("-n") and word[2:].isdigit():
            options += ["-n", word[2:]]
        else:
            raise ConfigError(f"unknown option {word!r}{_nearest(name)}; options of the script come after it")
    return options, words


def run(arguments: argparse.Namespace) -> int:
    """Start the ranks, watch over them, and return the job's exit code."""
    size = _number_of_ranks(arguments.ranks)
    if arguments.hosts is not None:
        raise ConfigError(
            "--hosts needs an engine that crosses hosts, and none is installed: npucoll run starts the ranks on this "
            "machine only"
        )
    command = _command(arguments.command)
    timeout = _timeout(arguments.timeout)
    logs = _open_logs(arguments.output_dir, size)
    _open_standard_streams()
    job = os.urandom(16).hex()
    files = _JobFiles(job)
    watchdog = Watchdog(job, files.remove)
    try:
        files.create(size)
        console, spawner = Console(), Spawner()
        with Supervisor(job, console, watchdog, files.status) as supervisor:
            for rank in range(size):
                env = _environment(rank, size, job, files, timeout)
                process = spawner.start(command, env, use_stdin=rank == 0)
                stdout = Stream(rank, process.stdout, console, console.stdout, logs[rank])
                stderr = Stream(rank, process.stderr, console, console.stderr, logs[rank])
                supervisor.add(Rank(rank, process, stdout, stderr))
            return supervisor.wait()
    finally:
        files.remove()
        watchdog.dismiss()


class _JobFiles:
    """The files of one job, in a directory of their own that only this user can read.

    Their names follow from the job's, so that the watchdog, which starts before they exist, can remove them too.
    """

    def __init__(self, job: str) -> None:
        self._places = [os.path.join(place, f"npucoll-{job}") for place in _temporary_places()]
        self.table = ""
        self.status = ""

    def create(self, size: int) -> None:
        directory = self._make_directory()
        self.table = os.path.join(directory, _TABLE)
        self.status = os.path.join(directory, _STATUS)
        devices = [{"device_id": str(r), "device_ip": "127.0.0.1", "rank_id": str(r)} for r in range(size)]
        server = {"server_id": "127.0.0.1", "device": devices}
        table = {"status": "completed", "version": "1.0", "server_count": "1", "server_list": [server]}
        for path, content in ((self.table, table), (self.status, {})):
            with open(path, "w", encoding="utf-8") as file:
                json.dump(content, file)

    def remove(self) -> None:
        for directory in self._places:
            for name in (_TABLE, _STATUS, _STATUS + ".new"):
                _ignore_errors(os.unlink, os.path.join(directory, name))
            _ignore_errors(os.rmdir, directory)

    def _make_directory(self) -> str:
        for directory in self._places:
            try:
                os.mkdir(directory, 0o700)
                return directory
            except OSError:
                continue
        raise ConfigError("there is no directory for the job's files: set TMPDIR to one that can be written")


def _temporary_places() -> List[str]:
    return [place for place in (os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm") if place]


def _ignore_errors(action: Callable[[str], None], path: str) -> None:
    try:
        action(path)
    except OSError:
        pass


def _open_standard_streams() -> None:
    # Started with one of them closed, a pipe of ours would get its number and be taken for it.
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _environment(rank: int, size: int, job: str, files: _JobFiles, timeout: Optional[str]) -> Dict[str, str]:
    env = dict(os.environ)
    # Otherwise a rank's lines appear late, and its last words not at all where it dies.
    env.setdefault("PYTHONUNBUFFERED", "1")
    ranks, sizes = str(rank), str(size)
    env.update(
        NPUCOLL_RANK=ranks,
        NPUCOLL_SIZE=sizes,
        NPUCOLL_LOCAL_RANK=ranks,
        NPUCOLL_LOCAL_SIZE=sizes,
        NPUCOLL_NODE_RANK="0",
        NPUCOLL_NODE_COUNT="1",
        NPUCOLL_JOB=job,
        NPUCOLL_STATUS_FILE=files.status,
        RANK_ID=ranks,
        RANK_SIZE=sizes,
        DEVICE_ID=ranks,
        ASCEND_DEVICE_ID=ranks,
        DEVICE_INDEX=ranks,
        RANK_INDEX="0",
        JOB_ID=job,
        RANK_TABLE_FILE=files.table,
        RANK=ranks,
        WORLD_SIZE=sizes,
        LOCAL_RANK=ranks,
        LOCAL_WORLD_SIZE=sizes,
    )
    if timeout is not None:
        env["NPUCOLL_TIMEOUT"] = timeout
    return env


def _command(words: Sequence[str]) -> List[str]:
    if not words:
        raise ConfigError(f"nothing to run: name a script after the options\nusage: {_USAGE}")
    if words[0].endswith(".py"):
        if not os.path.isfile(words[0]):
            raise ConfigError(f"there is no script {words[0]!r} in {os.getcwd()}")
        return [sys.executable, "-u", *words]
    find_program(words[0])
    return list(words)


def _number_of_ranks(text: str) -> int:
    try:
        size = int(text)
    except ValueError:
        raise ConfigError(f"-n {text}: the number of ranks is a whole number, 1 or more") from None
    if size < 1:
        raise ConfigError(f"-n {size}: the number of ranks is 1 or more")
    return size


def _timeout(text: Optional[str]) -> Optional[str]:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"--timeout {text}: the timeout is a number of seconds above 0")
    return text


def _open_logs(directory: Optional[str], size: int) -> List[Optional[BinaryIO]]:
    if directory is None:
        return [None] * size
    try:
        os.makedirs(directory, exist_ok=True)
        return [open(os.path.join(directory, f"rank-{rank}.log"), "wb") for rank in range(size)]
    except OSError as error:
        raise ConfigError(f"--output-dir {directory}: {error.filename or directory}: {error.strerror}") from error


def _nearest(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, _WITH_VALUE, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""
