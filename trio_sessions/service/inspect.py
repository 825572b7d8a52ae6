"""What a trainer reads of a session: its records and the metadata of its token sequence."""

from __future__ import annotations

from typing import Any, Final

import structlog

from trio_sessions.core import json
from trio_sessions.core.compare import Mismatch
from trio_sessions.core.history import Checkpoint, path_of
from trio_sessions.errors import InvalidRequest, TokenizationFailed
from trio_sessions.observe import Metrics
from trio_sessions.render.base import Renderer
from trio_sessions.service.offload import LONG_BYTES, Offloader
from trio_sessions.service.session import Session

__all__ = ["SessionInspector"]

_RECORD_PATH: Final = "/v1/chat/completions"
_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.inspect")


class SessionInspector:
    """Renders sessions as JSON, off the event loop: checkpoints are immutable, so no lock is needed."""

    def __init__(self, *, renderer: Renderer, metrics: Metrics, offloader: Offloader) -> None:
        self._renderer = renderer
        self._metrics = metrics
        self._offload = offloader.run

    async def describe(self, session: Session) -> bytes:
        """The body of ``GET /sessions/{id}``."""
        active = session.history.active
        # Comparing renders the whole conversation, so only an empty session is described on the event loop.
        size = 0 if active is None else LONG_BYTES
        mismatches = await self._offload(lambda: self._mismatches(session, active), size=size)
        self._count(session, active, mismatches)
        return await self._offload(lambda: self._render(session.id, active, mismatches), size=size)

    def _render(self, session_id: str, active: Checkpoint | None, mismatches: list[Mismatch] | None) -> bytes:
        metadata: dict[str, Any] = {}
        if mismatches is not None:
            metadata["tito_session_mismatch"] = [mismatch.to_json() for mismatch in mismatches]
        metadata["accumulated_token_ids"] = [] if active is None else active.tokens.materialize().tolist()
        metadata["max_trim_tokens"] = self._renderer.max_trim_tokens
        path = path_of(active)
        if events := [
            {"turn": turn, **event.to_json()} for turn, checkpoint in enumerate(path) for event in checkpoint.events
        ]:
            metadata["boundary_events"] = events
        return b"".join(
            (
                b'{"session_id":',
                json.encode(session_id),
                b',"records":[',
                b",".join(_record(checkpoint) for checkpoint in path),
                b'],"metadata":',
                json.encode(metadata),
                b"}",
            )
        )

    def _mismatches(self, session: Session, active: Checkpoint | None) -> list[Mismatch] | None:
        if active is None:
            return None
        # Most templates write tools once, at the head of the prompt: those that came later are no part of it.
        tools = path_of(active)[0].rendered_with.decoded_tools()
        kwargs = active.rendered_with.decoded_kwargs()
        try:
            expected = self._renderer.canonical(active.path_messages(), tools=tools, kwargs=kwargs, now=session.created)
            return self._renderer.compare(expected, active.tokens.materialize(), active.sampled_mask(), kwargs=kwargs)
        except (InvalidRequest, TokenizationFailed) as error:
            # The text may quote the conversation.
            _log.warning("cannot compare with the canonical rendering", session=session.id, code=error.code)
            _log.debug("cannot compare with the canonical rendering", session=session.id, error=str(error))
            return None

    def _count(self, session: Session, active: Checkpoint | None, mismatches: list[Mismatch] | None) -> None:
        if active is None or mismatches is None or active in session.compared:
            return
        session.compared.add(active)
        for mismatch in mismatches:
            self._metrics.mismatches.labels(mismatch.type).inc()


def _record(checkpoint: Checkpoint) -> bytes:
    record = checkpoint.record
    head = json.encode(
        {
            "timestamp": record.timestamp,
            "request_timestamp": record.request_timestamp,
            "method": record.method,
            "path": _RECORD_PATH,
        }
    )
    return b"".join(
        (
            head[:-1],
            b',"request":',
            checkpoint.request().encode(),
            b',"response":',
            record.response,
            b',"status_code":',
            json.encode(record.status_code),
            b"}",
        )
    )
