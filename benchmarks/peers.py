"""npucoll and its peers on this machine: every peer in the same processes as npucoll, in turn, in one run.

    python benchmarks/peers.py                          # all; the first time it installs the peers
    python benchmarks/peers.py --quick --peers mpich    # less than a minute
    python benchmarks/peers.py --docs                   # also writes the tables and the picture of docs/explanation

Each peer is installed into an environment of its own below .venv/benchmarks when it is measured for the first time.
npucoll is that of this checkout, which must be built (make dev). docs/explanation/peers.md says what is measured, and
how.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from peers import report
from peers.catalogue import PEERS
from peers.environments import CHECKOUT, CommandFailed, prepared
from peers.options import COLLECTIVES
from peers.run import needed, run

_QUICK_SIZES = (4, 64 << 10, 1 << 20)
_SECONDS, _QUICK_SECONDS = 2.5, 0.4
_LIMIT = 240.0
_DTYPES = "dtypes"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="allreduce on the first number of ranks, few rounds")
    parser.add_argument("--peers", default=",".join(PEERS), help="a comma list of %(default)s; or none")
    parser.add_argument(
        "--ranks",
        default="2,8",
        help="numbers of processes (default %(default)s); what is no allreduce is measured for the first alone",
    )
    parser.add_argument(
        "--collective", default=None, help=f"a comma list of {','.join(COLLECTIVES)},{_DTYPES} (default: all)"
    )
    parser.add_argument("--sizes", help="a comma list of sizes, such as 4,64K,1M")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--read", metavar="FILE", help="show the figures of an earlier --json instead of measuring")
    parser.add_argument("--docs", action="store_true", help="write the table and the picture of docs/explanation")
    parser.add_argument("--rank", metavar="JOB", help=argparse.SUPPRESS)
    return parser.parse_args()


def _chosen(option: str, text: str, known: list[str]) -> list[str]:
    names = [name for name in text.split(",") if name and name != "none"]
    for name in names:
        if name not in known:
            raise SystemExit(f"{option} {name}: unknown; known are {', '.join(known)}")
    return names


def _measure(arguments: argparse.Namespace) -> dict[str, Any]:
    from npucoll.bench.options import parse_size

    needed()
    names = _chosen("--peers", arguments.peers, list(PEERS))
    default = "allreduce" if arguments.quick else ",".join([*COLLECTIVES, _DTYPES])
    collectives = _chosen("--collective", arguments.collective or default, [*COLLECTIVES, _DTYPES])
    sizes = _QUICK_SIZES if arguments.quick else ()
    if arguments.sizes:
        sizes = tuple(parse_size("--sizes", word) for word in arguments.sizes.split(","))
    counts = [int(word) for word in arguments.ranks.split(",")][: 1 if arguments.quick else None]
    seconds = _QUICK_SECONDS if arguments.quick else _SECONDS
    work = {name: sizes or COLLECTIVES[name] for name in collectives if name != _DTYPES}

    found: dict[str, Any] = {"machine": report.machine(), "absent": {}, "runs": []}
    for name in names if work else []:
        peer = PEERS[name]
        try:
            venv = prepared(name, peer=peer)
        except CommandFailed as error:
            found["absent"][name] = str(error)
            continue
        for ranks in counts:
            for variant, title in peer.variants.items():
                mine = {key: value for key, value in work.items() if key == "allreduce" or ranks == counts[0]}
                if mine:
                    print(f"{peer.title} {title}, {ranks} ranks …", file=sys.stderr, flush=True)
                    found["runs"].append(run(venv, peer, variant, ranks, mine, seconds, _LIMIT))
    if _DTYPES in collectives:
        print(f"dtypes, {counts[0]} ranks …", file=sys.stderr, flush=True)
        found["runs"].append(run(prepared("npucoll"), None, "", counts[0], {}, 2 * seconds, _LIMIT))
    return found


def main() -> int:
    """Start the ranks, or be one of them."""
    arguments = _arguments()
    if arguments.rank:
        from peers.rank import be_rank

        be_rank(arguments.rank)
        return 0
    sys.path.insert(0, str(CHECKOUT))
    try:
        found = json.loads(Path(arguments.read).read_text()) if arguments.read else _measure(arguments)
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(report.text(found))
        if arguments.docs:
            report.write_page(found)
    except CommandFailed as error:
        print(error, file=sys.stderr)
        return 2
    wrong = sum(row["errors"] for one in found["runs"] for row in one["rows"])
    if wrong:
        print(f"{wrong} wrong elements", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
