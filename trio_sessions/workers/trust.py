"""What a worker believes another about who may do what."""

from __future__ import annotations

import hmac
from typing import Final

from trio_sessions.web.access import RawHeaders
from trio_sessions.workers.ownership import owner_of, session_in

__all__ = ["HOP_HEADER", "WorkerTrust"]

HOP_HEADER: Final = b"x-trio-sessions-hop"


class WorkerTrust:
    """See ``trio_sessions.web.guard.Neighbours``.

    Args:
        index: of this worker.
        workers: how many there are.
        secret: known to the workers alone; marks what one of them has passed on.
    """

    def __init__(self, index: int, workers: int, secret: str) -> None:
        self._index = index
        self._workers = workers
        self._secret = secret.encode()

    def elsewhere(self, session_id: str) -> bool:
        """Whether another worker has the session."""
        known = session_in(f"/sessions/{session_id}")
        return known is not None and owner_of(known, self._workers) != self._index

    def vouched(self, headers: RawHeaders) -> bool:
        """Whether another worker has passed the request on."""
        return any(map(self.is_mark, headers))

    def is_mark(self, header: tuple[bytes, bytes]) -> bool:
        """Whether a header says so."""
        name, value = header
        return name == HOP_HEADER and hmac.compare_digest(value, self._secret)
