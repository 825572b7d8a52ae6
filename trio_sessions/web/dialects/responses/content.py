"""The texts in an item."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trio_sessions.web.dialects.responses.fields import Dropped, required_list, required_object, required_string

__all__ = ["reasoning_of", "text_of"]

_TEXT_PARTS: Final = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_OMITTED: Final = {
    "input_image": "image",
    "computer_screenshot": "image",
    "input_file": "file",
    "input_audio": "audio",
}


def text_of(content: object, where: str, dropped: Dropped) -> str:
    """Content that is a string or a list of parts, which are pieces of one text.

    Args:
        content: null and nothing are the empty text.
        where: its place, for errors.
        dropped: gets to know the parts that only a word stands for.

    Raises:
        InvalidRequest: it is of no known shape.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(_part(part, f"{where}[{i}]", dropped) for i, part in enumerate(required_list(content, where)))


def reasoning_of(item: Mapping[str, Any], where: str) -> str:
    """The text of a reasoning item: its content, or else its summary; empty where it has neither.

    Raises:
        InvalidRequest: they are no lists of texts.
    """
    for key, separator in (("content", ""), ("summary", "\n\n")):
        if item.get(key):
            parts = enumerate(required_list(item[key], f"{where}.{key}"))
            return separator.join(_text(part, f"{where}.{key}[{index}]") for index, part in parts)
    return ""


def _part(value: object, where: str, dropped: Dropped) -> str:
    part = required_object(value, where)
    kind = required_string(part, "type", where)
    if kind in _TEXT_PARTS:
        return _text(part, where)
    if kind == "refusal":
        return required_string(part, "refusal", where)
    omitted = _OMITTED.get(kind, "content")
    dropped.add(f"{omitted} in a message")
    return f"[{omitted} omitted]"


def _text(part: object, where: str) -> str:
    return required_string(required_object(part, where), "text", where)
