"""The matchers that compare what a template reads as it is spelled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trio_sessions.core.matchers.equality import present, same

__all__ = ["differing_fields", "role_content_only", "same_fields", "strict", "tool_calls_of"]

_KEYS: Final = ("role", "content", "reasoning_content", "tool_calls")


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
    return same_fields(stored, replayed, _KEYS[:3]) and same(tool_calls_of(stored), tool_calls_of(replayed))


def role_content_only(stored: Mapping[str, Any], replayed: Mapping[str, Any]) -> bool:
    """Equal in role and content alone; tool calls and reasoning may differ without a fork."""
    return same_fields(stored, replayed, _KEYS[:2])


def differing_fields(stored: Mapping[str, Any], replayed: Mapping[str, Any]) -> list[str]:
    """Names of what a chat template reads in which the two differ; never what they say."""
    return [key for key in _KEYS if not strict({key: stored.get(key)}, {key: replayed.get(key)})]


def same_fields(
    stored: Mapping[str, Any],
    replayed: Mapping[str, Any],
    keys: tuple[str, ...] = _KEYS[:3],
) -> bool:
    """Whether all of ``keys`` are equal, by default those that are no tool calls."""
    return all(same(present(stored.get(key)), present(replayed.get(key))) for key in keys)


def tool_calls_of(message: Mapping[str, Any]) -> Any:
    """The message's tool calls without ``index``; None where there are none."""
    calls = present(message.get("tool_calls"))
    return [_without_index(call) for call in calls] if isinstance(calls, list) else calls


def _without_index(call: Any) -> Any:
    if isinstance(call, dict) and "index" in call:
        return {key: value for key, value in call.items() if key != "index"}
    return call
