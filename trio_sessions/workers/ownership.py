"""Which worker has a session: told from the session's id alone, so that every worker knows it without asking."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from trio_sessions.web.paths import routed

__all__ = ["Placement", "owned_id", "owner_of", "session_in"]

_IDS: Final = 2**128
# What follows an id is a slash or nothing. An id of another form is nobody's, and any worker may say so.
_SESSION: Final = re.compile(r"/sessions/([0-9a-f]{32})(?=/|\Z)")


def owner_of(session_id: str, workers: int) -> int:
    """Index of the worker that has ``session_id``, 32 lowercase hex digits."""
    return int(session_id, 16) % workers


def owned_id(drawn: int, *, owner: int, workers: int) -> str:
    """A session id of ``owner``, as random as ``drawn``, which has 128 bits."""
    value = drawn - drawn % workers + owner
    return f"{value if value < _IDS else value - workers:032x}"


def session_in(path: str) -> str | None:
    """The session that a request of ``path`` is about, or None.

    Args:
        path: decoded, as in an ASGI scope: what routes are matched against, so that whatever a client encodes there is
            one reading of it.
    """
    found = _SESSION.match(routed(path))
    return found[1] if found else None


class Placement:
    """Where new sessions go: to each worker in turn.

    Args:
        first: index of the worker that gets the first; each of several places starts elsewhere.
        workers: how many there are.
    """

    def __init__(self, first: int, workers: int) -> None:
        self._next = first % workers
        self._workers = workers

    def draw(self, up: Sequence[bool]) -> tuple[int, ...]:
        """Indices of the workers that are up, in the order in which they are to be asked."""
        order = [(self._next + step) % self._workers for step in range(self._workers)]
        usable = tuple(index for index in order if up[index])
        # From behind the one drawn, so that the neighbour of one that is down does not get twice its share.
        self._next = (usable[0] + 1 if usable else self._next) % self._workers
        return usable
