"""The figures as tables, in Markdown: for the terminal, and for the page in docs/."""

from __future__ import annotations

import json
import os
import platform
import statistics
from pathlib import Path
from typing import Any, Iterable

from peers.catalogue import PEERS
from peers.environments import CHECKOUT, prepared

__all__ = ["machine", "text", "write_page"]

Found = dict[str, Any]

_OURS = {"npucoll": "npucoll", "plan": "plan", "shared": "shared"}
_THEIRS = ("peer", "prepared")
_PAGE = CHECKOUT / "docs" / "explanation" / "peers.md"
_PICTURE = CHECKOUT / "docs" / "explanation" / "peers.svg"
_BEGIN, _END = "<!-- figures: python benchmarks/peers.py --docs -->", "<!-- end of figures -->"


def machine() -> Found:
    """Return what the figures were measured on."""
    from npucoll.bench import report as bench

    return {
        "processor": bench._processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def text(found: Found) -> str:
    """Return all tables."""
    parts = [_heading(found)]
    for ranks in sorted({run["ranks"] for run in found["runs"] if run["peer"]}):
        runs = [run for run in found["runs"] if run["peer"] and run["ranks"] == ranks]
        for collective in dict.fromkeys(row["collective"] for run in runs for row in run["rows"]):
            parts.append(f"### {collective}, {ranks} ranks\n\n{_comparison(runs, collective)}")
            if collective == "allreduce":
                parts.append(f"Every way to run a peer, {ranks} ranks, µs:\n\n{_variants(runs)}")
    parts += [_dtypes(run["rows"][0]) for run in found["runs"] if not run["peer"] and run["rows"]]
    return "\n\n".join(part for part in [*parts, _notes(found)] if part)


def write_page(found: Found) -> None:
    """Write the tables into the page, between its markers, and the picture beside it."""
    page = _PAGE.read_text(encoding="utf-8")
    before, rest = page.split(_BEGIN)
    after = rest.split(_END)[1]
    _PAGE.write_text(f"{before}{_BEGIN}\n\n{text(found)}\n\n{_END}{after}", encoding="utf-8")
    # matplotlib has an environment of its own, so that no peer's has more in it than the peer needs.
    venv = prepared("plot", "matplotlib")
    figures = venv.path / "figures.json"
    figures.write_text(json.dumps(found), encoding="utf-8")
    venv.run([venv.python, str(Path(__file__).with_name("plot.py")), str(figures), str(_PICTURE)])


def _heading(found: Found) -> str:
    facts = found["machine"]
    versions = list(dict.fromkeys(version for run in found["runs"] for version in run["versions"]))
    return f"{facts['processor']}, {facts['cores']} cores, Python {facts['python']}: {'; '.join(versions)}."


def _comparison(runs: list[Found], collective: str) -> str:
    ours = [name for name in _OURS if collective == "allreduce" or name == "npucoll"]
    peers = [name for name in PEERS if any(run["peer"] == name for run in runs)]
    head = ["size", "memcpy", *(_OURS[name] for name in ours), *(PEERS[name].title for name in peers)]
    head += [f"{_OURS[name]} / fastest peer" for name in ours]
    head += [f"{_OURS[name]} / memcpy" for name in ours if name != "plan"]
    lines = []
    for size, rows in _by_size(runs, collective).items():
        figures = [row["figures"] for _, row in rows]
        cells = [_size(size), *(_us([one[name]["us"] for one in figures]) for name in ("memcpy", *ours))]
        for peer in peers:
            times = [_best(row["figures"]) for run, row in rows if run["peer"] == peer]
            cells.append(_us([min((time for time in times if time is not None), default=None)]))
        cells += [_ratio(max(_over_peers(rows, name), default=None)) for name in ours]
        over_copy = [[one[name]["us"] / one["memcpy"]["us"] for one in figures] for name in ours if name != "plan"]
        cells += [_ratio(statistics.median(one)) for one in over_copy]
        lines.append(cells)
    return _table(head, lines)


def _over_peers(rows: list[tuple[Found, Found]], name: str) -> list[float]:
    """Return, for each run, our time over that of its peer: of the two that were measured in turn."""
    best = [(row["figures"][name]["us"], _best(row["figures"])) for _, row in rows]
    return [us / peer for us, peer in best if peer is not None]


def _best(figures: Found) -> float | None:
    return min((figures[name]["us"] for name in _THEIRS if name in figures), default=None)


def _variants(runs: list[Found]) -> str:
    sizes = list(_by_size(runs, "allreduce"))
    lines = []
    for run in runs:
        peer = PEERS[run["peer"]]
        for form, title in (("peer", ""), ("prepared", "persistent")):
            found = {row["wanted"]: row["figures"].get(form) for row in run["rows"] if row["collective"] == "allreduce"}
            if any(found.values()):
                name = ", ".join(word for word in (peer.title, peer.variants[run["variant"]], title) if word)
                lines.append([name, *(_us([(found.get(size) or {}).get("us")]) for size in sizes)])
    return _table(["", *(_size(size) for size in sizes)], lines)


def _dtypes(row: Found) -> str:
    figures = {name: one["us"] for name, one in row["figures"].items()}
    first = next(iter(figures))
    head = ["dtype", "µs", f"time / {first}"]
    lines = [[name, _us([us]), _ratio(us / figures[first])] for name, us in figures.items()]
    return f"### npucoll alone: allreduce of {_size(row['wanted'])} in every dtype\n\n{_table(head, lines)}"


def _notes(found: Found) -> str:
    notes = [
        f"- {PEERS[name].title} is not measured: it could not be installed ({why})."
        for name, why in found["absent"].items()
    ]
    for run in found["runs"]:
        title = PEERS[run["peer"]].title if run["peer"] else "npucoll alone"
        variant = PEERS[run["peer"]].variants[run["variant"]] if run["peer"] else ""
        if run["failure"]:
            where = ", ".join(word for word in (title, variant, f"{run['ranks']} ranks") if word)
            notes.append(f"- {where}: {run['failure']}; the figures are those until then.")
    return "\n".join(notes)


def _by_size(runs: list[Found], collective: str) -> dict[int, list[tuple[Found, Found]]]:
    found: dict[int, list[tuple[Found, Found]]] = {}
    for run in runs:
        for row in run["rows"]:
            if row["collective"] == collective:
                found.setdefault(row["wanted"], []).append((run, row))
    return dict(sorted(found.items()))


def _size(size: int) -> str:
    from npucoll.bench.options import human_size

    written = human_size(size)
    return f"{written[:-1]} {written[-1]}B" if written[-1] in "KMG" else f"{written} B"


def _us(times: Iterable[float | None]) -> str:
    known = [time for time in times if time is not None]
    if not known:
        return "-"
    time = statistics.median(known)
    return f"{time:.1f}" if time < 100 else f"{time:.0f}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _table(head: list[str], lines: list[list[str]]) -> str:
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]

    def row(cells: list[str]) -> str:
        padded = (cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(cells, widths)))
        return f"| {' | '.join(padded)} |"

    rule = f"|{'|'.join('-' * (w + 1) + ':' if i else '-' * (w + 2) for i, w in enumerate(widths))}|"
    return "\n".join([row(head), rule, *map(row, lines)])
