"""A client's request for a turn: as it arrived, and as its dialect reads it."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Protocol

import msgspec

from trio_sessions.core import json
from trio_sessions.core.caller import NOBODY, Caller
from trio_sessions.core.matchers import Matcher
from trio_sessions.core.request import PreparedRequest
from trio_sessions.core.stream import Delta
from trio_sessions.engine.base import Headers
from trio_sessions.service.dialect import EventWriter, Exchange
from trio_sessions.service.retries import RetryMark
from trio_sessions.service.session import WaitsForDisconnect

__all__ = ["ReadRequest", "RequestIdentity", "TurnRequest", "Waiting"]

_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NO_STREAM: Final = (b"", b"false", b"null")


class Waiting(Protocol):
    """Keeps the client of a stream waiting while the engine works."""

    def begin(self, writer: EventWriter, remaining_tokens: int | None) -> None:
        """From now on until ``settle``: open the stream after a while, or with the first part of the answer, and then
        show now and again that it is alive. Called again, with the same writer, it says what is known since.

        Args:
            writer: of the stream; nobody else uses it until ``settle``.
            remaining_tokens: how many ids the prompt leaves, for the head of the reply; None where there is no limit,
                or that is not known yet.
        """

    def offer(self, delta: Delta) -> None:
        """A part of the answer, which is sent as soon as the client has taken what was sent before."""

    def settle(self) -> bool:
        """Open nothing any more and write nothing more, what was offered included; whether the stream was opened."""


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A client's request for a turn as it arrived.

    Attributes:
        caller: who made it; what it is for is told from the request itself.
        mark: what it says of being a retry; None where it says nothing.
        gone: returns when the client has gone away; None where the turn is cancelled then.
        waiting: keeps the client of a stream waiting; None where it waits without a word.
    """

    method: str
    query: str
    headers: Headers
    body: bytes
    caller: Caller = NOBODY
    mark: RetryMark | None = None
    gone: WaitsForDisconnect | None = None
    waiting: Waiting | None = None

    def identity(self, dialect: str) -> RequestIdentity:
        """What tells it from others, in that dialect: all that it says, and nothing of what a session makes of it."""
        stream = False
        fingerprint = blake2b(json.encode((dialect, self.query, self.caller.to_json())), digest_size=16)
        try:
            fields = _fields_decoder.decode(self.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # It will be refused; its retry will be too.
            fingerprint.update(self.body)
        else:
            stream = bytes(fields.pop("stream", b"")) not in _NO_STREAM
            fields.pop("stream_options", None)
            for name, value in fields.items():
                fingerprint.update(json.encode(name))
                fingerprint.update(value)
        return RequestIdentity(fingerprint.digest(), stream)


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """What retries of a request have in common, and what not.

    Attributes:
        fingerprint: a hash of all that is asked for, whether as a stream or not.
        stream: whether a stream is asked for.
    """

    fingerprint: bytes
    stream: bool


@dataclass(frozen=True, slots=True, eq=False)
class ReadRequest:
    """A request as its dialect reads it.

    Attributes:
        exchange: the request, and how its answer is written.
        prepared: what goes to the engine, still without a prompt.
        matcher: decides whether it repeats what is stored.
        caller: who made it, and what for.
    """

    exchange: Exchange
    prepared: PreparedRequest
    matcher: Matcher
    caller: Caller
