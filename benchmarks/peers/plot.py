"""Draws allreduce's time over the size: ``plot.py FIGURES.json PICTURE.svg``, in an environment with matplotlib."""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

import matplotlib
from matplotlib.figure import Figure

_NAMES = {"npucoll": "npucoll", "plan": "npucoll, plan", "shared": "npucoll, communication memory, shared result"}
_PEERS = {"mpich": "MPICH", "openmpi": "Open MPI", "impi": "Intel MPI", "gloo": "gloo", "horovod": "Horovod"}
# Told apart by most eyes (Okabe and Ito, "Color Universal Design", 2008).
_OURS_COLOURS = ("#0072b2", "#56b4e9", "#009e73")
_PEER_COLOURS = ("#d55e00", "#e69f00", "#cc79a7", "#8c6d31", "#555555")


def _lines(runs: list[dict[str, Any]]) -> dict[str, dict[int, float]]:
    times: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        for row in run["rows"]:
            if row["collective"] != "allreduce":
                continue
            for name, figure in row["figures"].items():
                label = _PEERS[run["peer"]] if name in ("peer", "prepared") else _NAMES.get(name, name)
                times.setdefault(label, {}).setdefault(row["wanted"], []).append(figure["us"])
    middle = {
        label: {size: (min if label in _PEERS.values() else statistics.median)(us) for size, us in found.items()}
        for label, found in times.items()
    }
    return {label: middle[label] for label in (*_NAMES.values(), *_PEERS.values(), "memcpy") if label in middle}


def _style(label: str) -> dict[str, Any]:
    if label in _NAMES.values():
        return {"color": _OURS_COLOURS[list(_NAMES.values()).index(label)], "marker": "o", "linewidth": 2}
    if label in _PEERS.values():
        return {"color": _PEER_COLOURS[list(_PEERS.values()).index(label)], "marker": "s", "linewidth": 1.2}
    return {"color": "#888888", "linestyle": ":"}


def main(source: str, target: str) -> None:
    """Draw a panel for each number of ranks."""
    with open(source, encoding="utf-8") as file:
        found = json.load(file)
    # The same figures give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "npucoll"
    matplotlib.rcParams["svg.fonttype"] = "none"
    counts = sorted({run["ranks"] for run in found["runs"] if run["peer"]})
    figure = Figure(figsize=(6.5 * len(counts), 5))
    for axes, ranks in zip(figure.subplots(1, len(counts), squeeze=False)[0], counts):
        sizes: set[int] = set()
        for label, points in _lines([run for run in found["runs"] if run["peer"] and run["ranks"] == ranks]).items():
            axes.plot(list(points), list(points.values()), label=label, markersize=4, **_style(label))
            sizes |= set(points)
        axes.set(title=f"allreduce, {ranks} ranks", xlabel="size", ylabel="µs", xscale="log", yscale="log")
        axes.set_xticks(sorted(sizes))
        axes.set_xticklabels([_size(size) for size in sorted(sizes)])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(target, format="svg", metadata={"Date": None})


def _size(size: int) -> str:
    for unit, factor in (("M", 1 << 20), ("K", 1 << 10)):
        if size >= factor:
            return f"{size // factor} {unit}B"
    return f"{size} B"


if __name__ == "__main__":
    main(*sys.argv[1:])
