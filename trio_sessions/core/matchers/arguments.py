"""Tool arguments: JSON that every client spells in its own way, or text that only looks like it."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Final

import msgspec

from trio_sessions.core.json import too_deep
from trio_sessions.core.matchers.equality import equal, same

__all__ = ["same_replayed", "same_spelled"]

# Where arguments have to be an object, text that spells none is put into one: under the first key by dialects whose
# calls hold objects, under the second by pydantic-ai.
_WRAPPING_KEYS: Final = ("arguments", "INVALID_JSON")


def same_spelled(left: Any, right: Any) -> bool:
    """Whether both are one JSON object, or the same value as they stand; numbers compare exactly as decimals."""
    left_object, right_object = _as_object(left, _one_of_each_key), _as_object(right, _one_of_each_key)
    if left_object is None or right_object is None:
        return same(left, right)
    # Their numbers are decimals, which JSON does not have.
    return equal(left_object, right_object)


def same_replayed(stored: Any, replayed: Any) -> bool:
    """Whether ``replayed`` is what a client may make of ``stored`` that parses it and writes it again.

    As ``same_spelled``, and of a repeated key the last value counts, a number may have gone through a double, and text
    that is no JSON object may be the only value of one.
    """
    if same(stored, replayed) or _same_but_for_white_space(stored, replayed):
        return True
    said, said_again = _as_object(stored, _last_of_each_key), _as_object(replayed, _last_of_each_key)
    if said is not None:
        return equal(said, said_again, _same_or_rounded)
    if not isinstance(stored, str):
        return False
    # White space is no arguments to some clients, and text like any other to others.
    return (not stored.strip() and said_again == {}) or any(said_again == {key: stored} for key in _WRAPPING_KEYS)


def _same_or_rounded(stored: Any, replayed: Any) -> bool:
    """Of two scalars; a rounded number is the shortest that reads as the same double, as every client writes it."""
    if stored == replayed:
        return True
    if not isinstance(stored, Decimal) or not isinstance(replayed, Decimal):
        return False
    return Decimal(repr(float(stored))) == replayed


def _same_but_for_white_space(stored: Any, replayed: Any) -> bool:
    """A quick yes for what most clients do; no says nothing."""
    if type(stored) is not str or type(replayed) is not str:
        return False
    try:
        compact = msgspec.json.format(stored, indent=-1)
        return compact.startswith("{") and compact == msgspec.json.format(replayed, indent=-1)
    except (ValueError, RecursionError):
        return False


class _NotOneObject(ValueError):
    """The text has duplicate keys or a constant that JSON does not have."""


def _refuse_constant(name: str) -> Any:
    raise _NotOneObject(name)


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    parsed = dict(pairs)
    if len(parsed) != len(pairs):
        raise _NotOneObject("duplicate keys")
    return parsed


_one_of_each_key: Final = json.JSONDecoder(
    parse_int=Decimal, parse_float=Decimal, parse_constant=_refuse_constant, object_pairs_hook=_unique_pairs
)
_last_of_each_key: Final = json.JSONDecoder(parse_int=Decimal, parse_float=Decimal, parse_constant=_refuse_constant)


def _as_object(arguments: Any, decoder: json.JSONDecoder) -> dict[str, Any] | None:
    """The JSON object that ``arguments`` spells, its numbers as decimals; None when it is not exactly one."""
    if arguments is None or arguments == "":
        return {}
    try:
        if isinstance(arguments, dict):
            # Through text, so that 0.1 as a float and "0.1" as text become the same decimal.
            arguments = json.dumps(arguments, allow_nan=False)
        if not isinstance(arguments, str):
            return None
        parsed = decoder.decode(arguments)
    except (ValueError, RecursionError, TypeError, ArithmeticError):
        return None
    return parsed if isinstance(parsed, dict) and not too_deep(parsed) else None
