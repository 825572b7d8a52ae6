"""A request as a chat request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from trio_sessions.core import json
from trio_sessions.core.history import Checkpoint
from trio_sessions.core.request import ChatBody, decode_request
from trio_sessions.errors import InvalidRequest, PreviousResponseNotFound
from trio_sessions.service.dialect import Reading
from trio_sessions.web.dialects.dropped import Dropped
from trio_sessions.web.dialects.responses.ids import ItemIds
from trio_sessions.web.dialects.responses.items import Transcript
from trio_sessions.web.dialects.responses.output import ResponseForm
from trio_sessions.web.dialects.responses.shapes import Format, Request, SchemaFormat, TextConfig, ToolChoice
from trio_sessions.web.dialects.responses.tools import ToolName, ToolTable, read_tools
from trio_sessions.web.dialects.shapes import shaped
from trio_sessions.web.dialects.stored import last_answered

__all__ = ["ResponsesRequest", "read_request"]

# Chat has them under the same names.
_SAME: Final = ("model", "temperature", "top_p", "stop")
# Without them the answer would not be one to the request.
_REFUSED: Final = {
    "background": "background responses are not supported: leave background out, and stream instead",
    "conversation": "conversations are not supported: a session is one; leave conversation out",
    "prompt": "stored prompts are not supported: send their text as instructions and input",
}
_NOT_HONOURED: Final = ("context_management", "max_tool_calls", "moderation", "top_logprobs")
_ENCRYPTED: Final = "reasoning.encrypted_content"


@dataclass(frozen=True, slots=True, eq=False)
class ResponsesRequest:
    """A request as it was read.

    Attributes:
        chat: as a chat request.
        stream: whether the client wants events.
        extends: the turn that ``previous_response_id`` names, or else the last that the ids of items do.
        form: how the answer is to be spelled.
        dropped: what was left out.
    """

    chat: ChatBody
    stream: bool
    extends: Checkpoint | None
    form: ResponseForm
    dropped: Sequence[str]


def read_request(body: bytes, reading: Reading) -> ResponsesRequest:
    """The request in ``body``.

    Raises:
        InvalidRequest: it cannot be read, or asks for what there is not; the text names the place.
    """
    asked = shaped(decode_request(body), Request, "")
    for field, sentence in _REFUSED.items():
        if getattr(asked, field) not in (None, False):
            raise InvalidRequest(sentence)
    dropped = Dropped()
    tools = read_tools(asked.tools or (), dropped)
    previous = _previous(asked.previous_response_id, reading)
    transcript = Transcript(reading, tools, dropped)
    messages = _messages(asked, transcript, previous)
    if not messages:
        raise InvalidRequest("input must be a string or a list with at least one item")
    _note_not_honoured(asked, dropped)
    fields = _fields(asked, tools, dropped)
    form = ResponseForm(
        ids=ItemIds(reading.new_id()),
        created=int(reading.now()),
        model=asked.model or "",
        asked=_echoed(asked),
        tools=tools,
        encrypted=_ENCRYPTED in (asked.include or ()),
    )
    return ResponsesRequest(
        chat=ChatBody(fields=fields, messages=messages),
        stream=bool(asked.stream),
        extends=last_answered(reading, transcript.named) if previous is None else previous,
        form=form,
        dropped=dropped.texts(),
    )


def _previous(response_id: str | None, reading: Reading) -> Checkpoint | None:
    if response_id is None:
        return None
    checkpoint = reading.answered(response_id)
    if checkpoint is None:
        raise PreviousResponseNotFound(response_id)
    return checkpoint


def _messages(asked: Request, transcript: Transcript, previous: Checkpoint | None) -> Sequence[Mapping[str, Any]]:
    # Nothing to say is nothing said.
    instructions = asked.instructions or None
    if previous is not None:
        transcript.extend_stored(_instructed(previous.path_messages(), instructions), previous)
    elif instructions is not None:
        transcript.add_system(instructions)
    if isinstance(asked.input, str):
        transcript.add_user(asked.input)
    else:
        for index, item in enumerate(asked.input or ()):
            transcript.add_item(item, f"input[{index}]")
    return transcript.messages()


def _instructed(path: Sequence[Mapping[str, Any]], instructions: str | None) -> Sequence[Mapping[str, Any]]:
    """A stored path under these instructions; the very path where it began with them."""
    if instructions is None:
        return path
    rest = path[1:] if path[0]["role"] == "system" else path
    if rest is not path:
        match path[0].get("content"):
            case str(text) | [{"text": str(text)}, *_] if text == instructions:
                return path
    return [{"role": "system", "content": instructions}, *rest]


def _fields(asked: Request, tools: ToolTable, dropped: Dropped) -> dict[str, Any]:
    fields = {name: value for name in _SAME if (value := getattr(asked, name)) is not None}
    fields |= asked.engine_fields()
    if asked.max_output_tokens is not None:
        fields["max_tokens"] = asked.max_output_tokens
    response_format = _response_format(asked.text, dropped)
    if response_format is not None:
        fields["response_format"] = response_format
    if tools.definitions:
        fields["tools"] = list(tools.definitions)
        choice = _tool_choice(asked.tool_choice, tools, dropped)
        if choice is not None:
            fields["tool_choice"] = choice
        if asked.parallel_tool_calls is not None:
            fields["parallel_tool_calls"] = asked.parallel_tool_calls
    return fields


def _tool_choice(choice: str | dict[str, Any] | None, tools: ToolTable, dropped: Dropped) -> Any:
    if choice is None or isinstance(choice, str):
        return choice
    match shaped(choice, ToolChoice, "tool_choice"):
        case ToolChoice("function" | "custom", str(name), namespace):
            return {"type": "function", "function": {"name": tools.function_of(ToolName(name, namespace))}}
        case _:
            dropped.add("tool_choice")
            return None


def _response_format(given: dict[str, Any] | None, dropped: Dropped) -> Mapping[str, Any] | None:
    text = TextConfig() if given is None else shaped(given, TextConfig, "text")
    if text.verbosity is not None:
        dropped.add("text.verbosity")
    if text.format is None:
        return None
    match shaped(text.format, Format, "text.format").type:
        case "text":
            return None
        case "json_object":
            return {"type": "json_object"}
        case "json_schema":
            schema = msgspec.to_builtins(shaped(text.format, SchemaFormat, "text.format"))
            return {
                "type": "json_schema",
                "json_schema": {key: value for key, value in schema.items() if value is not None},
            }
        case _:
            dropped.add("text.format")
            return None


def _note_not_honoured(asked: Request, dropped: Dropped) -> None:
    for field in _NOT_HONOURED:
        if getattr(asked, field) is not None:
            dropped.add(field)
    if asked.truncation == "auto":
        dropped.add("truncation")
    if asked.reasoning is not None and asked.reasoning.effort is not None:
        dropped.add("reasoning.effort")
    if any(name != _ENCRYPTED for name in asked.include or ()):
        dropped.add("include")


def _echoed(asked: Request) -> Mapping[str, Any]:
    """What the response says of the request, as the API does."""
    return {
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "metadata": asked.metadata or {},
        "parallel_tool_calls": True if asked.parallel_tool_calls is None else asked.parallel_tool_calls,
        "previous_response_id": asked.previous_response_id,
        "store": True if asked.store is None else asked.store,
        "temperature": asked.temperature,
        "text": asked.text or {"format": {"type": "text"}},
        "tool_choice": asked.tool_choice or "auto",
        # Long, and written more than once.
        "tools": msgspec.Raw(json.encode(asked.tools or [])),
        "top_p": asked.top_p,
        "truncation": "disabled",
        "user": asked.user,
    }
