"""Whether a call is tried again, and when: decided here, done by the clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import httpx

from trio_sessions.client.errors import GatewayUnreachable, SessionNotFound, StatusError, UnusableAnswer
from trio_sessions.client.wire import Answer, Call
from trio_sessions.errors import ConfigurationError

__all__ = ["NO_RETRIES", "Attempts", "Done", "RetryPolicy", "Wait"]

Result = TypeVar("Result")

# Nothing of the request has left this process.
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
# Somebody on the way has no time now, or cannot reach the next one. A 500 would be a 500 again.
_PASSING: Final = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently.

    Attributes:
        attempts: how many times a request is sent at most.
        first_delay: seconds before the second attempt; every further delay is twice the one before.
        longest_delay: no delay is longer, whatever the gateway asks for.

    Raises:
        ConfigurationError: a number makes no sense.
    """

    attempts: int = 4
    first_delay: float = 0.2
    longest_delay: float = 5.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or not 0 <= self.first_delay <= self.longest_delay < float("inf"):
            raise ConfigurationError(
                f"retries need at least one attempt and 0 <= first_delay <= longest_delay, got {self}"
            )

    def delay(self, failures: int, *, jitter: float, retry_after: float | None = None) -> float:
        """Seconds to wait after so many failures.

        Args:
            failures: at least 1.
            jitter: from 0 to 1: callers that failed together shall not come back together.
            retry_after: what the gateway asked for.
        """
        # The exponent is bounded before it is used: 2.0 ** 2000 is an error, not infinity.
        grown = min(self.first_delay * 2.0 ** min(failures - 1, 64), self.longest_delay)
        return min(max(grown * (0.5 + jitter / 2), retry_after or 0.0), self.longest_delay)


NO_RETRIES: Final = RetryPolicy(attempts=1)
"""Every failure is raised at once."""


@dataclass(frozen=True, slots=True)
class Done(Generic[Result]):
    """The call has a result."""

    result: Result


@dataclass(frozen=True, slots=True)
class Wait:
    """The call is to be sent again after so many seconds."""

    seconds: float


class Attempts(Generic[Result]):
    """The attempts at one call: is told what came of each, and says what to do or raises.

    Args:
        call: what is attempted.
        policy: how often.
        jitter: draws from 0 to 1.
        gateway: its URL, for the texts of errors.
    """

    def __init__(self, call: Call[Result], policy: RetryPolicy, jitter: Callable[[], float], *, gateway: str) -> None:
        self._call = call
        self._gateway = gateway
        self._policy = policy
        self._jitter = jitter
        self._failures = 0
        self._may_have_arrived = False

    def answered(self, answer: Answer) -> Done[Result | None] | Wait:
        """What to do about an answer.

        Raises:
            ClientError: the answer is an error that is not tried again.
        """
        try:
            return Done(self._call.result(answer))
        except SessionNotFound:
            if self._call.gone_is_done and self._may_have_arrived:
                return Done(None)
            raise
        except StatusError as error:
            # Whoever answered may have passed the request on.
            self._may_have_arrived = True
            if self._call.repeatable and error.status in _PASSING:
                return self._again(error, error.retry_after)
            raise

    def failed(self, error: httpx.HTTPError) -> Wait:
        """What to do about a request without an answer.

        Raises:
            ClientError: it is not tried again.
        """
        if isinstance(error, httpx.DecodingError):
            raise UnusableAnswer(f"the answer cannot be decoded: {error}", body=b"") from error
        sent = not isinstance(error, _NOT_SENT)
        self._may_have_arrived |= sent
        described = ": ".join(filter(None, (type(error).__name__, str(error))))
        failure = GatewayUnreachable(
            f"no answer from {self._gateway} to {self._call.method} {self._call.path}: {described}",
            may_have_arrived=self._may_have_arrived,
        )
        failure.__cause__ = error
        if sent and not self._call.repeatable:
            raise failure
        return self._again(failure, None)

    def _again(self, error: Exception, retry_after: float | None) -> Wait:
        self._failures += 1
        if self._failures >= self._policy.attempts:
            raise error
        return Wait(self._policy.delay(self._failures, jitter=self._jitter(), retry_after=retry_after))
