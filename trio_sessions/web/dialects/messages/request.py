"""From a Messages request to the chat request it comes to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trio_sessions.core.history import Checkpoint
from trio_sessions.core.request import ChatBody, decode_request
from trio_sessions.service.dialect import Reading
from trio_sessions.web.dialects.dropped import Dropped
from trio_sessions.web.dialects.messages.conversation import Conversation
from trio_sessions.web.dialects.messages.shapes import Request
from trio_sessions.web.dialects.messages.tools import tool_fields
from trio_sessions.web.dialects.shapes import shaped
from trio_sessions.web.dialects.stored import last_answered

__all__ = ["MessagesRequest", "read_request"]

# Chat has them under the same names.
_SAME: Final = ("model", "max_tokens", "temperature", "top_p", "top_k")
# What leaves the answer as it is.
_HARMLESS: Final = frozenset({"metadata", "betas", "service_tier", "cache_control", "inference_geo"})
_KNOWN: Final = frozenset(Request.__struct_fields__) | _HARMLESS


@dataclass(frozen=True, slots=True, eq=False)
class MessagesRequest:
    """A request as it was read.

    Attributes:
        chat: what it comes to.
        stream: whether the answer is wanted as events.
        model: as the client names it, or empty.
        thinking: whether the client wants to see the reasoning.
        extends: the turn that a signature or the id of a call leads to, of several the last.
        dropped: what was left out, a short text each.
    """

    chat: ChatBody
    stream: bool
    model: str
    thinking: bool
    extends: Checkpoint | None
    dropped: Sequence[str]


def read_request(body: bytes, reading: Reading) -> MessagesRequest:
    """The request in ``body``.

    Raises:
        InvalidRequest: it cannot be read; the text names the place.
    """
    decoded = decode_request(body)
    request = shaped(decoded, Request, "")
    dropped = Dropped()
    conversation = Conversation(reading, dropped)
    messages = conversation.read(request.system, request.messages)
    fields = _fields(request, dropped)
    _note_unknown((name for name, value in decoded.items() if value is not None), dropped)
    return MessagesRequest(
        chat=ChatBody(fields=fields, messages=messages),
        stream=bool(request.stream),
        model=request.model or "",
        thinking=request.thinking is not None and request.thinking.type in ("enabled", "adaptive"),
        extends=last_answered(reading, conversation.named),
        dropped=dropped.texts(),
    )


def _fields(request: Request, dropped: Dropped) -> dict[str, Any]:
    """All but the messages."""
    fields = {name: value for name in _SAME if (value := getattr(request, name)) is not None}
    if request.stop_sequences:
        fields["stop"] = request.stop_sequences
    fields |= tool_fields(request.tools, request.tool_choice, dropped)
    fields |= request.engine_fields()
    if request.thinking is not None and request.thinking.budget_tokens is not None:
        dropped.add("thinking.budget_tokens")
    return fields


def _note_unknown(names: Iterable[str], dropped: Dropped) -> None:
    for name in names:
        if name not in _KNOWN:
            dropped.add(name)
