"""Fields of a decoded body, checked where they are taken out; errors name the place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trio_sessions.errors import InvalidRequest

__all__ = ["Dropped", "optional_string", "required_list", "required_object", "required_string"]


class Dropped:
    """What of a request cannot be honoured, each reason once."""

    def __init__(self) -> None:
        self._reasons: dict[str, None] = {}

    def add(self, reason: str) -> None:
        """Note ``reason``, which says nothing of what a message says."""
        self._reasons.setdefault(reason)

    def reasons(self) -> tuple[str, ...]:
        """In the order in which they were found."""
        return tuple(self._reasons)


def required_object(value: object, where: str) -> Mapping[str, Any]:
    """``value``, which has to be an object."""
    if isinstance(value, dict):
        return value
    raise InvalidRequest(f"{where} must be an object, got {_kind(value)}")


def required_list(value: object, where: str) -> list[Any]:
    """``value``, which has to be a list."""
    if isinstance(value, list):
        return value
    raise InvalidRequest(f"{where} must be a list, got {_kind(value)}")


def required_string(owner: Mapping[str, Any], key: str, where: str) -> str:
    """``owner[key]``, which has to be a string."""
    value = owner.get(key)
    if isinstance(value, str):
        return value
    raise InvalidRequest(f"{where}.{key} must be a string, got {_kind(value)}")


def optional_string(owner: Mapping[str, Any], key: str, where: str = "") -> str | None:
    """``owner[key]``, which has to be a string where it is there and not null."""
    value = owner.get(key)
    if value is None or isinstance(value, str):
        return value
    raise InvalidRequest(f"{where}{'.' if where else ''}{key} must be a string, got {_kind(value)}")


def _kind(value: object) -> str:
    match value:
        case None:
            return "null or nothing"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case _:
            return "an object"
