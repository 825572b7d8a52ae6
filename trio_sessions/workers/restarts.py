"""How soon a dead worker is started again, and when that is given up."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RestartPolicy", "Restarts", "WorkersFailed"]


class WorkersFailed(Exception):
    """Workers do not stay alive; the text says which and how it ended."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often and how patiently.

    Attributes:
        attempts: how many restarts in a row that come to nothing are tried.
        first_delay: seconds before the first restart; every further delay is twice the one before.
        longest_delay: no delay is longer, in seconds.
        steady_after: seconds of service after which a worker counts as one that works.
    """

    attempts: int = 5
    first_delay: float = 0.1
    longest_delay: float = 10.0
    steady_after: float = 60.0


class Restarts:
    """The deaths of one worker.

    Args:
        policy: what to do about them.
    """

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._quick = 0

    def died(self, *, served: float) -> float | None:
        """Seconds until the worker is to be started again; None when it is to be given up.

        Args:
            served: seconds for which it answered requests before it died.
        """
        if served >= self._policy.steady_after:
            self._quick = 0
        self._quick += 1
        if self._quick > self._policy.attempts:
            return None
        return float(min(self._policy.first_delay * 2 ** (self._quick - 1), self._policy.longest_delay))
