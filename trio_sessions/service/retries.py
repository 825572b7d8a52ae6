"""Requests that say they are retries get the answer of the turn they repeat; nothing is sampled twice.

A request without such a mark is a turn of its own, also when it repeats another to the letter: that is how several
continuations of one prompt are sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from trio_sessions.core.history import Checkpoint
from trio_sessions.engine.base import EngineAnswer, Headers
from trio_sessions.errors import InvalidRequest

__all__ = ["Answered", "Attempt", "Attempts", "RetryMark", "retry_mark"]

_KEY_HEADER: Final = "idempotency-key"
# The SDKs of OpenAI and Anthropic number their attempts, from 0.
_COUNT_HEADER: Final = "x-stainless-retry-count"
_MOST_KEPT: Final = 16


@dataclass(frozen=True, slots=True)
class RetryMark:
    """What a request says of being a retry.

    Attributes:
        key: the same for all attempts at one request; None where the client names none.
        is_retry: whether it says that it is not the first attempt.
    """

    key: str | None
    is_retry: bool


def retry_mark(headers: Headers) -> RetryMark | None:
    """The mark of a request; None where it says nothing, and can neither be a retry nor be retried."""
    key: str | None = None
    count: str | None = None
    for name, value in headers:
        if name == _KEY_HEADER:
            key = value
        elif name == _COUNT_HEADER:
            count = value
    if key is None and count is None:
        return None
    return RetryMark(key=key or None, is_retry=count is not None and count.isdecimal() and int(count) > 0)


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """How an attempt ended well.

    Attributes:
        answer: the engine's; of a usable one compact JSON without replay payloads.
        headers: what the reply had beside those of its dialect.
        checkpoint: the turn that was committed, or None where none was.
    """

    answer: EngineAnswer
    headers: Headers
    checkpoint: Checkpoint | None


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at a request, which later ones may join.

    Attributes:
        digest: of what it asks for.
        key: from its mark.
        response_id: the id that its client sees of the answer; None where it is the engine's.
        abandoned: whether its client went away while nobody else waited: it ends soon, one way or the other.
        joined: how many requests wait for it beside its own.
        unattended: set while nobody waits for it beside its own client.
        over: set once it has ended.
        finished_at: trio's time when it was answered.
    """

    digest: bytes
    key: str | None
    response_id: str | None = None
    abandoned: bool = False
    joined: int = 0
    unattended: trio.Event = field(default_factory=trio.Event)
    over: trio.Event = field(default_factory=trio.Event)
    finished_at: float | None = None
    _result: Answered | Exception | None = None

    def __post_init__(self) -> None:
        self.unattended.set()

    async def outcome(self) -> Answered:
        """How it ended, once it has.

        Raises:
            Exception: as the attempt itself.
        """
        if not self.joined:
            self.unattended = trio.Event()
        self.joined += 1
        try:
            await self.over.wait()
        finally:
            self.joined -= 1
            if not self.joined:
                self.unattended.set()
        assert self._result is not None
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    async def left_alone(self) -> None:
        """Returns when nobody waits for it any more, besides its own client."""
        while self.joined:
            await self.unattended.wait()
        self.abandoned = True

    def end(self, result: Answered | Exception) -> None:
        """It has ended, for all who wait for it."""
        self._result = result
        self.over.set()


class Attempts:
    """The attempts at requests of one session that may be retried.

    Args:
        window: seconds for which an answer is given again.
        clock: trio's time.
    """

    def __init__(self, *, window: float, clock: Callable[[], float] = trio.current_time) -> None:
        self._window = window
        self._clock = clock
        self._attempts: list[Attempt] = []

    async def find(self, mark: RetryMark, digest: bytes) -> Attempt | None:
        """The attempt that a request repeats; None where it is the first.

        Raises:
            InvalidRequest: its key belongs to another request.
        """
        found = self._find(mark, digest)
        while found is not None and found.abandoned and not found.over.is_set():
            # Most often it is cancelled, but where it commits already it has the answer.
            await found.over.wait()
            found = self._find(mark, digest)
        return found

    def _find(self, mark: RetryMark, digest: bytes) -> Attempt | None:
        self._forget_old()
        if mark.key is not None:
            for attempt in self._attempts:
                if attempt.key == mark.key:
                    if attempt.digest != digest:
                        raise InvalidRequest(
                            "the idempotency-key was used for another request of this session; a retry sends the same "
                            "request again, and another request has another key"
                        )
                    return attempt
        if not mark.is_retry:
            return None
        same = [attempt for attempt in self._attempts if attempt.digest == digest]
        # Of several samples of one prompt the one that is still running is the likelier to have lost its client.
        return min(same, key=lambda attempt: attempt.over.is_set(), default=None)

    def begin(self, mark: RetryMark, digest: bytes, *, response_id: str | None) -> Attempt:
        """A new attempt, which ends with ``succeed`` or ``fail``."""
        attempt = Attempt(digest=digest, key=mark.key, response_id=response_id)
        self._attempts.append(attempt)
        return attempt

    def succeed(self, attempt: Attempt, answered: Answered) -> None:
        """It was answered: those who joined it get the same, and so do those who repeat it for a while."""
        attempt.end(answered)
        if answered.answer.status == 200:
            attempt.finished_at = self._clock()
        else:
            self._forget(attempt)

    def fail(self, attempt: Attempt, error: Exception) -> None:
        """It was not, and neither are those who joined it; what repeats it later is a new attempt."""
        attempt.end(error)
        self._forget(attempt)

    def _forget(self, forgotten: Attempt) -> None:
        self._attempts = [attempt for attempt in self._attempts if attempt is not forgotten]

    def _forget_old(self) -> None:
        now = self._clock()
        finished = [attempt for attempt in self._attempts if attempt.finished_at is not None]
        too_many = finished[: max(0, len(finished) - _MOST_KEPT)]
        self._attempts = [
            attempt
            for attempt in self._attempts
            if attempt not in too_many and (attempt.finished_at is None or now < attempt.finished_at + self._window)
        ]
