"""The matcher for clients that spell tool arguments anew and change nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trio_sessions.core.matchers.arguments import same_spelled
from trio_sessions.core.matchers.equality import same
from trio_sessions.core.matchers.strict import same_fields, strict, tool_calls_of

__all__ = ["loose_tool_call"]


def loose_tool_call(stored: Mapping[str, Any], replayed: Mapping[str, Any]) -> bool:
    """As ``strict``, but ``function.arguments`` may be the same JSON object in another spelling.

    Key order, white space, string or object, and ``null``/``""``/``"{}"`` are one. JSON types stay apart, arrays keep
    their order, numbers compare exactly as decimals. Text that is not one JSON object (duplicate keys, NaN) compares
    as it stands.
    """
    if strict(stored, replayed):
        return True
    if not same_fields(stored, replayed):
        return False
    left, right = tool_calls_of(stored), tool_calls_of(replayed)
    if not isinstance(left, list) or not isinstance(right, list):
        return False
    return len(left) == len(right) and all(map(_same_call, left, right))


def _same_call(left: Any, right: Any) -> bool:
    if not isinstance(left, dict) or not isinstance(right, dict):
        return same(left, right)
    return left.keys() == right.keys() and all(
        _same_function(value, right[key]) if key == "function" else same(value, right[key])
        for key, value in left.items()
    )


def _same_function(left: Any, right: Any) -> bool:
    if not isinstance(left, dict) or not isinstance(right, dict):
        return same(left, right)
    # Absent arguments are null arguments.
    keys = left.keys() | right.keys()
    return all(
        same_spelled(left.get(key), right.get(key))
        if key == "arguments"
        else key in left and key in right and same(left[key], right[key])
        for key in keys
    )
