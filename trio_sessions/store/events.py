"""What is written down of a session: events, of which it can be made again exactly.

The turns of a session are numbered from 0 in the order of their commits, those that were given up later included.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from trio_sessions.core.boundary import BoundaryKind
from trio_sessions.core.caller import Purpose

__all__ = [
    "AnswerNoted",
    "Event",
    "InvalidEvent",
    "NotedBoundary",
    "SessionCreated",
    "TurnCommitted",
    "TurnsDiscarded",
    "decode_event",
    "encode_event",
]


class InvalidEvent(ValueError):
    """The bytes are no event."""


class SessionCreated(msgspec.Struct, frozen=True, tag="created", omit_defaults=True):
    """The first event of a session.

    Attributes:
        created: naive local time, ISO 8601; what templates are told.
        deadline: seconds since the epoch from which on it takes no turn; None for never.
        token_digest: of the token that opens its model routes; None where there is none.
    """

    created: str
    deadline: float | None = None
    token_digest: bytes | None = None


class NotedBoundary(msgspec.Struct, frozen=True, array_like=True):
    """A ``BoundaryEvent``."""

    kind: BoundaryKind
    position: int
    detail: str


class TurnCommitted(msgspec.Struct, frozen=True, tag="turn", omit_defaults=True):
    """One committed turn: what its checkpoint and record hold, but for what its parent holds already.

    Attributes:
        parent: number of the turn it extends; None for a root.
        ticket: the state of the history that it was attached to.
        discards: how many turns it took the place of.
        keep: how many ids of the parent stand.
        suffix: the prompt's other ids, little-endian int32.
        sampled: ids that the engine sampled, likewise.
        synthetic: how many leading ids of ``suffix`` close the turn before.
        messages: JSON list: what was appended, then the sampled assistant message. JSON, as it alone has integers of
            any size.
        respelled: JSON list of pairs of index and message.
        tools: as in ``RenderedWith``; None for the parent's.
        template_kwargs: likewise.
        request_fields: as in ``TurnRecord``; None for the parent's.
        boundary: what was declared at the seam before it.
        response: the engine's whole answer, with the log probs of ``sampled``.
    """

    parent: int | None
    ticket: int
    keep: int
    suffix: bytes
    sampled: bytes
    messages: bytes
    method: str
    request_timestamp: float
    timestamp: float
    response: bytes
    discards: int = 0
    synthetic: int = 0
    respelled: bytes | None = None
    tools: bytes | None = None
    template_kwargs: bytes | None = None
    request_fields: bytes | None = None
    routed_experts_start: int | None = None
    boundary: tuple[NotedBoundary, ...] = ()
    finish_reason: str | None = None
    response_id: str | None = None
    agent: str | None = None
    thread: str | None = None
    parent_thread: str | None = None
    purpose: Purpose | None = None
    status_code: int = 200


class TurnsDiscarded(msgspec.Struct, frozen=True, tag="discarded"):
    """Turns were given up, and none took their place.

    Attributes:
        base: number of the turn that the session stands at now; None for an empty session.
        ticket: the state of the history it was decided on.
        discards: how many.
    """

    base: int | None
    ticket: int
    discards: int


class AnswerNoted(msgspec.Struct, frozen=True, tag="answer"):
    """What became of an answer.

    Attributes:
        turn: number of the turn.
        received: whether a client has it.
    """

    turn: int
    received: bool


Event: TypeAlias = SessionCreated | TurnCommitted | TurnsDiscarded | AnswerNoted

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Event)


def encode_event(event: Event) -> bytes:
    """``event`` as MessagePack."""
    return _encoder.encode(event)


def decode_event(payload: bytes) -> Event:
    """The event in ``payload``.

    Raises:
        InvalidEvent: there is none.
    """
    try:
        event: Event = _decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidEvent(str(error)) from error
    return event
