"""The figures as text for people and as plain data for scripts."""

from __future__ import annotations

import platform
from typing import Any, Dict, List, Mapping, Optional, Sequence

from npucoll import __version__
from npucoll.bench.kinds import KINDS
from npucoll.bench.options import Options

__all__ = ["closing", "columns", "describe", "heading", "line"]

Report = Dict[str, Any]

_HEADS = (
    ("size", "B"),
    ("count", "elements"),
    ("dtype", ""),
    ("op/root", ""),
    ("median", "µs"),
    ("min", "µs"),
    ("algbw", "GB/s"),
    ("busbw", "GB/s"),
    ("memcpy", "share"),
    ("errors", ""),
)
_WIDTHS = (12, 12, 12, 9, 10, 10, 9, 9, 8, 8)


def describe(options: Options, ranks: int, engine: str, launcher: str, machine: Mapping[str, Optional[int]]) -> Report:
    """Return all but the rows: the software, the machine and what is measured. Imports NumPy."""
    import numpy

    return {
        "npucoll": __version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": machine["cores"],
        "usable_cores": machine["usable_cores"],
        "core_quota_percent": machine["core_quota_percent"],
        "ranks": ranks,
        "engine": engine,
        "launcher": launcher,
        "iterations": options.iterations,
        "warmup": options.warmup,
        "in_place": options.in_place,
        "plan": options.plan,
    }


def heading(report: Report) -> List[str]:
    """Return the lines above the tables."""
    ranks, cores, usable = report["ranks"], report["cores"], report["usable_cores"]
    quota = report["core_quota_percent"]
    lines = [
        f"# npucoll {report['npucoll']}, Python {report['python']}, NumPy {report['numpy']}, {report['system']}",
        f"# {ranks} rank{'s' if ranks > 1 else ''} on {usable} of {cores} cores ({report['processor']})"
        + ("" if quota is None else f", {quota} % of one at a time")
        + f", engine {report['engine']}, started by {report['launcher']}",
        f"# {report['iterations']} iterations after {report['warmup']} to warm up, "
        + ("in place" if report["in_place"] else "results in given arrays (out=)")
        + (", by prepared plans" if report["plan"] else "")
        + "; an iteration's time is that of its slowest rank",
    ]
    if ranks > usable:
        lines.append(f"# {ranks} ranks share {usable} cores: the times include waiting for one")
    return lines


def columns(collective: str) -> List[str]:
    """Return the lines above the rows of one collective."""
    names = "".join(head.rjust(width) for (head, _), width in zip(_HEADS, _WIDTHS))
    units = "".join(unit.rjust(width) for (_, unit), width in zip(_HEADS, _WIDTHS))
    return ["#", f"# {collective}; size: {KINDS[collective].size}", "#" + names[1:], "#" + units[1:]]


def line(row: Dict[str, Any]) -> str:
    """Return one row of a table."""
    share = row["memcpy_share"]
    cells = (
        str(row["size"]),
        str(row["count"]),
        row["dtype"] or "-",
        "/".join(str(one) for one in (row["op"], row["root"]) if one is not None) or "-",
        _number(row["median_us"]),
        _number(row["min_us"]),
        _number(row["algbw"]),
        _number(row["busbw"]),
        "-" if share is None else f"{100 * share:.0f}%",
        str(row["errors"]),
    )
    return "".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS))


def closing(rows: Sequence[Dict[str, Any]]) -> str:
    """Return the line below the tables."""
    errors = sum(row["errors"] for row in rows)
    return f"# {errors} wrong elements" if errors else "# every result was right"


def _number(value: Optional[float]) -> str:
    if value is None:
        return "-"
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:.3f}" if value < 10 else f"{value:.2f}" if value < 1000 else f"{value:.1f}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = [text.split(":", 1)[1].strip() for text in file if text.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()
