"""Calls as the text that smolagents makes of them."""

from __future__ import annotations

import ast
import json
from typing import Any, Final

from trio_sessions.core.json import too_deep
from trio_sessions.core.matchers.calls import same_calls
from trio_sessions.core.matchers.equality import equal

__all__ = ["may_list_calls", "says_calls"]

_HEADING: Final = "Calling tools:\n"
# What is parsed costs hundreds of times its length, and whoever replays it wrote it: at most so many times as many
# characters as the calls have as JSON, so many more for each call, and so many at all.
_MAX_GROWTH: Final = 2
_MAX_FRAME: Final = 256
_MAX_LISTING: Final = 2**18


def may_list_calls(replayed: str) -> bool:
    """False where ``says_calls`` is False; quick."""
    return _HEADING in replayed


def says_calls(replayed: str, stored: str, calls: Any) -> bool:
    """Whether ``replayed`` is the stripped text ``stored`` and, on a line of its own, the list of these very calls.

    Args:
        replayed: the text that came back.
        stored: the text of the message that made the calls.
        calls: its ``tool_calls``.
    """
    # The list is one line, so the last heading is its own.
    text, heading, listing = replayed.rpartition(_HEADING)
    if not heading or not isinstance(calls, list) or not calls:
        return False
    said = stored.strip()
    if text != f"{said}\n" and (said or text):
        return False
    listed = _literal(listing, limit=_longest_listing(calls))
    return isinstance(listed, list) and same_calls(calls, listed, _same_arguments)


def _longest_listing(calls: list[Any]) -> int:
    try:
        return min(_MAX_GROWTH * len(json.dumps(calls)) + _MAX_FRAME * len(calls), _MAX_LISTING)
    except (ValueError, TypeError, RecursionError):
        return 0


def _literal(text: str, *, limit: int) -> Any:
    """What Python writes as ``text``, which JSON has as well; None for anything else, and for what is too long."""
    if len(text) > limit:
        return None
    try:
        value = ast.literal_eval(text)
        # Written just so there is nothing else in the text, not even a comment.
        return value if not too_deep(value) and _is_json(value) and str(value) == text else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _is_json(value: Any) -> bool:
    """Whether ``value`` has nothing but what JSON has; Python's literals have more."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(child) for key, child in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | int | float)


def _same_arguments(stored: Any, listed: Any) -> bool:
    try:
        said = _unfolded(_loaded(stored))
    except RecursionError:
        # Text within text may be nested deeper than a body.
        return False
    return equal(said, listed) or (said in (None, "", {}) and listed in (None, "", {}))


def _loaded(text: Any) -> Any:
    """What ``text`` is as JSON, itself where it is none."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return text


def _unfolded(value: Any) -> Any:
    """``value`` as smolagents lists it: every string in it that looks like an object or an array is made one."""
    if isinstance(value, str):
        folded = value[:1] + value[-1:] in ("{}", "[]")
        loaded = _loaded(value) if folded else value
        return value if loaded is value else _unfolded(loaded)
    if isinstance(value, dict):
        return {key: _unfolded(child) for key, child in value.items()}
    return [_unfolded(item) for item in value] if isinstance(value, list) else value
