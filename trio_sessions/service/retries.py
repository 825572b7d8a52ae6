"""Requests that say they are retries get the answer of the turn they repeat; nothing is sampled twice.

A request without such a mark is a turn of its own, also when it repeats another to the letter: that is how several
continuations of one prompt are sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import trio

from trio_sessions.core.history import Checkpoint
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.errors import InvalidRequest
from trio_sessions.service.dialect import AnswerWriter

__all__ = ["Attempt", "AttemptResult", "RetryMark", "SessionAttempts"]

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


@dataclass(frozen=True, slots=True, eq=False)
class AttemptResult:
    """How an attempt ended, where it did not fail.

    Attributes:
        answer: the engine's; of a usable one compact JSON without replay payloads.
        remaining_tokens: how many ids the conversation may still grow by, where there is a limit.
        committed: the turn that was recorded, or None where none was.
    """

    answer: EngineAnswer
    remaining_tokens: int | None = None
    committed: Checkpoint | None = None


class Attempt:
    """One attempt at a request, which later ones may join.

    Args:
        fingerprint: of what it asks for.
        key: from its mark.

    Attributes:
        over: set once it has ended.
        ended_at: trio's time when it ended.
        abandoned: whether its client went away while nobody else waited: it ends soon, one way or the other.
        owed: how many of those who waited for it were told that it failed, and have not come again yet.
    """

    def __init__(self, fingerprint: bytes, key: str | None) -> None:
        self.fingerprint = fingerprint
        self.key = key
        self.over = trio.Event()
        self.ended_at: float | None = None
        self.abandoned = False
        self.owed = 0
        self._attended = True
        self._joined = 0
        self._unattended = trio.Event()
        self._unattended.set()
        self._joined_again = trio.Event()
        self._writer: AnswerWriter | None = None
        self._readied = trio.Event()
        self._result: AttemptResult | Exception | None = None

    def is_answered_by(self, writer: AnswerWriter) -> None:
        """The request was read: ``writer`` writes its answer, for all who wait for it."""
        self._writer = writer
        self._readied.set()

    def end(self, result: AttemptResult | Exception) -> None:
        """It has ended, for all who wait for it."""
        self._result = result
        self.ended_at = trio.current_time()
        if not self.is_answer:
            # Where all have left, the last of them comes again; those before it were its own earlier attempts.
            self.owed = max(1, self._attended + self._joined)
        self.over.set()
        self._readied.set()

    @property
    def is_answer(self) -> bool:
        """Whether it ended with an answer that is recorded, and can be given again."""
        return isinstance(self._result, AttemptResult) and self._result.committed is not None

    @contextmanager
    def joined_by_another(self) -> Iterator[None]:
        """Somebody else waits for it: it goes on when its own client leaves."""
        if not self._joined:
            self._unattended = trio.Event()
        self._joined += 1
        self._joined_again.set()
        try:
            yield
        finally:
            self._joined -= 1
            if not self._joined:
                self._joined_again = trio.Event()
                self._unattended.set()

    async def writer(self) -> AnswerWriter:
        """What writes the answer, once the request was read.

        Raises:
            Exception: as the attempt itself.
        """
        await self._readied.wait()
        if self._writer is None:
            await self.outcome()
            raise AssertionError("an attempt that was never read has failed")
        return self._writer

    async def outcome(self) -> AttemptResult:
        """How it ended, once it has.

        Raises:
            Exception: as the attempt itself.
        """
        await self.over.wait()
        if isinstance(self._result, AttemptResult):
            return self._result
        assert self._result is not None
        # Each of those who waited raises it anew.
        raise self._result.with_traceback(None)

    async def left_alone(self, *, linger: float) -> None:
        """Its own client has gone; returns when nobody else waits for it, or has come within ``linger`` seconds."""
        self._attended = False
        while True:
            while self._joined:
                await self._unattended.wait()
            with trio.move_on_after(linger):
                await self._joined_again.wait()
            if not self._joined:
                break
        self.abandoned = True


class SessionAttempts:
    """The attempts at requests of one session that may be retried.

    Args:
        window: seconds for which an answer is given again.
    """

    def __init__(self, *, window: float) -> None:
        self._window = window
        self._attempts: list[Attempt] = []

    @property
    def has_answers(self) -> bool:
        """Whether an answer is kept, which may still be asked for."""
        return any(attempt.is_answer for attempt in self._attempts)

    async def find(self, mark: RetryMark, fingerprint: bytes) -> Attempt | None:
        """The attempt that a request repeats; None where it is to begin one of its own.

        Raises:
            InvalidRequest: its key belongs to another request.
        """
        found = self._find(mark, fingerprint)
        while found is not None and found.abandoned and not found.over.is_set():
            # Most often it is cancelled, but where it commits already it has the answer.
            await found.over.wait()
            found = self._find(mark, fingerprint)
        return found

    def begin(self, mark: RetryMark, fingerprint: bytes) -> Attempt:
        """A new attempt, which ends with ``end``."""
        attempt = Attempt(fingerprint, mark.key)
        self._attempts.append(attempt)
        return attempt

    def end(self, attempt: Attempt, result: AttemptResult | Exception) -> None:
        """It was answered, and those who joined it, or repeat it for a while, get the same; or it failed, and what
        repeats it is a new attempt.
        """
        attempt.end(result)
        # In the order in which they ended.
        self._attempts.remove(attempt)
        self._attempts.append(attempt)
        self.forget_old()

    def _find(self, mark: RetryMark, fingerprint: bytes) -> Attempt | None:
        self.forget_old()
        if mark.key is not None:
            for attempt in self._attempts:
                if attempt.key == mark.key:
                    if attempt.fingerprint != fingerprint:
                        raise InvalidRequest(
                            "the idempotency-key was used for another request of this session; a retry sends the same "
                            "request again, and another request has another key"
                        )
                    return attempt
        if not mark.is_retry:
            return None
        return self._likeliest([attempt for attempt in self._attempts if attempt.fingerprint == fingerprint])

    def _likeliest(self, same: Sequence[Attempt]) -> Attempt | None:
        """Whose retry it is, where nothing but the request tells: of several samples of one prompt each has its own.

        One that failed comes again as a rule, and gets a turn of its own, not the answer of another. Then one that
        still runs, whose connection may be lost without our knowing.
        """
        for attempt in same:
            if attempt.owed:
                attempt.owed -= 1
                if not attempt.owed:
                    self._attempts.remove(attempt)
                return None
        return min(same, key=lambda attempt: attempt.over.is_set(), default=None)

    def forget_old(self) -> None:
        """Let go of answers that are not given again any more."""
        now = trio.current_time()
        self._attempts = [
            attempt
            for attempt in self._attempts
            if attempt.ended_at is None
            or (now < attempt.ended_at + self._window and (attempt.is_answer or (attempt.owed and attempt.key is None)))
        ]
        ended = [attempt for attempt in self._attempts if attempt.ended_at is not None]
        for attempt in ended[: max(0, len(ended) - _MOST_KEPT)]:
            self._attempts.remove(attempt)
