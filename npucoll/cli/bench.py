"""``npucoll bench``: measure the collectives on this machine, and check every result.

1. Started as one process, it checks what was asked for and starts the ranks through the launcher, each of which is this
   command again. Rank 0 gets two open files: the command's standard output, where its table appears as it grows, and a
   nameless one for the figures, which the first process then writes where they are wanted.
2. Started by a launcher as one of several ranks, it measures in those, and rank 0 writes the figures.

Numpy and the engine are loaded in the ranks only: the launcher forks, and has no threads.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import os
import sys
import tempfile
from typing import Any, Dict, List, NoReturn, Optional, Sequence

from npucoll.bench import options as words
from npucoll.bench.kinds import ITEM_SIZES, KINDS, OPS
from npucoll.bench.options import Options
from npucoll.errors import ConfigError

SUMMARY = "measure the collectives on this machine and check their results"

_DEFAULT_RANKS = 2
_OURS = "npucoll bench"
_OUTPUT_CLOSED = 141
# The arrays of one size that a rank holds at a time: input, output, and both sides of the memcpy.
_ARRAYS = 4

_DESCRIPTION = """Measures collectives on several ranks, as nccl-tests does: fresh data in every iteration, every result
checked outside the timed part, and a memcpy of the same size by all ranks at once, in turn with the collective,
for comparison."""

_EPILOG = """what SIZE is, in bytes:
{sizes}
A size is rounded down to whole elements, the same number for each rank. count x size of an element = size.

algbw is size / median time; busbw is algbw x 2(n-1)/n for allreduce, x (n-1)/n where n ranks share the size, x 1
for the others; memcpy is the time of a memcpy of size bytes as a share of the collective's.

