"""From the words of the command line to what is measured; every mistake that can be seen before ranks start."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from typing import Iterable, Optional, Tuple, TypeVar

from npucoll.bench.kinds import BFLOAT16, ITEM_SIZES, KINDS, OPS
from npucoll.errors import ConfigError

__all__ = [
    "Options",
    "check_writable",
    "collectives",
    "dtypes",
    "human_size",
    "op",
    "parse_size",
    "plot_format",
    "sizes",
    "whole",
]

T = TypeVar("T")

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True)
class Options:
    """What to measure, and how."""

    collectives: Tuple[str, ...]
    dtypes: Tuple[str, ...]
    sizes: Tuple[int, ...]
    op: str = "sum"
    root: int = 0
    iterations: int = 20
    warmup: int = 5
    in_place: bool = False
    plan: bool = False

    def __post_init__(self) -> None:
        reducing = any(KINDS[name].reduces for name in self.collectives)
        for dtype in self.dtypes if reducing else ():
            if (dtype == "bool" and self.op in ("sum", "mean")) or (
                dtype.startswith("complex") and self.op in ("min", "max")
            ):
                others = "min, max or prod" if dtype == "bool" else "sum, mean or prod"
                raise ConfigError(f"--op {self.op} is not defined for {dtype}; choose {others}")
        if BFLOAT16 in self.dtypes and importlib.util.find_spec("ml_dtypes") is None:
            raise ConfigError("--dtype bfloat16: NumPy knows it through ml_dtypes: pip install ml_dtypes")

    def check_ranks(self, ranks: int) -> None:
        """Refuse a root that is no rank."""
        if self.root >= ranks:
            raise ConfigError(f"--root {self.root} is no rank; the ranks are 0 to {ranks - 1}")


def collectives(text: str, in_place: bool, plan: bool) -> Tuple[str, ...]:
    """Return the collectives of a comma list; "all": every one, of those that can do what else is asked."""
    conditions = [
        (in_place, "--in-place", "has no form in place", {name for name, kind in KINDS.items() if kind.in_place}),
        (plan, "--plan", "cannot be planned", {name for name, kind in KINDS.items() if kind.planned}),
    ]
    names = tuple(KINDS) if text == "all" else _choices("--collective", text, KINDS, "all")
    for asked, option, why, able in conditions:
        if asked and text != "all":
            for name in names:
                if name not in able:
                    raise ConfigError(
                        f"{option}: {name} {why}; choose among {', '.join(k for k in KINDS if k in able)}"
                    )
        elif asked:
            names = tuple(name for name in names if name in able)
    return names


def dtypes(text: str) -> Tuple[str, ...]:
    """Return the dtypes of a comma list."""
    return _choices("--dtype", text, ITEM_SIZES)


def op(text: str) -> str:
    """Return the reduction."""
    if text not in OPS:
        raise ConfigError(f"--op {text}: unknown; known are {', '.join(OPS)}")
    return text


def sizes(listed: Optional[str], smallest: Optional[str], largest: Optional[str], factor: str) -> Tuple[int, ...]:
    """Return the sizes of a comma list, or from the smallest to the largest, each ``factor`` times the one before."""
    if listed is not None:
        if smallest is not None or largest is not None:
            raise ConfigError("--sizes names every size: leave out --min and --max")
        return _unique(parse_size("--sizes", word) for word in listed.split(","))
    first, last = parse_size("--min", smallest or "4"), parse_size("--max", largest or "64M")
    step = whole("--factor", factor, 2)
    if first > last:
        raise ConfigError(f"--min {human_size(first)} is above --max {human_size(last)}")
    found = [first]
    while found[-1] * step <= last:
        found.append(found[-1] * step)
    return tuple(found)


def parse_size(option: str, text: str) -> int:
    """Return a number of bytes; K, M and G stand for 1024, 1024² and 1024³ bytes."""
    match = re.match(r"(\d+)([kmg]?)(i?b)?$", text.strip(), re.IGNORECASE)
    size = int(match.group(1)) * _UNITS[match.group(2).lower()] if match else 0
    if size < 1:
        raise ConfigError(f"{option} {text}: a size is a number of bytes from 1 on, such as 4, 64K, 1M or 2G")
    return size


def human_size(size: int) -> str:
    """Return a size in the largest unit in which it is whole, as the options take it."""
    for unit in ("G", "M", "K"):
        if size and size % _UNITS[unit.lower()] == 0:
            return f"{size // _UNITS[unit.lower()]}{unit}"
    return str(size)


def whole(option: str, text: str, least: int) -> int:
    """Return a whole number that is not below ``least``."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ConfigError(f"{option} {text}: it is a whole number, {least} or more")
    return value


def plot_format(path: str) -> str:
    """Return "png" or "html", by the file's name, after a look whether it can be made here."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in (".png", ".html"):
        raise ConfigError(f"--plot {path}: the name ends in .png or .html")
    if ending == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            f"--plot {path}: a png is drawn by matplotlib: pip install 'npucoll[bench]'; a name in .html needs nothing"
        )
    check_writable("--plot", path)
    return ending[1:]


def check_writable(option: str, path: str) -> None:
    """Refuse a file that cannot be written, before the time of measuring is spent."""
    directory = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise ConfigError(f"{option} {path}: it is a directory, name a file")
    if not os.path.isdir(directory):
        raise ConfigError(f"{option} {path}: there is no directory {directory}")
    if not os.access(path if os.path.exists(path) else directory, os.W_OK):
        raise ConfigError(f"{option} {path}: it cannot be written")


def _choices(option: str, text: str, known: Iterable[str], *more: str) -> Tuple[str, ...]:
    names = _unique(word.strip() for word in text.split(","))
    for name in names:
        if name not in known:
            raise ConfigError(f"{option} {name}: unknown; known are {', '.join([*known, *more])}")
    return names


def _unique(values: Iterable[T]) -> Tuple[T, ...]:
    return tuple(dict.fromkeys(values))
