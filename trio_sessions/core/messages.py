"""Message matchers: does a replayed message say what a stored one says?

A matcher is a synchronous ``(stored, replayed) -> bool``. It decides only whether history is reused; on a match the
*stored* message, and the ids that were sampled for it, stay authoritative.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from trio_sessions.core.json import too_deep

__all__ = [
    "MATCHERS",
    "Matcher",
    "differing_fields",
    "identical",
    "loose_tool_call",
    "matching_prefix_length",
    "role_content_only",
    "strict",
]

Matcher = Callable[[Mapping[str, Any], Mapping[str, Any]], bool]

_STRICT_KEYS: Final = ("role", "content", "reasoning_content", "tool_calls")
# Keys in order: what is the same but for that is encoded to the same bytes, and at the speed of C.
_in_order = msgspec.json.Encoder(order="sorted")


def strict(stored: Mapping[str, Any], replayed: Mapping[str, Any]) -> bool:
    """Equal in what a chat template reads: role, content, reasoning_content and tool_calls.

    ``null``, ``""``, ``[]`` and absence are equal; ``index`` inside a tool call and every other key are ignored;
    white space counts.
    """
    if stored is replayed:
        return True
    # Most messages differ in their text, or are a role and a text; a tree asks about many.
    said, replayed_as = stored.get("content"), replayed.get("content")
    if type(said) is str and type(replayed_as) is str:
        if said != replayed_as:
            return False
        role, role_again = stored.get("role"), replayed.get("role")
        if len(stored) == len(replayed) == 2 and type(role) is str and type(role_again) is str:
            return role == role_again
    return all(
        _same(_tool_calls(stored), _tool_calls(replayed))
        if key == "tool_calls"
        else _same(_present(stored.get(key)), _present(replayed.get(key)))
        for key in _STRICT_KEYS
    )


def loose_tool_call(stored: Mapping[str, Any], replayed: Mapping[str, Any]) -> bool:
    """As ``strict``, but ``function.arguments`` may be the same JSON object in another spelling.

    Key order, white space, string or object, and ``null``/``""``/``"{}"`` are one. JSON types stay apart, arrays keep
    their order, numbers compare exactly as decimals. Text that is not one JSON object (duplicate keys, NaN) compares
    as it stands.
    """
    if strict(stored, replayed):
        return True
    if not all(_same(_present(stored.get(k)), _present(replayed.get(k))) for k in _STRICT_KEYS[:3]):
        return False
    left, right = _tool_calls(stored), _tool_calls(replayed)
    if not isinstance(left, list) or not isinstance(right, list):
        return False
    return len(left) == len(right) and all(map(_same_call, left, right))


def role_content_only(stored: Mapping[str, Any], replayed: Mapping[str, Any]) -> bool:
    """Equal in role and content alone; tool calls and reasoning may differ without a fork."""
    return all(_same(_present(stored.get(key)), _present(replayed.get(key))) for key in ("role", "content"))


MATCHERS: Final[Mapping[str, Matcher]] = {
    "strict": strict,
    "loose_tool_call": loose_tool_call,
    "role_content_only": role_content_only,
}


def matching_prefix_length(
    stored: Sequence[Mapping[str, Any]], replayed: Sequence[Mapping[str, Any]], matches: Matcher
) -> int:
    """How many leading messages of ``replayed`` match ``stored``, pair by pair."""
    for index, (left, right) in enumerate(zip(stored, replayed, strict=False)):
        if not matches(left, right):
            return index
    return min(len(stored), len(replayed))


def differing_fields(stored: Mapping[str, Any], replayed: Mapping[str, Any]) -> list[str]:
    """Names of what a chat template reads in which the two differ; never what they say."""
    return [key for key in _STRICT_KEYS if not strict({key: stored.get(key)}, {key: replayed.get(key)})]


def identical(left: Any, right: Any) -> bool:
    """Whether two decoded JSON values are the same to the letter: types and numbers included, key order aside."""
    if left is right:
        return True
    try:
        return _in_order.encode(left) == _in_order.encode(right)
    except (TypeError, ValueError):
        # Half of a surrogate pair, say, which only a caller in Python can have.
        return _identical(left, right)


def _identical(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_identical(value, right[key]) for key, value in left.items())
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_identical, left, right))
    if isinstance(left, float):
        return bool(left.hex() == right.hex())  # 0.0 == -0.0
    return bool(left == right)


def _present(value: Any) -> Any:
    return None if value is None or value in ("", []) else value


def _tool_calls(message: Mapping[str, Any]) -> Any:
    calls = _present(message.get("tool_calls"))
    return [_without_index(call) for call in calls] if isinstance(calls, list) else calls


def _without_index(call: Any) -> Any:
    if isinstance(call, dict) and "index" in call:
        return {key: value for key, value in call.items() if key != "index"}
    return call


def _same(left: Any, right: Any) -> bool:
    """Equality of decoded JSON in which ``true`` is not 1; numbers compare by value."""
    # What is large is most often the same, which is seen at the speed of C.
    return (isinstance(left, dict | list) and identical(left, right)) or _equal(left, right)


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(_equal(value, right[key]) for key, value in left.items())
        )
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


def _same_call(left: Any, right: Any) -> bool:
    if not isinstance(left, dict) or not isinstance(right, dict):
        return _same(left, right)
    return left.keys() == right.keys() and all(
        _same_function(value, right[key]) if key == "function" else _same(value, right[key])
        for key, value in left.items()
    )


def _same_function(left: Any, right: Any) -> bool:
    if not isinstance(left, dict) or not isinstance(right, dict):
        return _same(left, right)
    # Absent arguments are null arguments.
    keys = left.keys() | right.keys()
    return all(
        _same_arguments(left.get(key), right.get(key))
        if key == "arguments"
        else key in left and key in right and _same(left[key], right[key])
        for key in keys
    )


def _same_arguments(left: Any, right: Any) -> bool:
    left_object, right_object = _as_object(left), _as_object(right)
    if left_object is None or right_object is None:
        return _same(left, right)
    # Their numbers are decimals, which JSON does not have.
    return _equal(left_object, right_object)


class _NotOneObject(ValueError):
    """The text has duplicate keys or a constant that JSON does not have."""


def _as_object(arguments: Any) -> dict[str, Any] | None:
    """The JSON object that ``arguments`` spells, its numbers as decimals; None when it is not exactly one."""
    if arguments is None or arguments == "":
        return {}
    try:
        if isinstance(arguments, dict):
            # Through text, so that 0.1 as a float and "0.1" as text become the same decimal.
            arguments = json.dumps(arguments, allow_nan=False)
        if not isinstance(arguments, str):
            return None
        parsed = json.loads(
            arguments,
            parse_int=Decimal,
            parse_float=Decimal,
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique_pairs,
        )
    except (ValueError, RecursionError, TypeError, ArithmeticError):
        return None
    return parsed if isinstance(parsed, dict) and not too_deep(parsed) else None


def _refuse_constant(name: str) -> Any:
    raise _NotOneObject(name)


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    parsed = dict(pairs)
    if len(parsed) != len(pairs):
        raise _NotOneObject("duplicate keys")
    return parsed
