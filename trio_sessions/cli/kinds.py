"""Kinds of option values: how text, or a value of a TOML file, becomes a typed one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["FILE", "FLAG", "INTEGER", "JSON_OBJECT", "NUMBER", "TEXT", "URL", "Kind", "choice", "text"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value.

    Attributes:
        metavar: placeholder in the help, such as ``N``.
        expects: what a value must be, to end the sentence "--port must be ...".
        from_text: reads the text of a command line or an environment variable; ValueError when it is wrong.
        from_toml: accepts a decoded TOML value; ValueError when it has the wrong type.
        is_flag: whether the option stands alone on a command line.
    """

    metavar: str
    expects: str
    from_text: Callable[[str], Any]
    from_toml: Callable[[Any], Any]
    is_flag: bool = False


def text(metavar: str) -> Kind:
    """Any text that is not empty; what it means is checked where it is used."""
    return Kind(metavar, "text, not empty", _text, _text)


def choice(values: Sequence[str]) -> Kind:
    """One of a few words."""

    def pick(value: Any) -> str:
        if value not in values:
            raise ValueError
        return str(value)

    return Kind("|".join(values), f"{', '.join(values[:-1])} or {values[-1]}", pick, pick)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value


def _path(value: Any) -> Path:
    return Path(_text(value))


def _toml_integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError  # noqa: TRY004 - the caller turns it into a sentence
    return value


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError
    return number


def _toml_number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError  # noqa: TRY004 - the caller turns it into a sentence
    return _finite(float(value))


_FLAG_WORDS: Final = {"1": True, "true": True, "0": False, "false": False}


def _flag(value: str) -> bool:
    try:
        return _FLAG_WORDS[value.strip().lower()]
    except KeyError as error:
        raise ValueError from error


def _toml_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError  # noqa: TRY004 - the caller turns it into a sentence
    return value


def _refuse_constant(_: str) -> Any:
    raise ValueError


def _json_object(value: str) -> dict[str, Any]:
    try:
        decoded = json.loads(value, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError from error
    if not isinstance(decoded, dict):
        raise ValueError  # noqa: TRY004 - the caller turns it into a sentence
    return decoded


def _toml_table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError  # noqa: TRY004 - the caller turns it into a sentence
    try:
        # TOML has dates, infinities and NaN; JSON, which the engine receives, has not.
        json.dumps(value, allow_nan=False)
    except TypeError as error:
        raise ValueError from error
    return value


TEXT: Final = text("TEXT")
URL: Final = text("URL")
FILE: Final = Kind("FILE", "the path of a file", _path, _path)
INTEGER: Final = Kind("N", "a whole number", int, _toml_integer)
NUMBER: Final = Kind("N", "a number", lambda value: _finite(float(value)), _toml_number)
FLAG: Final = Kind("", "1, 0, true or false", _flag, _toml_flag, is_flag=True)
JSON_OBJECT: Final = Kind("JSON", 'a JSON object such as {"enable_thinking": false}', _json_object, _toml_table)
