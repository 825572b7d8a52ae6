"""Rendering what follows an assistant turn, without the history before it.

A short conversation stands in for history. Its last assistant turn ends with a sentinel, and what the template writes
after the sentinel is what follows the turn, whatever the turn said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final

__all__ = ["cut_after", "sentinel_for"]

# Letters only around the number: nothing that a template would trim, escape or read as markup.
_PATTERN: Final = re.compile(r"zqSentinel([0-9]{1,18})qz")


def sentinel_for(*texts: Any) -> str:
    """A sentinel that occurs in none of ``texts``; always the same one for the same texts.

    Args:
        texts: strings, and JSON-like values whose keys and strings are searched.
    """
    taken: set[int] = set()
    pending: list[Any] = list(texts)
    while pending:
        match pending.pop():
            case str() as text:
                if "zqSentinel" in text:
                    taken.update(int(number) for number in _PATTERN.findall(text))
            case Mapping() as mapping:
                pending.extend(mapping.keys())
                pending.extend(mapping.values())
            case list() | tuple() as items:
                pending.extend(items)
    free = next(number for number in count() if number not in taken)
    return f"zqSentinel{free}qz"


def cut_after(rendered: str, sentinel: str, appended: Sequence[str] = ()) -> str:
    """What stands in ``rendered`` after ``sentinel``.

    Args:
        rendered: text of the whole stand-in conversation.
        sentinel: payload of its last assistant turn.
        appended: texts that were appended after that turn and have to be found behind it.

    Raises:
        ValueError: the sentinel is missing or doubled, or an appended text is missing or stands before it. The text
            says what the template does.
    """
    occurrences = rendered.count(sentinel)
    if occurrences != 1:
        raise ValueError(
            "it leaves out the assistant turn before the message"
            if occurrences == 0
            else "it writes the assistant turn before the message more than once"
        )
    position = rendered.index(sentinel) + len(sentinel)
    for text in appended:
        if text not in rendered:
            raise ValueError("the template drops the message")
        if rendered.find(text, position) < 0:
            raise ValueError("the template moves the message before the assistant turn")
    return rendered[position:]
