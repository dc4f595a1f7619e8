"""The configuration: a file, overridden by NPUCOLL_* variables, overridden by arguments.

The file is ``npucoll.toml``, or ``pyproject.toml`` with a table ``[tool.npucoll]``: the nearest one from the working
directory upwards, or the one that NPUCOLL_CONFIG names.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

from npucoll.errors import ConfigError

__all__ = ["DEFAULT_CONNECT_TIMEOUT", "DEFAULT_TIMEOUT", "KEYS", "Config", "load"]

DEFAULT_TIMEOUT = 1800.0
DEFAULT_CONNECT_TIMEOUT = 120.0

StrPath = Union[str, "os.PathLike[str]"]


class Config(NamedTuple):
    """The settings of one process. ``origins`` says for each key that is not a default where it was set."""

    modes: Tuple[str, ...] = ()
    engine: Optional[str] = None
    timeout: float = DEFAULT_TIMEOUT
    connect_timeout: float = DEFAULT_CONNECT_TIMEOUT
    disable: Tuple[str, ...] = ()
    origins: Mapping[str, str] = {}


def _names(value: Any) -> Tuple[str, ...]:
    if isinstance(value, str):
        value = re.split(r"[\s,]+", value.strip()) if value.strip() else []
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) and one for one in value):
        raise ValueError("expected a list of names")
    return tuple(value)


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("expected a name")
    return value.strip()


def _seconds(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise ValueError("expected a number of seconds") from None
    if isinstance(value, bool) or not 0 < seconds < float("inf"):
        raise ValueError("expected a number of seconds above 0")
    return seconds


KEYS: Mapping[str, Callable[[Any], Any]] = {
    "modes": _names,
    "engine": _name,
    "timeout": _seconds,
    "connect_timeout": _seconds,
    "disable": _names,
}
# The adapter's own variables; NPUCOLL_* wins over them.
_HCCL = {"HCCL_EXEC_TIMEOUT": "timeout", "HCCL_CONNECT_TIMEOUT": "connect_timeout"}
# To the adapter 0 means to wait without end; here every wait ends, this one after a day.
_HCCL_NO_END = "86400"


def load(start_dir: Optional[StrPath] = None, env: Optional[Mapping[str, str]] = None, **arguments: Any) -> Config:
    """Return the configuration as seen from ``start_dir`` (None: the working directory).

    An argument of None counts as not given. An unknown key, a value of the wrong kind, or a file that cannot be read is
    a ConfigError that names the file and the line, or the variable.
    """
    env = os.environ if env is None else env
    values: Dict[str, Any] = {}
    origins: Dict[str, str] = {}
    for origin, key, value in [*_from_file(start_dir, env), *_from_environment(env), *_from_arguments(arguments)]:
        try:
            values[key] = KEYS[key](value)
        except ValueError as error:
            raise ConfigError(f"{origin}: {key} = {value!r}: {error}") from None
        origins[key] = origin
    return Config(origins=origins, **values)


def _from_arguments(arguments: Mapping[str, Any]) -> List[Tuple[str, str, Any]]:
    for key in arguments:
        if key not in KEYS:
            raise ConfigError(f"unknown argument {key!r}{_nearest(key)}")
    return [("argument", key, value) for key, value in arguments.items() if value is not None]


def _from_environment(env: Mapping[str, str]) -> List[Tuple[str, str, Any]]:
    found = []
    for name, key in _HCCL.items():
        if env.get(name):
            found.append((name, key, _HCCL_NO_END if env[name].strip() == "0" else env[name]))
    variables = {f"NPUCOLL_{key.upper()}": key for key in KEYS}
    for name in env:
        # Other NPUCOLL_* variables belong to the launcher or to plugins; only a slip of the pen is refused.
        if name.startswith("NPUCOLL_") and name not in variables:
            near = difflib.get_close_matches(name, list(variables), n=1, cutoff=0.9)
            if near:
                raise ConfigError(f"unknown variable {name}; did you mean {near[0]}?")
    return found + [(name, key, env[name]) for name, key in variables.items() if env.get(name)]


def _from_file(start_dir: Optional[StrPath], env: Mapping[str, str]) -> List[Tuple[str, str, Any]]:
    if env.get("NPUCOLL_CONFIG"):
        path = Path(env["NPUCOLL_CONFIG"])
        text = _read(path)
        table = "tool.npucoll" if path.name == "pyproject.toml" else ""
    else:
        found = _find(Path.cwd() if start_dir is None else Path(start_dir).resolve())
        if found is None:
            return []
        path, text, table = found
    settings = _table(_parse(path, text), table)
    lines = _lines(text, table)
    result = []
    for key, value in settings.items():
        origin = f"{path}, line {lines[key]}" if key in lines else str(path)
        if key not in KEYS:
            raise ConfigError(f"{origin}: unknown key {key!r}{_nearest(key)}")
        result.append((origin, key, value))
    return result


def _find(start: Path) -> Optional[Tuple[Path, str, str]]:
    """Return the nearest configuration from ``start`` upwards: path, text and the table to read."""
    for directory in [start, *start.parents]:
        path = directory / "npucoll.toml"
        if path.is_file():
            return path, _read(path), ""
        path = directory / "pyproject.toml"
        if path.is_file():
            text = _read(path)
            # Parsing every pyproject.toml on the way would refuse programs for other people's mistakes.
            if re.search(r"^\s*\[\s*tool\s*\.\s*[\"']?npucoll", text, flags=re.MULTILINE):
                return path, text, "tool.npucoll"
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _parse(path: Path, text: str) -> Dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error


def _table(settings: Dict[str, Any], table: str) -> Dict[str, Any]:
    for part in filter(None, table.split(".")):
        settings = settings.get(part, {})
    return settings


def _lines(text: str, table: str) -> Dict[str, int]:
    """Return on which line each key of ``table`` stands; the TOML parser does not tell."""
    lines: Dict[str, int] = {}
    current = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[+([^\]]*)\]", line)
        if header:
            current = re.sub(r"[\s\"']", "", header.group(1))
            inner = current[len(table) :].lstrip(".") if current.startswith(table) else ""
            if inner:
                lines.setdefault(inner.split(".")[0], number)
            continue
        key = re.match(r"\s*[\"']?([\w-]+)[\"']?\s*[=.]", line)
        if key and current == table:
            lines.setdefault(key.group(1), number)
    return lines


def _nearest(key: str) -> str:
    near = difflib.get_close_matches(key, list(KEYS), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(KEYS)}"
