"""The texts in an item."""

from __future__ import annotations

from typing import Any, Final

from trio_sessions.web.dialects.dropped import Dropped, placeholder
from trio_sessions.web.dialects.responses.shapes import Content, Part, ReasoningItem, Refusal, TextPart
from trio_sessions.web.dialects.shapes import shaped

__all__ = ["reasoning_of", "text_of"]

_TEXT_PARTS: Final = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_OMITTED: Final = {
    "input_image": "image",
    "computer_screenshot": "image",
    "input_file": "file",
    "input_audio": "audio",
}


def text_of(content: Content | None, where: str, dropped: Dropped) -> str:
    """Content as one text, of which its parts are pieces.

    Args:
        content: null and nothing are the empty text.
        where: its place, for errors.
        dropped: gets to know the parts that only a word stands for.

    Raises:
        InvalidRequest: a part is not what its type says.
    """
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_part(part, f"{where}[{index}]", dropped) for index, part in enumerate(content))


def reasoning_of(item: ReasoningItem) -> str:
    """The text of a reasoning item: its content, or else its summary; empty where it has neither."""
    if item.content:
        return "".join(part.text for part in item.content)
    return "\n\n".join(part.text for part in item.summary or ())


def _part(part: dict[str, Any], where: str, dropped: Dropped) -> str:
    kind = shaped(part, Part, where).type
    if kind in _TEXT_PARTS:
        return shaped(part, TextPart, where).text
    if kind == "refusal":
        return shaped(part, Refusal, where).refusal
    dropped.add(kind, "part")
    return placeholder(_OMITTED.get(kind, "content"))
