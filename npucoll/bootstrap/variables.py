"""Reading launcher variables: blank is unset, and what is not a number is an error that names the variable."""

from __future__ import annotations

from typing import Mapping, Optional

from npucoll.errors import ConfigError

__all__ = ["integer", "required", "text"]


def text(env: Mapping[str, str], name: str) -> Optional[str]:
    """Return the variable's value without surrounding blanks, or None where it is unset or blank."""
    value = env.get(name, "").strip()
    return value or None


def integer(env: Mapping[str, str], name: str, minimum: int = 0) -> Optional[int]:
    """Return the variable as a whole number, or None where it is unset or blank.

    Raises:
        ConfigError: it is no whole number, or below ``minimum``.
    """
    value = text(env, name)
    if value is None:
        return None
    try:
        number = int(value)
    except ValueError:
        raise ConfigError(f"{name}={value!r} is not a whole number") from None
    if number < minimum:
        raise ConfigError(f"{name}={number} is below {minimum}")
    return number


def required(env: Mapping[str, str], name: str, minimum: int = 0, *, beside: str) -> int:
    """Return the variable as a whole number; ``beside`` is the variable that makes us expect this one.

    Raises:
        ConfigError: it is unset, no whole number, or below ``minimum``.
    """
    number = integer(env, name, minimum)
    if number is None:
        raise ConfigError(f"{beside} is set, but {name} is not: set both or neither")
    return number
