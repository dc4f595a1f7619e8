"""The command ``npucoll``. Each subcommand is a module with SUMMARY, ``configure(parser)`` and ``run(arguments)``.

A module that takes apart its command line itself has ``parse(parser, argv)`` too. Only the module of the command that
was asked for is imported: the launcher must start fast.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import importlib.util
import sys
from typing import List, Optional, Sequence

from npucoll.errors import NpucollError

__all__ = ["COMMANDS", "main"]

COMMANDS = ("run", "doctor", "plugins", "bench")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one command and return its exit code. Errors of npucoll's own are one line, not a traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except NpucollError as error:
        print(f"npucoll: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Who reads us has had enough; the interpreter would complain once more while it flushes at exit.
        sys.stdout = None
        return 141


def _dispatch(words: List[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        from npucoll import __version__

        print(f"npucoll {__version__}")
        return 0
    name = words[0]
    if name not in _available():
        near = difflib.get_close_matches(name, _available(), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        print(f"npucoll: error: no command {name!r}{hint}\n\n{_overview()}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"npucoll.cli.{name}")
    parser = argparse.ArgumentParser(prog=f"npucoll {name}", description=module.SUMMARY)
    module.configure(parser)
    parse = getattr(module, "parse", None)
    arguments = parser.parse_args(words[1:]) if parse is None else parse(parser, words[1:])
    return int(module.run(arguments))


def _available() -> List[str]:
    return [name for name in COMMANDS if importlib.util.find_spec(f"npucoll.cli.{name}") is not None]


def _overview() -> str:
    lines = ["usage: npucoll COMMAND ...", "", "commands (npucoll COMMAND --help says more):"]
    for name in _available():
        lines.append(f"  {name:<10} {importlib.import_module(f'npucoll.cli.{name}').SUMMARY}")
    return "\n".join(lines)
