"""A request as a chat request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from trio_sessions.core import json
from trio_sessions.core.history import Checkpoint
from trio_sessions.core.request import ChatBody
from trio_sessions.errors import InvalidRequest, PreviousResponseNotFound
from trio_sessions.service.dialect import Reading
from trio_sessions.web.dialects.responses.fields import (
    Dropped,
    optional_string,
    required_list,
    required_object,
    required_string,
)
from trio_sessions.web.dialects.responses.ids import ItemIds
from trio_sessions.web.dialects.responses.items import Transcript
from trio_sessions.web.dialects.responses.output import ResponseForm
from trio_sessions.web.dialects.responses.tools import ToolName, ToolTable, read_tools

__all__ = ["ReadRequest", "read_request"]

_PASSED: Final = (
    "model",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "chat_template_kwargs",
    "separate_reasoning",
    "skip_special_tokens",
)
# Without them the answer would not be one to the request.
_REFUSED: Final = {
    "background": "background responses are not supported: leave background out, and stream instead",
    "conversation": "conversations are not supported: a session is one; leave conversation out",
    "prompt": "stored prompts are not supported: send their text as instructions and input",
}
_NOT_HONOURED: Final = ("context_management", "max_tool_calls", "moderation", "top_logprobs")
_ENCRYPTED: Final = "reasoning.encrypted_content"


@dataclass(frozen=True, slots=True, eq=False)
class ReadRequest:
    """A request as it was read.

    Attributes:
        chat: as a chat request.
        stream: whether the client wants events.
        extends: the turn that ``previous_response_id`` names.
        form: how the answer is to be spelled.
        dropped: what was left out.
    """

    chat: ChatBody
    stream: bool
    extends: Checkpoint | None
    form: ResponseForm
    dropped: Sequence[str]


def read_request(body: bytes, reading: Reading) -> ReadRequest:
    """The request in ``body``.

    Raises:
        InvalidRequest: it cannot be read, or asks for what there is not; the text names the place.
    """
    asked = _decoded(body)
    dropped = Dropped()
    tools = read_tools(asked.get("tools"), dropped)
    extends = _extended(asked, reading)
    messages = _messages(asked, tools, extends, reading, dropped)
    if not messages:
        raise InvalidRequest("input must be a string or a list with at least one item")
    _note_not_honoured(asked, dropped)
    fields = _fields(asked, tools, dropped)
    form = ResponseForm(
        ids=ItemIds(reading.new_id()),
        created=int(reading.now()),
        model=optional_string(asked, "model") or "",
        asked=_repeated(asked),
        tools=tools,
        encrypted=_ENCRYPTED in _included(asked),
    )
    return ReadRequest(
        chat=ChatBody(fields=fields, messages=messages),
        stream=bool(asked.get("stream", False)),
        extends=extends,
        form=form,
        dropped=dropped.reasons(),
    )


def _decoded(body: bytes) -> Mapping[str, Any]:
    try:
        decoded = json.decode(body) if body else {}
    except json.InvalidJSON as error:
        raise InvalidRequest(f"invalid JSON body: {error}") from error
    asked = required_object(decoded, "the request body")
    for field, sentence in _REFUSED.items():
        if asked.get(field) not in (None, False):
            raise InvalidRequest(sentence)
    return asked


def _extended(asked: Mapping[str, Any], reading: Reading) -> Checkpoint | None:
    response_id = optional_string(asked, "previous_response_id")
    if response_id is None:
        return None
    checkpoint = reading.answered(response_id)
    if checkpoint is None:
        raise PreviousResponseNotFound(response_id)
    return checkpoint


def _messages(
    asked: Mapping[str, Any], tools: ToolTable, extends: Checkpoint | None, reading: Reading, dropped: Dropped
) -> Sequence[Mapping[str, Any]]:
    transcript = Transcript(reading, tools, dropped)
    # Nothing to say is nothing said.
    instructions = optional_string(asked, "instructions") or None
    if extends is not None:
        transcript.extend_stored(_instructed(extends.path_messages(), instructions), extends)
    elif instructions is not None:
        transcript.add_system(instructions)
    given = asked.get("input")
    if isinstance(given, str):
        transcript.add_user(given)
    elif given is not None:
        for index, item in enumerate(required_list(given, "input")):
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


def _fields(asked: Mapping[str, Any], tools: ToolTable, dropped: Dropped) -> dict[str, Any]:
    fields = {key: asked[key] for key in _PASSED if asked.get(key) is not None}
    if asked.get("max_output_tokens") is not None:
        fields["max_tokens"] = asked["max_output_tokens"]
    response_format = _response_format(asked.get("text"), dropped)
    if response_format is not None:
        fields["response_format"] = response_format
    if tools.definitions:
        fields["tools"] = list(tools.definitions)
        choice = _tool_choice(asked.get("tool_choice"), tools, dropped)
        if choice is not None:
            fields["tool_choice"] = choice
        if asked.get("parallel_tool_calls") is not None:
            fields["parallel_tool_calls"] = asked["parallel_tool_calls"]
    return fields


def _tool_choice(choice: Any, tools: ToolTable, dropped: Dropped) -> Any:
    match choice:
        case None | str():
            return choice
        case {"type": "function" | "custom", "name": str(name)}:
            namespace = optional_string(choice, "namespace", "tool_choice")
            return {"type": "function", "function": {"name": tools.function_of(ToolName(name, namespace))}}
        case _:
            dropped.add("tool_choice")
            return None


def _response_format(value: Any, dropped: Dropped) -> Mapping[str, Any] | None:
    if value is None:
        return None
    text = required_object(value, "text")
    if text.get("verbosity") is not None:
        dropped.add("text.verbosity")
    if text.get("format") is None:
        return None
    form = required_object(text["format"], "text.format")
    match required_string(form, "type", "text.format"):
        case "text":
            return None
        case "json_object":
            return {"type": "json_object"}
        case "json_schema":
            named = {"name": required_string(form, "name", "text.format")}
            rest = {key: form[key] for key in ("description", "schema", "strict") if form.get(key) is not None}
            return {"type": "json_schema", "json_schema": {**named, **rest}}
        case _:
            dropped.add("text.format")
            return None


def _note_not_honoured(asked: Mapping[str, Any], dropped: Dropped) -> None:
    for field in _NOT_HONOURED:
        if asked.get(field) is not None:
            dropped.add(field)
    if asked.get("truncation") == "auto":
        dropped.add("truncation")
    match asked.get("reasoning"):
        case {"effort": effort} if effort is not None:
            dropped.add("reasoning.effort")
    if any(name != _ENCRYPTED for name in _included(asked)):
        dropped.add("include")


def _included(asked: Mapping[str, Any]) -> Sequence[Any]:
    included = asked.get("include")
    return [] if included is None else required_list(included, "include")


def _repeated(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the response says of the request, as the API does."""
    return {
        "instructions": asked.get("instructions"),
        "max_output_tokens": asked.get("max_output_tokens"),
        "metadata": asked.get("metadata") or {},
        "parallel_tool_calls": asked.get("parallel_tool_calls", True),
        "previous_response_id": asked.get("previous_response_id"),
        "store": asked.get("store", True),
        "temperature": asked.get("temperature"),
        "text": asked.get("text") or {"format": {"type": "text"}},
        "tool_choice": asked.get("tool_choice") or "auto",
        # Long, and written more than once.
        "tools": msgspec.Raw(json.encode(asked.get("tools") or [])),
        "top_p": asked.get("top_p"),
        "truncation": "disabled",
        "user": asked.get("user"),
    }
