"""Draws time and bus bandwidth over the size: an html page with the pictures in it, or a png by matplotlib.

The page is one file: two drawings (SVG) made from the numbers here, and the table of the numbers. It loads nothing.
"""

from __future__ import annotations

import html
import importlib
import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from npucoll.bench.options import human_size

__all__ = ["Series", "draw", "series_of"]

Report = Dict[str, Any]

# Told apart by most eyes (Okabe and Ito, "Color Universal Design", 2008).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f3c8d")
_GREY = "#888888"
_DASHES = ("", "7 3", "2 3")
_MEMCPY = "memcpy by all ranks at once"
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 400, 66, 16, 14, 46


class Series(NamedTuple):
    """One line of a drawing: its label, its points (size in bytes, value), and whether it is there for comparison."""

    label: str
    points: List[Tuple[float, float]]
    reference: bool = False


class _Chart(NamedTuple):
    title: str
    unit: str
    series: List[Series]


def series_of(report: Report, value: str, reference: Callable[[Dict[str, Any]], float]) -> List[Series]:
    """Return a line for each collective and dtype with ``value`` of its rows, and one with the memcpy's figure."""
    rows = [row for row in report["rows"] if row["size"]]
    lines: Dict[str, List[Tuple[float, float]]] = {}
    copies: Dict[int, List[float]] = {}
    for row in rows:
        label = " ".join(str(row[key]) for key in ("collective", "dtype", "op") if row[key] is not None)
        lines.setdefault(label, []).append((row["size"], row[value]))
        copies.setdefault(row["size"], []).append(reference(row))
    middle = [(float(size), sorted(found)[len(found) // 2]) for size, found in copies.items()]
    # A logarithm has no place for 0, which is the bus bandwidth of a single rank.
    drawn = [Series(label, sorted(p for p in points if p[1] > 0)) for label, points in lines.items()]
    return [one for one in drawn if one.points] + [Series(_MEMCPY, sorted(middle), reference=True)]


def draw(report: Report, path: str, file_format: str) -> None:
    """Write the picture of a report to ``path``, as "png" or "html"."""
    charts = [
        _Chart("Time of a call", "µs", series_of(report, "median_us", lambda row: row["memcpy_us"])),
        _Chart(
            "Bus bandwidth",
            "GB/s",
            series_of(report, "busbw", lambda row: row["size"] / row["memcpy_us"] / 1e3),
        ),
    ]
    if file_format == "png":
        _draw_png(report, charts, path)
    else:
        with open(path, "w", encoding="utf-8") as file:
            file.write(_page(report, charts))


def _title(report: Report) -> str:
    ranks = f"{report['ranks']} rank{'s' if report['ranks'] > 1 else ''}"
    return f"npucoll {report['npucoll']}: {ranks} on {report['usable_cores']} cores, engine {report['engine']}"


def _style(number: int, series: Series) -> Tuple[str, str]:
    if series.reference:
        return _GREY, "4 4"
    return _COLOURS[number % len(_COLOURS)], _DASHES[number // len(_COLOURS) % len(_DASHES)]


# -- png


def _draw_png(report: Report, charts: Sequence[_Chart], path: str) -> None:
    # By name: it is an extra, and pyplot would choose a window system and keep the figure.
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(13, 5.2), layout=None)
    figure.suptitle(_title(report))
    for axes, chart in zip(figure.subplots(1, len(charts)), charts):
        for number, series in enumerate(chart.series):
            colour, dash = _style(number, series)
            style = (0, tuple(float(part) for part in dash.split())) if dash else "-"
            x, y = zip(*series.points)
            axes.plot(x, y, label=series.label, color=colour, linestyle=style, marker=None if dash else ".")
        axes.set(title=chart.title, xlabel="size", ylabel=chart.unit, xscale="log", yscale="log")
        ticks = _size_ticks(chart.series)
        axes.set_xticks(ticks)
        axes.set_xticklabels([human_size(int(tick)) for tick in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, format="png", dpi=120)


# -- html


def _page(report: Report, charts: Sequence[_Chart]) -> str:
    facts = [
        f"{report['processor']}, {report['system']}, Python {report['python']}, NumPy {report['numpy']}",
        f"{report['iterations']} iterations after {report['warmup']} to warm up"
        + (", in place" if report["in_place"] else "")
        + (", by prepared plans" if report["plan"] else ""),
        f"{report['errors']} wrong elements" if report["errors"] else "every result was right",
    ]
    return _PAGE.format(
        title=html.escape(_title(report)),
        facts="".join(f"<p>{html.escape(fact)}</p>" for fact in facts),
        charts="\n".join(
            f"<figure><figcaption>{html.escape(chart.title)} ({chart.unit})</figcaption>\n{_svg(chart)}</figure>"
            for chart in charts
        ),
        legend="".join(_legend_entry(number, series) for number, series in enumerate(charts[0].series)),
        table=_table(report),
    )


def _legend_entry(number: int, series: Series) -> str:
    colour, dash = _style(number, series)
    stroke = f'<line x1="0" y1="6" x2="28" y2="6" stroke="{colour}" stroke-width="2.5" stroke-dasharray="{dash}"/>'
    return f'<li><svg width="28" height="12" aria-hidden="true">{stroke}</svg> {html.escape(series.label)}</li>'


def _table(report: Report) -> str:
    columns = (
        ("collective", "collective", None),
        ("dtype", "dtype", None),
        ("op", "op", None),
        ("root", "root", None),
        ("size", "size (B)", "d"),
        ("median_us", "median (µs)", ".2f"),
        ("min_us", "min (µs)", ".2f"),
        ("algbw", "algbw (GB/s)", ".3f"),
        ("busbw", "busbw (GB/s)", ".3f"),
        ("memcpy_us", "memcpy (µs)", ".2f"),
        ("memcpy_share", "share of memcpy", ".0%"),
        ("errors", "errors", "d"),
    )
    head = "".join(f"<th>{name}</th>" for _, name, _ in columns)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{_cell(row[key], form)}</td>" for key, _, form in columns) + "</tr>"
        for row in report["rows"]
    )
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"


def _cell(value: Any, form: Optional[str]) -> str:
    if value is None:
        return "-"
    return format(value, form) if form else html.escape(str(value))


def _svg(chart: _Chart) -> str:
    points = [point for series in chart.series for point in series.points]
    x_ticks, y_ticks = _size_ticks(chart.series), _value_ticks([y for _, y in points])
    x = _scale([x for x, _ in points] + x_ticks, _LEFT, _WIDTH - _RIGHT)
    y = _scale([y for _, y in points] + y_ticks, _HEIGHT - _BOTTOM, _TOP)
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(chart.title)}">']
    for tick in x_ticks:
        parts.append(f'<path class="grid" d="M{x(tick):.1f} {_TOP}V{bottom}"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{human_size(int(tick))}</text>')
    for tick in y_ticks:
        parts.append(f'<path class="grid" d="M{_LEFT} {y(tick):.1f}H{right}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>')
    parts.append(f'<text x="{(_LEFT + right) // 2}" y="{_HEIGHT - 8}" text-anchor="middle">size (B)</text>')
    for number, series in enumerate(chart.series):
        colour, dash = _style(number, series)
        line = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in series.points)
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
        for a, b in series.points:
            note = html.escape(f"{series.label}, {human_size(int(a))}: {b:.4g} {chart.unit}")
            parts.append(
                f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="{2 if series.reference else 3.5}" fill="{colour}">'
                f"<title>{note}</title></circle>"
            )
    return "\n".join([*parts, "</svg>"])


def _scale(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    low, high = math.log(min(values)), math.log(max(values))
    if low == high:
        low, high = low - 1, high + 1
    return lambda value: start + (math.log(value) - low) / (high - low) * (end - start)


def _size_ticks(lines: Sequence[Series]) -> List[float]:
    sizes = [x for series in lines for x, _ in series.points]
    first, last = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
    step = max(1, -(-(last - first) // 8))
    return [2.0**power for power in range(first, last + 1, step)]


def _value_ticks(values: Sequence[float]) -> List[float]:
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    digits = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
    return [tick for tick in ticks if tick <= 10.0**last]


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --text: #222; --ground: #fff; --grid: #ddd; }}
@media (prefers-color-scheme: dark) {{ :root {{ --text: #ddd; --ground: #1b1b1b; --grid: #444; }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--ground); margin: 2rem; }}
h1 {{ font-size: 1.3rem; }}
p {{ margin: 0; }}
main {{ display: flex; flex-wrap: wrap; gap: 1.5rem; margin: 1rem 0; }}
figure {{ margin: 0; flex: 1 1 26rem; max-width: 50rem; }}
svg text {{ fill: var(--text); font-size: 12px; }}
.grid {{ stroke: var(--grid); }}
.axis {{ stroke: var(--text); fill: none; }}
ul {{ list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 0 1.5rem; }}
table {{ border-collapse: collapse; font-size: 13px; }}
th, td {{ padding: 0.15rem 0.7rem; text-align: right; border-bottom: 1px solid var(--grid); }}
</style>
</head>
<body>
<h1>{title}</h1>
{facts}
<main>
{charts}
</main>
<ul>{legend}</ul>
{table}
</body>
</html>
"""
