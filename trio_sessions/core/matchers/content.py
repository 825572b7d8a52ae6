"""The content of a message: text, or parts of which neighbouring texts read as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from trio_sessions.core.matchers.equality import present, same

__all__ = ["BILLING_PREFIX", "same_content", "text_of"]

_TEXT_TYPES: Final = frozenset({"text", "input_text", "output_text"})
BILLING_PREFIX: Final = "x-anthropic-billing-header:"
"""How a block begins that Claude Code puts before its system prompt; it is another one every time."""


@dataclass(frozen=True, slots=True)
class _Content:
    """The texts before, between and behind what is no text: one more than ``others``."""

    texts: list[str]
    others: list[Any]


def same_content(stored: Any, replayed: Any, *, without_billing: bool = False) -> bool:
    """Whether both say the same: the same text, cut into parts or not, with the same other parts between.

    What a text part holds beside its text is ignored, and so is ``cache_control`` in every part.

    Args:
        stored, replayed: the contents.
        without_billing: whether parts that bill the caller count as not there; they stand in system prompts.
    """
    if type(stored) is str and type(replayed) is str:
        return stored == replayed
    if same(present(stored), present(replayed)):
        return True
    left, right = _read(stored), _read(replayed)
    if left is None or right is None:
        return False
    if _same(left, right):
        return True
    if not without_billing:
        return False
    left, right = _read(stored, billed=False), _read(replayed, billed=False)
    return left is not None and right is not None and _same(left, right)


def text_of(content: Any) -> str | None:
    """All of the text; None where there is anything else."""
    read = _read(content)
    return None if read is None or read.others else read.texts[0]


def _same(left: _Content, right: _Content) -> bool:
    return left.texts == right.texts and same(left.others, right.others)


def _read(content: Any, *, billed: bool = True) -> _Content | None:
    """None for what is neither text nor parts; without what begins with the billing header unless ``billed``."""
    if isinstance(content, str):
        return _Content([content], [])
    if content is None:
        return _Content([""], [])
    if not isinstance(content, list):
        return None
    texts: list[list[str]] = [[]]
    others = []
    for part in content:
        text = _text_in(part)
        if text is None:
            others.append(_without_cache_control(part))
            texts.append([])
        elif billed or not text.startswith(BILLING_PREFIX):
            texts[-1].append(text)
    return _Content(["".join(pieces) for pieces in texts], others)


def _text_in(part: Any) -> str | None:
    if not isinstance(part, dict):
        return None
    kind, text = part.get("type"), part.get("text")
    return text if isinstance(text, str) and isinstance(kind, str) and kind in _TEXT_TYPES else None


def _without_cache_control(part: Any) -> Any:
    if isinstance(part, dict) and "cache_control" in part:
        return {key: value for key, value in part.items() if key != "cache_control"}
    return part
