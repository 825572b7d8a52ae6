"""Messages as a chat template can read them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from trio_sessions.core.json import kind_of
from trio_sessions.errors import InvalidRequest
from trio_sessions.render.base import Message

__all__ = ["ArgumentForm", "ContentForm", "MessageForm", "normalize_messages", "text_weight"]

ArgumentForm: TypeAlias = Literal["object", "string"]
ContentForm: TypeAlias = Literal["string", "parts"]


@dataclass(frozen=True, slots=True)
class MessageForm:
    """The shapes in which a template wants the parts of a message that clients spell in several ways.

    Attributes:
        arguments: whether a call's ``arguments`` reach the template as an object or as JSON text.
        content: whether content reaches it as a string or as a list of text parts.
        string_arguments: whether the template can also render arguments that are a string. If not, text that is not
            a JSON object is wrapped in one.
        developer: whether the template writes messages of the role ``developer``. If not, they are rendered as
            ``system`` messages: to lose an agent's instructions without a word would be worse.
    """

    arguments: ArgumentForm = "object"
    content: ContentForm = "string"
    string_arguments: bool = True
    developer: bool = True


def normalize_messages(messages: Sequence[Message], form: MessageForm, *, first_index: int = 0) -> list[dict[str, Any]]:
    """``messages`` in the shape the template wants; the input is left as it is.

    Content that is null or absent becomes ``""``, text parts are joined (or a string becomes a part), ``tool_calls``
    that are null or empty are left out, ``arguments`` become an object or JSON text. Everything else stays.

    Args:
        messages: as the client or the engine sent them.
        form: what the template wants.
        first_index: index of the first message in the request, for error texts.

    Raises:
        InvalidRequest: content, a part or a call is of no known shape; the text names the place.
    """
    return [_message(message, form, f"messages[{index}]") for index, message in enumerate(messages, first_index)]


def text_weight(messages: Iterable[Message]) -> int:
    """Roughly how many characters the texts of ``messages`` have; content of any shape is accepted."""
    return sum(_weight(value) for message in messages for key, value in message.items() if key != "role")


def _message(message: Message, form: MessageForm, where: str) -> dict[str, Any]:
    out = dict(message)
    if out.get("role") == "developer" and not form.developer:
        out["role"] = "system"
    out["content"] = _content(out.get("content"), form.content, where)
    calls = out.pop("tool_calls", None)
    if calls:
        if not isinstance(calls, list | tuple):
            raise InvalidRequest(f"{where}.tool_calls must be a list, got {kind_of(calls)}")
        out["tool_calls"] = [_call(call, form, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
    return out


def _content(content: Any, form: ContentForm, where: str) -> str | list[dict[str, str]]:
    match content:
        case None:
            text = ""
        case str():
            text = content
        case list() | tuple():
            # Parts are pieces of one text, so nothing is put between them.
            text = "".join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
        case _:
            raise InvalidRequest(f"{where}.content must be a string, a list of parts or null, got {kind_of(content)}")
    return text if form == "string" else [{"type": "text", "text": text}]


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise InvalidRequest(f"{where} must be an object, got {kind_of(part)}")
    text = part.get("text")
    if part.get("type", "text") != "text" or not isinstance(text, str):
        raise InvalidRequest(f"{where} is not a text part, and only text can be rendered")
    return text


def _call(call: Any, form: MessageForm, where: str) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise InvalidRequest(f"{where} must be an object, got {kind_of(call)}")
    out = dict(call)
    function = out.get("function")
    if function is None:
        if "arguments" in out:
            out["arguments"] = _arguments(out["arguments"], form)
        return out
    if not isinstance(function, Mapping):
        raise InvalidRequest(f"{where}.function must be an object, got {kind_of(function)}")
    out["function"] = {**function, "arguments": _arguments(function.get("arguments"), form)}
    return out


def _arguments(arguments: Any, form: MessageForm) -> Any:
    if form.arguments == "string":
        return arguments if isinstance(arguments, str) and arguments else _as_json(arguments or {})
    if isinstance(arguments, Mapping):
        return arguments
    parsed = _as_object(arguments)
    if parsed is not None:
        return parsed
    text = arguments if isinstance(arguments, str) else _as_json(arguments)
    # What a model wrote in place of JSON is still what it wrote: it is shown, not refused.
    return text if form.string_arguments else {"arguments": text}


def _as_object(arguments: Any) -> dict[str, Any] | None:
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return None
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _as_json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _weight(value: Any) -> int:
    # A stack instead of recursion: what a client nests must not overflow ours.
    total, pending = 0, [value]
    while pending:
        match pending.pop():
            case str() as text:
                total += len(text)
            case Mapping() as mapping:
                pending.extend(mapping.values())
            case list() | tuple() as items:
                pending.extend(items)
            case _:
                total += 1
    return total
