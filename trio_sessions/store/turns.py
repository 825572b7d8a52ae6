"""From a checkpoint to its event, and from the events of a session to its history: the one undoes the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from trio_sessions.core import json
from trio_sessions.core.boundary import BoundaryEvent
from trio_sessions.core.caller import Caller
from trio_sessions.core.completion import Completion
from trio_sessions.core.history import Attachment, Checkpoint, History, RenderedWith, TurnRecord
from trio_sessions.core.tokens import TokenIds
from trio_sessions.errors import NodeCapReached
from trio_sessions.store.events import (
    AnswerNoted,
    Event,
    InvalidEvent,
    NotedBoundary,
    SessionCreated,
    TurnCommitted,
    TurnsDiscarded,
)

__all__ = ["Restored", "turn_event"]

_IDS: Final = np.dtype("<i4")


def turn_event(checkpoint: Checkpoint, *, parent: int | None, ticket: int, discards: int) -> TurnCommitted:
    """The event of a turn that is committed. Thread-safe.

    Args:
        checkpoint: of the turn.
        parent: number of the turn it extends.
        ticket: of its attachment.
        discards: likewise.
    """
    before, record, caller = checkpoint.parent, checkpoint.record, checkpoint.caller
    rendered_with = checkpoint.rendered_with
    return TurnCommitted(
        parent=parent,
        ticket=ticket,
        discards=discards,
        keep=checkpoint.kept,
        suffix=_bytes(checkpoint.prompt.tail),
        sampled=_bytes(checkpoint.sampled_ids),
        synthetic=checkpoint.synthetic,
        messages=json.encode(checkpoint.messages),
        respelled=json.encode(list(record.respelled.items())) if record.respelled else None,
        tools=_unless(rendered_with.tools, None if before is None else before.rendered_with.tools),
        template_kwargs=_unless(
            rendered_with.template_kwargs, None if before is None else before.rendered_with.template_kwargs
        ),
        request_fields=_unless(record.request_fields, None if before is None else before.record.request_fields),
        routed_experts_start=record.routed_experts_start,
        boundary=tuple(NotedBoundary(event.kind, event.position, event.detail) for event in checkpoint.events),
        finish_reason=checkpoint.finish_reason,
        response_id=checkpoint.response_id,
        agent=caller.agent,
        thread=caller.thread,
        parent_thread=caller.parent,
        purpose=caller.purpose,
        method=record.method,
        request_timestamp=record.request_timestamp,
        timestamp=record.timestamp,
        response=record.response,
        status_code=record.status_code,
    )


class Restored:
    """A session made of its events, one after the other.

    Args:
        history: an empty one, of the mode that the events are of.

    Attributes:
        history: as it was.
        turns: all that were committed, by number, those that were given up included.
        replaced_turns: how many turns later ones took the place of.
        answers: what became of answers, as it was noted, in order.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.turns: list[Checkpoint] = []
        self.replaced_turns = 0
        self.answers: list[tuple[Checkpoint, bool]] = []

    @classmethod
    def of(cls, events: Iterable[Event], history: History) -> Restored:
        """The session that ``events`` tell of.

        Raises:
            InvalidEvent: they contradict each other.
        """
        restored = cls(history)
        try:
            for event in events:
                restored._apply(event)
        except (ValueError, NodeCapReached) as error:
            raise InvalidEvent(str(error)) from error
        return restored

    def _apply(self, event: Event) -> None:
        match event:
            case TurnCommitted():
                messages = _messages(event)
                attachment = Attachment(
                    base=self._turn(event.parent),
                    stored=(),
                    request=messages[:-1],
                    respelled={},
                    ticket=event.ticket,
                    discards=event.discards,
                )
                self.turns.append(self.history.commit(attachment, _checkpoint(event, attachment, messages[-1])))
                self.replaced_turns += event.discards
            case TurnsDiscarded():
                self.history.settle_refused_role(
                    Attachment(
                        base=self._turn(event.base),
                        stored=(),
                        request=(),
                        respelled={},
                        ticket=event.ticket,
                        discards=event.discards,
                    )
                )
            case AnswerNoted():
                turn = self._turn(event.turn)
                assert turn is not None
                self.answers.append((turn, event.received))
            case SessionCreated():
                pass

    def _turn(self, number: int | None) -> Checkpoint | None:
        if number is None:
            return None
        if not 0 <= number < len(self.turns):
            raise InvalidEvent(f"there is no turn {number}")
        return self.turns[number]


def _checkpoint(event: TurnCommitted, attachment: Attachment, said: Mapping[str, Any]) -> Checkpoint:
    base = attachment.base
    return attachment.checkpoint(
        keep=event.keep,
        suffix=_ids(event.suffix),
        synthetic=event.synthetic,
        rendered_with=_rendered_with(event, base),
        events=tuple(BoundaryEvent(noted.kind, noted.position, noted.detail) for noted in event.boundary),
        completion=Completion(
            token_ids=_ids(event.sampled),
            # Nothing reads them of a checkpoint: they are in the response.
            log_probs=np.empty(0),
            message=said,
            finish_reason=event.finish_reason,
            response_id=event.response_id,
        ),
        caller=Caller(agent=event.agent, thread=event.thread, parent=event.parent_thread, purpose=event.purpose),
        record=TurnRecord(
            timestamp=event.timestamp,
            request_timestamp=event.request_timestamp,
            method=event.method,
            request_fields=_or_parents(event.request_fields, None if base is None else base.record.request_fields),
            routed_experts_start=event.routed_experts_start,
            respelled=_respelled(event),
            response=event.response,
            status_code=event.status_code,
        ),
    )


def _rendered_with(event: TurnCommitted, base: Checkpoint | None) -> RenderedWith:
    if base is not None and event.tools is None and event.template_kwargs is None:
        return base.rendered_with
    return RenderedWith(
        tools=_or_parents(event.tools, None if base is None else base.rendered_with.tools),
        template_kwargs=_or_parents(
            event.template_kwargs, None if base is None else base.rendered_with.template_kwargs
        ),
    )


def _messages(event: TurnCommitted) -> Sequence[Mapping[str, Any]]:
    messages: list[Mapping[str, Any]] = json.decode(event.messages)
    if not messages:
        raise InvalidEvent("a turn without messages")
    return messages


def _respelled(event: TurnCommitted) -> Mapping[int, Mapping[str, Any]]:
    return {} if event.respelled is None else dict(json.decode(event.respelled))


def _unless(value: bytes, parents: bytes | None) -> bytes | None:
    return None if value == parents else value


def _or_parents(value: bytes | None, parents: bytes | None) -> bytes:
    if value is not None:
        return value
    if parents is None:
        raise InvalidEvent("a turn has nothing to take from its parent")
    return parents


def _bytes(ids: TokenIds) -> bytes:
    return ids.astype(_IDS, copy=False).tobytes()


def _ids(raw: bytes) -> TokenIds:
    return np.frombuffer(raw, dtype=_IDS).astype(np.int32, copy=False)
