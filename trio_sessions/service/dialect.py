"""What the turn pipeline knows of a chat API: how its requests are read, and how its answers are spelled.

Every dialect is read into a chat request, which is what engines and templates understand, and written from the engine's
chat answer. Dialects only compute; when to send what is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trio_sessions.core.history import Checkpoint
from trio_sessions.core.request import ChatBody, SentMessages
from trio_sessions.core.stream import Delta
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.service.failure import Failure
from trio_sessions.service.replies import Reply

__all__ = ["AnswerWriter", "CountingDialect", "Dialect", "EventWriter", "Exchange", "Reading"]


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What a dialect may use to read a request of a session.

    Attributes:
        sent: the messages of the chat request that committed last, or None.
        roles: tells what may be appended after an assistant's message under the launch's template kwargs.
        answered: the turn that was answered under a response id, or None where there is none.
        answers_at: the turns whose answer is the message of an index in their conversation, in the order of commits.
        new_id: draws 32 hex digits, for dialects that give the answer an id of their own.
        now: seconds since the epoch, for dialects that date the answer before the engine does.
    """

    sent: SentMessages | None
    roles: Callable[[], frozenset[str]]
    answered: Callable[[str], Checkpoint | None]
    answers_at: Callable[[int], Sequence[Checkpoint]]
    new_id: Callable[[], str]
    now: Callable[[], float]


class EventWriter(Protocol):
    """Writes one answer as server-sent events. What was written before is not repeated."""

    def opening(self) -> bytes:
        """The beginning of the stream, before anything of the answer is known; written at most once."""

    def keep_alive(self) -> bytes:
        """What tells the client that the answer is still on its way; after ``opening`` or a ``delta`` that was some."""

    def delta(self, delta: Delta) -> bytes:
        """A part of the answer, also where nothing was written before; empty where the client is not shown it."""

    def finish(self, answer: EngineAnswer) -> bytes:
        """All that is still missing of ``answer``, whose body is compact JSON without replay payloads, and the end.

        Where there were deltas, its reasoning and its content begin with theirs: it is made of them.
        """

    def broken(self, failure: Failure) -> bytes:
        """The error event that ends the stream instead; after ``opening`` or a ``delta`` that was some."""


class AnswerWriter(Protocol):
    """Writes the answer to one request, as often as it is asked for; holds nothing of the conversation."""

    @property
    def response_id(self) -> str | None:
        """The id that the client sees of the answer; None where it is the engine's."""

    def reply(self, answer: EngineAnswer) -> Reply:
        """The whole reply, not streamed; the answer's body is compact JSON without replay payloads."""

    def events(self) -> EventWriter:
        """Writes it as a stream."""


class Exchange(Protocol):
    """One request in a dialect, and how its answer is written."""

    @property
    def chat(self) -> ChatBody:
        """The request as a chat request."""

    @property
    def stream(self) -> bool:
        """Whether the client wants the answer as server-sent events."""

    @property
    def extends(self) -> Checkpoint | None:
        """The turn that the request names as the one it extends, in one way or another."""

    @property
    def dropped(self) -> Sequence[str]:
        """What of the request cannot be honoured and was left out, a short text each; never what a message says."""

    @property
    def writer(self) -> AnswerWriter:
        """Writes the answer."""


class Dialect(Protocol):
    """One chat API."""

    @property
    def name(self) -> str:
        """For logs."""

    @property
    def matcher(self) -> str:
        """Name of the matcher that its clients need where the launch names none."""

    def read(self, body: bytes, reading: Reading) -> Exchange:
        """The request in ``body``.

        Raises:
            InvalidRequest: it cannot be read; the text names the place.
        """

    def failed(self, failure: Failure) -> Reply:
        """The reply to a request that failed before anything was sent."""

    def refused(self, answer: EngineAnswer) -> Reply:
        """The reply to a request that the engine refused with a status that is not 200."""


class CountingDialect(Dialect, Protocol):
    """A chat API in which the length of a prompt can be asked for."""

    def counted(self, tokens: int) -> Reply:
        """The reply that says how many ids a prompt would have."""