The exit code is 1 where a result was wrong. Under mpiexec, srun, torchrun or npucoll run it measures in the ranks
that these have started."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG.format(sizes="\n".join(f"  {name:<15} {kind.size}" for name, kind in KINDS.items()))
    add = parser.add_argument
    add("-n", "--ranks", metavar="N", help=f"how many ranks to start (default {_DEFAULT_RANKS})")
    add("--collective", metavar="NAMES", default="allreduce", help=f"comma list, or all: {', '.join(KINDS)}")
    add("--dtype", metavar="NAMES", default="float32", help=f"comma list: {', '.join(ITEM_SIZES)}")
    add("--op", default="sum", help=f"of the reductions: {', '.join(OPS)} (default sum)")
    add("--root", metavar="R", default="0", help="of broadcast, reduce, gather and scatter (default 0)")
    add("--min", metavar="SIZE", help="the smallest size: bytes, or with K, M, G for 1024, ... (default 4)")
    add("--max", metavar="SIZE", help="the largest size (default 64M)")
    add("--factor", metavar="F", default="4", help="from one size to the next (default 4)")
    add("--sizes", metavar="SIZES", help="these sizes instead, such as 4,64K,1M")
    add("--iters", metavar="N", default="20", help="timed iterations (default 20)")
    add("--warmup", metavar="N", default="5", help="iterations before those (default 5)")
    add("--in-place", action="store_true", help="the result takes the place of the input, where that is possible")
    add("--plan", action="store_true", help="run prepared plans (comm.plan) instead of single calls")
    add("--json", metavar="FILE", nargs="?", const="-", help="write the figures to FILE; without it print them only")
    add("--plot", metavar="FILE", help="draw time and bus bandwidth: FILE.html, or FILE.png (needs matplotlib)")
    add("--hand-over", default=None, help=argparse.SUPPRESS)


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Return the options; a mistake is one line, not the usage."""

    def refuse(message: str) -> NoReturn:
        known = [name for action in parser._actions for name in action.option_strings]
        wrong = next((word for word in message.split() if word.startswith("--")), "")
        near = difflib.get_close_matches(wrong.partition("=")[0], known, n=1)
        hint = f"; did you mean {near[0]}?" if near and message.startswith("unrecognized") else ""
        raise ConfigError(f"{message}{hint}; npucoll bench --help lists the options")

    parser.error = refuse  # type: ignore[method-assign]  # argparse has no other way before Python 3.9
    arguments = parser.parse_args(list(argv))
    arguments.words = list(argv)
    return arguments


def run(arguments: argparse.Namespace) -> int:
    """Measure. Returns 1 where a result was wrong, else 0; another code where the ranks failed."""
    options = _options(arguments)
    if arguments.hand_over is not None:
        printed, figures = (int(fd) for fd in arguments.hand_over.split(","))
        return _be_rank(options, _OURS, printed if printed >= 0 else None, figures)
    if arguments.json not in (None, "-"):
        words.check_writable("--json", arguments.json)
    if arguments.plot is not None:
        words.plot_format(arguments.plot)
        if options.collectives == ("barrier",):
            raise ConfigError("--plot: a barrier has no sizes to draw")
    from npucoll.lifecycle import runtime

    identity = runtime.identity()
    launched, asked = identity.size > 1, words.whole("-n", arguments.ranks or str(_DEFAULT_RANKS), 1)
    if launched and arguments.ranks is not None and asked != identity.size:
        raise ConfigError(f"-n {asked}: this is rank {identity.rank} of {identity.size} already ({identity.detail})")
    ranks = identity.size if launched else asked
    options.check_ranks(ranks)
    _check_memory(options, identity.local_size if launched else ranks)
    _open_standard_streams()
    with tempfile.TemporaryFile() as figures_file:
        if launched:
            table = 1 if arguments.json != "-" else None
            code = _be_rank(options, identity.source, table, figures_file.fileno())
            if identity.rank != 0:
                return code
        else:
            code = _start_ranks(arguments, ranks, figures_file.fileno())
        figures_file.seek(0)
        content = figures_file.read()
    if not content:
        return code or 1  # The ranks have said why.
    report = json.loads(content)
    if report.pop("output_closed"):
        return _OUTPUT_CLOSED
    _write(arguments, report)
    return code or int(report["errors"] > 0)


def _options(arguments: argparse.Namespace) -> Options:
    return Options(
        collectives=words.collectives(arguments.collective, arguments.in_place, arguments.plan),
        dtypes=words.dtypes(arguments.dtype),
        sizes=words.sizes(arguments.sizes, arguments.min, arguments.max, arguments.factor),
        op=words.op(arguments.op),
        root=words.whole("--root", arguments.root, 0),
        iterations=words.whole("--iters", arguments.iters, 1),
        warmup=words.whole("--warmup", arguments.warmup, 0),
        in_place=arguments.in_place,
        plan=arguments.plan,
    )


def _check_memory(options: Options, ranks: int) -> None:
    from npucoll.cli import machine

    largest, available = max(options.sizes), machine.facts()["memory_available"]
    if available is not None and largest * _ARRAYS * ranks > available:
        raise ConfigError(
            f"{words.human_size(largest)} bytes need {_ARRAYS} times that on each of {ranks} ranks: "
            f"{largest * _ARRAYS * ranks >> 20} MiB, but {available >> 20} MiB are available; choose a smaller --max"
        )


# -- starting the ranks


def _start_ranks(arguments: argparse.Namespace, ranks: int, figures: int) -> int:
    from npucoll.cli.run import run as launch

    # Nothing is inherited unless that is said; the copy lets rank 0 write past the launcher's "[0] ".
    table = os.dup(1) if arguments.json != "-" else -1
    for fd in (table, figures):
        if fd >= 0:
            os.set_inheritable(fd, True)
    try:
        command = [*_this_command(), "bench", *arguments.words, f"--hand-over={table},{figures}"]
        return launch(argparse.Namespace(ranks=str(ranks), hosts=None, timeout=None, output_dir=None, command=command))
    finally:
        if table >= 0:
            os.close(table)


def _open_standard_streams() -> None:
    # Started with one of them closed, a file of ours would get its number and be taken for it.
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= 2:
        fd = os.open(os.devnull, os.O_RDWR)
    os.close(fd)


def _this_command() -> List[str]:
    # This installation, and not one that happens to lie in the directory where the command was given.
    place = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = (
        "import sys; "
        f"sys.path[:] = [{place!r}, *filter(None, sys.path)]; "
        "from npucoll.cli import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    return [sys.executable, "-c", code]


# -- being one of them


def _be_rank(options: Options, launcher: str, table: Optional[int], figures: int) -> int:
    """Measure; on rank 0 print the table to the descriptor ``table`` and write the figures to ``figures``."""
    import npucoll
    from npucoll.bench import report as texts
    from npucoll.bench.measure import Row, measure
    from npucoll.cli import machine

    comm = npucoll.init()
    options.check_ranks(comm.size)
    report = texts.describe(options, comm.size, comm.engine.name, launcher, machine.facts())
    printed = _Table(table if comm.rank == 0 else None)
    printed.print(texts.heading(report))
    last = ""

    def tell(row: Row) -> bool:
        nonlocal last
        head = texts.columns(row.collective) if row.collective != last else []
        last = row.collective
        return printed.print([*head, texts.line(dataclasses.asdict(row))])

    rows: List[Dict[str, Any]] = [dataclasses.asdict(row) for row in measure(comm, options, tell)]
    printed.print(["#", texts.closing(rows)])
    errors = sum(row["errors"] for row in rows)
    report.update(rows=rows, errors=errors, output_closed=printed.closed)
    npucoll.shutdown()
    if comm.rank == 0:
        with os.fdopen(os.dup(figures), "wb") as file:
            file.write(json.dumps(report).encode())
    # Ranks of ours end well: who started them tells of errors, and the launcher would take a code for a failure.
    return int(errors > 0) if launcher != _OURS else 0


class _Table:
    """Where rank 0 prints; on other ranks nothing is."""

    def __init__(self, fd: Optional[int]) -> None:
        self._fd = fd
        self.closed = False

    def print(self, lines: Sequence[str]) -> bool:
        """Print lines and return whether anybody still reads."""
        if self._fd is None or self.closed:
            return not self.closed
        data = memoryview("".join(line + "\n" for line in lines).encode())
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except BrokenPipeError:
            self.closed = True
        return not self.closed


def _write(arguments: argparse.Namespace, report: Dict[str, Any]) -> None:
    if arguments.json == "-":
        print(json.dumps(report, indent=2), flush=True)
    elif arguments.json is not None:
        with open(arguments.json, "w", encoding="utf-8") as file:
            file.write(json.dumps(report, indent=2) + "\n")
    if arguments.plot is not None:
        from npucoll.bench import plot

        plot.draw(report, arguments.plot, words.plot_format(arguments.plot))
