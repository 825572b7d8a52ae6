"""What a worker believes another about who may do what."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

import structlog
import trio

from trio_sessions.engine.base import RawHeaders
from trio_sessions.workers.membership import Membership
from trio_sessions.workers.ownership import owner_of, session_in
from trio_sessions.workers.peers import PeerFailed, PeerRequest, Peers

if TYPE_CHECKING:
    from hypercorn.typing import HTTPScope

__all__ = ["HOP_HEADER", "WorkerTrust"]

HOP_HEADER: Final = b"x-trio-sessions-hop"

_CREDENTIALS: Final = (b"authorization", b"x-api-key")
_ANSWER_SECONDS: Final = 5.0
_REFUSALS: Final = (401, 403)

_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.workers")


class WorkerTrust:
    """See ``trio_sessions.web.guard.Neighbours``.

    Args:
        members: all workers.
        secret: known to the workers alone; marks what one of them has passed on.
        peers: asks the others.
    """

    def __init__(self, members: Membership, secret: str, peers: Peers) -> None:
        self._members = members
        self._secret = secret.encode()
        self._peers = peers

    def elsewhere(self, session_id: str) -> bool:
        """Whether another worker has the session."""
        owner = self._owner(f"/sessions/{session_id}")
        return owner is not None and owner != self._members.index

    def vouched(self, headers: RawHeaders) -> bool:
        """Whether another worker has passed the request on."""
        return any(map(self.is_mark, headers))

    def is_mark(self, header: tuple[bytes, bytes]) -> bool:
        """Whether a header says so."""
        name, value = header
        return name == HOP_HEADER and hmac.compare_digest(value, self._secret)

    async def admits(self, scope: HTTPScope) -> bool:
        """Whether the worker that has the session admits the request; also where it does not say."""
        owner = self._owner(scope["path"])
        assert owner is not None
        credentials = [header for header in scope["headers"] if header[0].lower() in _CREDENTIALS]
        headers = [(b"host", b"worker"), *credentials, (HOP_HEADER, self._secret)]
        # Which the guard judges like every other method, and nothing comes of it.
        request = PeerRequest("OPTIONS", scope["raw_path"], headers, b"")
        try:
            with self._members.while_up(owner), trio.move_on_after(_ANSWER_SECONDS):
                async with self._peers.ask(self._members.urls[owner], request) as response:
                    return response.status not in _REFUSALS
        except PeerFailed as error:
            _log.warning("no answer from a worker", asked=owner, error=str(error))
        # The request is then told that the worker is down.
        return True

    def _owner(self, path: str) -> int | None:
        session_id = session_in(path)
        return None if session_id is None else owner_of(session_id, len(self._members.urls))
