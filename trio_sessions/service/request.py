"""A client's request for a turn: as it arrived, and as its dialect reads it."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from trio_sessions.core import json
from trio_sessions.core.caller import NOBODY, Caller
from trio_sessions.core.matchers import Matcher
from trio_sessions.core.request import PreparedRequest
from trio_sessions.core.stream import Delta
from trio_sessions.engine.base import Headers
from trio_sessions.service.dialect import EventWriter, Exchange
from trio_sessions.service.retries import RetryMark
from trio_sessions.service.session import WaitsForDisconnect

__all__ = ["ReadRequest", "TurnRequest", "Waiting"]


class Waiting(Protocol):
    """Keeps the client of a stream waiting while the engine works."""

    def begin(self, writer: EventWriter, remaining_tokens: int | None) -> None:
        """From now on until ``settle``: open the stream after a while, or with the first part of the answer, and then
        show now and again that it is alive.

        Args:
            writer: of the stream; nobody else uses it until ``settle``.
            remaining_tokens: how many ids the prompt leaves, for the head of the reply; None where there is no limit.
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


@dataclass(frozen=True, slots=True, eq=False)
class ReadRequest:
    """A request as its dialect reads it.

    Attributes:
        exchange: the request, and how its answer is written.
        prepared: what goes to the engine, still without a prompt.
        matcher: decides whether it repeats what is stored.
        caller: who made it, and what for.
        fingerprint: a hash of all that is asked for, where the request may be retried.
    """

    exchange: Exchange
    prepared: PreparedRequest
    matcher: Matcher
    caller: Caller
    fingerprint: bytes | None = None

    def fingerprint_in(self, dialect: str) -> bytes:
        """A hash of all that is asked for, in that dialect, whether as a stream or not."""
        extends = self.exchange.extends
        asked = (
            dialect,
            self.caller.to_json(),
            self.prepared.fields,
            self.prepared.template_kwargs,
            None if extends is None else extends.response_id,
        )
        fingerprint = blake2b(json.encode(asked), digest_size=16)
        fingerprint.update(self.prepared.spelled_messages or json.encode(list(self.prepared.messages)))
        return fingerprint.digest()
