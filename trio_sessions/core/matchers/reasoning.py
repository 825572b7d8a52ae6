"""Reasoning: kept under one name or another, left out, or written before the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trio_sessions.core.matchers.equality import present, same

__all__ = ["may_hold_reasoning", "reasoning_of", "same_reasoning", "says_with_reasoning"]

_KEYS: Final = ("reasoning_content", "reasoning")
_OPEN, _CLOSE = "<think>", "</think>"
# What may stand between the reasoning and the text: nothing, an end of line or an empty line.
_BETWEEN: Final = ("", "\n", "\n\n")


def reasoning_of(message: Mapping[str, Any]) -> list[Any]:
    """What the message holds as reasoning, under each name that has any."""
    found = [present(message.get(key)) for key in _KEYS]
    return [reasoning for reasoning in found if reasoning is not None]


def same_reasoning(stored: Sequence[Any], replayed: Sequence[Any]) -> bool:
    """Whether all that is ``replayed`` was ``stored``; white space at the ends aside, and none need be replayed."""
    return all(
        reasoning == "" or any(same(_stripped(before), reasoning) for before in stored)
        for reasoning in map(_stripped, replayed)
    )


def may_hold_reasoning(replayed: str) -> bool:
    """False where ``says_with_reasoning`` is False of any two other texts; quick."""
    return replayed.startswith(("\n", _OPEN))


def says_with_reasoning(replayed: str, stored: str, reasoning: Sequence[Any]) -> bool:
    """Whether ``replayed`` is the text ``stored`` with its reasoning before it, or with the gap that reasoning left.

    The gap is the one newline that inspect leaves; reasoning stands in ``<think>`` tags, as pydantic-ai writes it.

    Args:
        replayed: the text that came back.
        stored: the text it was.
        reasoning: what ``reasoning_of`` the stored message is, at least one.
    """
    if replayed.startswith("\n") and replayed[1:] == stored:
        return True
    tagged = replayed.removeprefix("\n")
    return tagged.startswith(_OPEN) and any(
        _says_tagged(tagged, stored, before) for before in reasoning if isinstance(before, str)
    )


def _says_tagged(replayed: str, stored: str, reasoning: str) -> bool:
    # Built up from what is known, not searched for: reasoning may hold a closing tag of its own.
    inside = replayed[len(_OPEN) :].lstrip()
    thought = reasoning.strip()
    if not inside.startswith(thought):
        return False
    closing = inside[len(thought) :].lstrip()
    if not closing.startswith(_CLOSE):
        return False
    rest = closing[len(_CLOSE) :]
    return rest.endswith(stored) and rest[: len(rest) - len(stored)] in _BETWEEN


def _stripped(reasoning: Any) -> Any:
    return reasoning.strip() if isinstance(reasoning, str) else reasoning
