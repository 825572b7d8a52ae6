"""What a trainer reads of a session: its records and the metadata of its token sequence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Iterator, Sequence
from typing import Any, Final

import structlog

from trio_sessions.core import json
from trio_sessions.core.compare import Mismatch
from trio_sessions.core.history import Checkpoint, path_of
from trio_sessions.core.records import encode_records
from trio_sessions.core.samples import UNDELIVERED, Forest, tree_metadata
from trio_sessions.errors import InvalidRequest, TokenizationFailed
from trio_sessions.observe import Metrics
from trio_sessions.render.base import Renderer
from trio_sessions.service.offload import LONG_BYTES, Offloader
from trio_sessions.service.session import Session

__all__ = ["SessionInspector"]

# Worth the way to a thread and back.
_PIECE_BYTES: Final = 256 * 1024
_SLICE_BYTES: Final = 2**20
_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.inspect")


class SessionInspector:
    """Renders sessions as JSON, off the event loop: checkpoints are immutable, so no lock is needed.

    Args:
        tree: whether sessions branch, and their structure is shown.
        renderer: the template's own rendering, to compare with.
        metrics: where findings are counted.
        offloader: threads.
    """

    def __init__(self, *, tree: bool, renderer: Renderer, metrics: Metrics, offloader: Offloader) -> None:
        self._tree = tree
        self._renderer = renderer
        self._metrics = metrics
        self._offload = offloader.run
        self._pieces = offloader.iterate

    async def describe(self, session: Session) -> AsyncIterator[bytes]:
        """The body of ``GET /sessions/{id}`` as the session is now, in pieces; no error comes once there are any."""
        active = session.history.active
        undelivered = session.delivery.undelivered()
        nodes = tuple(session.history.nodes)
        forest = Forest.of(nodes, active, undelivered=undelivered) if self._tree else None
        # Comparing renders the whole conversation, so only an empty session is described on the event loop.
        size = 0 if active is None else LONG_BYTES
        metadata = await self._offload(
            lambda: json.encode(self.metadata(session, active, forest, undelivered)), size=size
        )
        return self._pieces(_body(session.id, path_of(active), metadata), size=size)

    def metadata(
        self,
        session: Session,
        active: Checkpoint | None,
        forest: Forest | None,
        undelivered: Container[Checkpoint],
    ) -> dict[str, Any]:
        """The metadata of the path to ``active``, JSON-like; in a thread where there is one.

        Args:
            session: the session.
            active: the end of its active path, or None.
            forest: all of its turns; their structure is shown where sessions branch.
            undelivered: those whose answer no client received.
        """
        metadata: dict[str, Any] = {}
        mismatches = None if active is None else self.mismatches(session, active)
        if mismatches is not None:
            metadata["tito_session_mismatch"] = [mismatch.to_json() for mismatch in mismatches]
        metadata["accumulated_token_ids"] = [] if active is None else active.tokens.materialize().tolist()
        metadata["max_trim_tokens"] = self._renderer.max_trim_tokens
        path = path_of(active)
        if events := [
            {"turn": turn, **event.to_json()} for turn, checkpoint in enumerate(path) for event in checkpoint.events
        ]:
            metadata["boundary_events"] = events
        if session.replaced_turns:
            metadata["replaced_turns"] = session.replaced_turns
        if lost := [turn for turn, checkpoint in enumerate(path) if checkpoint in undelivered]:
            metadata[UNDELIVERED] = lost
        if self._tree and forest is not None:
            metadata["tree"] = tree_metadata(forest)
        return metadata

    def mismatches(self, session: Session, active: Checkpoint) -> list[Mismatch] | None:
        """How the ids of a path differ from the template's own rendering; None where that cannot be told.

        What is found is counted the first time.
        """
        # Most templates write tools once, at the head of the prompt: those that came later are no part of it.
        tools = path_of(active)[0].rendered_with.decoded_tools()
        kwargs = active.rendered_with.decoded_kwargs()
        try:
            expected = self._renderer.canonical(active.path_messages(), tools=tools, kwargs=kwargs, now=session.created)
            found = self._renderer.compare(expected, active.tokens.materialize(), active.sampled_mask(), kwargs=kwargs)
        except (InvalidRequest, TokenizationFailed) as error:
            # The text may quote the conversation.
            _log.warning("cannot compare with the canonical rendering", session=session.id, code=error.code)
            _log.debug("cannot compare with the canonical rendering", session=session.id, error=str(error))
            return None
        if session.mark_compared(active):
            for mismatch in found:
                self._metrics.mismatches.labels(mismatch.type).inc()
        return found


def _body(session_id: str, path: Sequence[Checkpoint], metadata: bytes) -> Iterator[bytes]:
    piece = [b'{"session_id":%b,"records":[' % json.encode(session_id)]
    size = 0
    for index, record in enumerate(encode_records(path)):
        piece.append(b"," + record if index else record)
        size += len(record)
        if size >= _PIECE_BYTES:
            yield from _slices(b"".join(piece))
            piece, size = [], 0
    piece.append(b'],"metadata":%b}' % metadata)
    yield from _slices(b"".join(piece))


def _slices(piece: bytes) -> Iterator[bytes]:
    """One record may be as large as what the engine answered, and what is sent at once is copied on the event loop."""
    for start in range(0, len(piece), _SLICE_BYTES):
        yield piece[start : start + _SLICE_BYTES]
