"""From a Messages request to the chat request it comes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trio_sessions.core import json
from trio_sessions.core.request import ChatBody
from trio_sessions.errors import InvalidRequest
from trio_sessions.web.dialects.messages.conversation import chat_messages
from trio_sessions.web.dialects.messages.leftovers import Leftovers, label
from trio_sessions.web.dialects.messages.shapes import Request, shaped
from trio_sessions.web.dialects.messages.tools import tool_fields

__all__ = ["MessagesRequest", "read_request"]

# Chat has them under the same names.
_SAME: Final = ("model", "max_tokens", "temperature", "top_p", "top_k")
# What engines know beside the API.
_EXTRA: Final = ("chat_template_kwargs", "seed", "separate_reasoning", "skip_special_tokens")
# What leaves the answer as it is.
_HARMLESS: Final = frozenset({"metadata", "betas", "service_tier", "cache_control", "inference_geo"})
_KNOWN: Final = frozenset(Request.__struct_fields__) | _HARMLESS | frozenset(_EXTRA)


@dataclass(frozen=True, slots=True, eq=False)
class MessagesRequest:
    """A request as it was read.

    Attributes:
        chat: what it comes to.
        stream: whether the answer is wanted as events.
        model: as the client names it, or empty.
        thinking: whether the client wants to see the reasoning.
        dropped: what was left out, a short text each.
    """

    chat: ChatBody
    stream: bool
    model: str
    thinking: bool
    dropped: Sequence[str]


def read_request(body: bytes, roles: Callable[[], frozenset[str]]) -> MessagesRequest:
    """The request in ``body``.

    Args:
        body: JSON.
        roles: what the template renders behind an assistant's message.

    Raises:
        InvalidRequest: it cannot be read; the text names the place.
    """
    try:
        decoded = json.decode(body)
    except json.InvalidJSON as error:
        raise InvalidRequest(f"invalid JSON body: {error}") from error
    request = shaped(decoded, Request, "")
    leftovers = Leftovers()
    messages = chat_messages(request.system, request.messages, roles, leftovers)
    fields = _fields(request, decoded, leftovers)
    return MessagesRequest(
        chat=ChatBody(fields=fields, messages=messages),
        stream=bool(request.stream),
        model=request.model or "",
        thinking=request.thinking is not None and request.thinking.type in ("enabled", "adaptive"),
        dropped=leftovers.texts(),
    )


def _fields(request: Request, decoded: Mapping[str, Any], leftovers: Leftovers) -> dict[str, Any]:
    """All but the messages."""
    fields = {name: value for name in _SAME if (value := getattr(request, name)) is not None}
    if request.stop_sequences:
        fields["stop"] = request.stop_sequences
    fields |= tool_fields(request.tools, request.tool_choice, leftovers)
    fields |= {name: value for name in _EXTRA if (value := decoded.get(name)) is not None}
    if request.thinking is not None and request.thinking.budget_tokens is not None:
        leftovers.field("thinking.budget_tokens")
    for name, value in decoded.items():
        if name not in _KNOWN and value is not None:
            leftovers.field(label(name))
    return fields
