"""What a request is for: agents also ask for titles and summaries, beside the turns of their task.

It is a label for those who choose what is trained, told from the words that agents use. No turn is treated otherwise
because of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from trio_sessions.core.caller import Purpose
from trio_sessions.core.request import ChatBody

__all__ = ["purpose_of"]

# Instructions stand at the beginning of a text, or at its end where the conversation itself is quoted before them.
_LOOKED_AT: Final = 2000
# Seen sooner than a pattern is tried.
_HINTS: Final = ("itle", "ummar", "ompact", "OMPACT")
_TITLE: Final = re.compile(
    r"\btitle generator\b|\b(?:generate|write|create|output)\b[^.\n]{0,60}\btitle\b", re.IGNORECASE
)
_SUMMARY: Final = re.compile(
    r"\bsummar(?:y|ies|i[sz]e|i[sz]ing)\b[^.\n]{0,40}\b(?:conversations?|session|chat|history|discussion)\b"
    r"|\b(?:context|conversation)(?: checkpoint)? compaction\b"
    r"|\bcontext summari[sz]ation\b",
    re.IGNORECASE,
)


def purpose_of(chat: ChatBody) -> Purpose | None:
    """What the side request ``chat`` is for; None for turns of the task.

    A request that offers no tools is a side request where its system prompt or its last message asks for a title or a
    summary of the conversation; one that offers tools only where its last message begins by asking for a summary.
    """
    last = chat.messages[-1]
    if last.get("role") != "user":
        return None
    asked = _text(last)
    if chat.fields.get("tools"):
        return "summary" if _hints(asked[:_LOOKED_AT]) and _SUMMARY.search(asked[:_LOOKED_AT]) else None
    looked_at = [asked[:_LOOKED_AT]]
    if len(asked) > _LOOKED_AT:
        looked_at.append(asked[-_LOOKED_AT:])
    first = chat.messages[0]
    if first.get("role") in ("system", "developer"):
        looked_at.append(_text(first)[:_LOOKED_AT])
    looked_at = [text for text in looked_at if _hints(text)]
    if any(_TITLE.search(text) for text in looked_at):
        return "title"
    return "summary" if any(_SUMMARY.search(text) for text in looked_at) else None


def _hints(text: str) -> bool:
    return any(hint in text for hint in _HINTS)


def _text(message: Mapping[str, Any]) -> str:
    """The last text part stands for the message: what came before it was there before."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
        return texts[-1] if texts else ""
    return content if isinstance(content, str) else ""
