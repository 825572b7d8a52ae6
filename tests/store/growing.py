"""Sessions of any shape for the store's tests: whatever a history can hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from trio_sessions.core import json
from trio_sessions.core.answer import hollow_answer
from trio_sessions.core.boundary import BoundaryEvent
from trio_sessions.core.caller import NOBODY, Caller
from trio_sessions.core.completion import extract_completion
from trio_sessions.core.history import (
    Checkpoint,
    History,
    LinearHistory,
    RenderedWith,
    SeamPolicy,
    TreeHistory,
    TurnRecord,
    decide_seam,
    path_of,
)
from trio_sessions.core.matchers import MATCHERS
from trio_sessions.core.records import encode_records
from trio_sessions.core.samples import Forest, tree_metadata
from trio_sessions.core.tokens import as_token_ids
from trio_sessions.errors import RollbackRefused, TruncatedGeneration
from trio_sessions.store import AnswerNoted, Event, SessionCreated, TurnsDiscarded, turn_event
from trio_sessions.testing.strategies import engine_answers, messages, replays, token_ids, tool_definitions

HISTORIES = {"linear": LinearHistory, "tree": TreeHistory}

callers = st.just(NOBODY) | st.builds(
    Caller,
    agent=st.sampled_from([None, "main", "é"]),
    thread=st.text(max_size=3),
    purpose=st.sampled_from(["title", None]),
)
events = st.lists(
    st.builds(
        BoundaryEvent,
        kind=st.sampled_from(["turn_closed", "stop_replaced", "late_tool_result"]),
        position=st.integers(0, 2**31),
        detail=st.text(max_size=5),
    ),
    max_size=2,
).map(tuple)


@dataclass
class Grown:
    """A session that has been used, and what was written down of it.

    Attributes:
        history: its history.
        events: what was written down, in order.
        turns: all committed turns, by number.
        replaced: how many others took the place of.
    """

    history: History
    events: list[Event] = field(default_factory=lambda: [SessionCreated("2026-01-02T03:04:05")])
    turns: list[Checkpoint] = field(default_factory=list)
    replaced: int = 0

    def number(self, turn: Checkpoint | None) -> int | None:
        return None if turn is None else next(i for i, other in enumerate(self.turns) if other is turn)

    def take(self, draw: Any) -> None:
        """One request: most become turns, some roll the session back, some are refused."""
        base = draw(st.sampled_from([None, *self.history.nodes]))
        request = draw(
            replays(base.path_messages()) if base is not None else st.lists(messages(), min_size=1, max_size=2)
        )
        matcher = MATCHERS[draw(st.sampled_from(sorted(MATCHERS)))]
        rendered_with = RenderedWith.of(
            draw(st.none() | tool_definitions()), draw(st.sampled_from([{}, {"a": 1}, {"a": 2**80}]))
        )
        try:
            attachment = self.history.attach(request, matcher)
            seam = decide_seam(attachment, request, rendered_with, SeamPolicy())
        except (RollbackRefused, TruncatedGeneration):
            return
        attachment = seam.attachment
        if attachment.discards and draw(st.booleans()):
            self.events.append(
                TurnsDiscarded(
                    base=self.number(attachment.base), ticket=attachment.ticket, discards=attachment.discards
                )
            )
            self.history.settle_refused_role(attachment)
            return
        suffix = draw(token_ids())
        answer = draw(engine_answers())
        fields = draw(st.sampled_from([b'{"logprobs":true}', b'{"logprobs":true,"n":1e300}']))
        parent = attachment.base
        checkpoint = attachment.checkpoint(
            keep=max(0, len(attachment.tokens) - draw(st.integers(0, 1))),
            suffix=as_token_ids(suffix),
            synthetic=draw(st.integers(0, len(suffix))),
            rendered_with=seam.rendered_with,
            events=draw(events),
            completion=extract_completion(hollow_answer(answer)),
            caller=draw(callers),
            record=TurnRecord(
                timestamp=draw(st.floats(0, 2e9)),
                request_timestamp=draw(st.floats(0, 2e9)),
                method="POST",
                request_fields=parent.record.request_fields
                if parent is not None and parent.record.request_fields == fields
                else fields,
                routed_experts_start=draw(st.none() | st.integers(0, 9)),
                respelled=attachment.respelled,
                response=json.compact(answer),
                status_code=200,
            ),
        )
        self.events.append(
            turn_event(
                checkpoint,
                parent=self.number(parent),
                ticket=attachment.ticket,
                discards=attachment.discards,
            )
        )
        self.replaced += attachment.discards
        self.turns.append(self.history.commit(attachment, checkpoint))

    def note(self, draw: Any) -> None:
        if self.turns:
            turn = draw(st.integers(0, len(self.turns) - 1))
            self.events.append(AnswerNoted(turn=turn, received=draw(st.booleans())))


@st.composite
def grown(draw: st.DrawFn, mode: str, *, most: int = 6) -> Grown:
    """A session after some requests."""
    session = Grown(HISTORIES[mode]())
    for _ in range(draw(st.integers(0, most))):
        session.take(draw)
        if draw(st.integers(0, 3)) == 0:
            session.note(draw)
    return session


def seen(history: History) -> dict[str, Any]:
    """All that anybody can see of a history; equal for histories that are the same."""
    forest = Forest.of(tuple(history.nodes), history.active)
    return {
        "records": list(encode_records(path_of(history.active))),
        "tree": tree_metadata(forest),
        "nodes": [_facts(node) for node in history.nodes],
        "active": None if history.active is None else list(history.nodes).index(history.active),
    }


def _facts(node: Checkpoint) -> dict[str, Any]:
    ids = node.tokens.materialize()
    return {
        "ids": ids.tolist(),
        "dtype": ids.dtype,
        "writeable": ids.flags.writeable,
        "origins": node.origins().tolist(),
        "prompt_length": node.prompt_length,
        "synthetic": node.synthetic,
        "kept": node.kept,
        "messages": json.encode(node.path_messages()),
        "rendered_with": node.rendered_with,
        "events": node.events,
        "finish_reason": node.finish_reason,
        "response_id": node.response_id,
        "caller": node.caller,
        "record": list(encode_records([*path_of(node)])),
        "record_facts": {name: getattr(node.record, name) for name in node.record.__struct_fields__},
        "shares_fields": node.parent is not None and node.record.request_fields is node.parent.record.request_fields,
        "shares_rendering": node.parent is not None and node.rendered_with is node.parent.rendered_with,
    }


def with_sampled(count: int) -> Grown:
    """A linear session of ``count`` plain turns."""
    session = Grown(LinearHistory())
    for index in range(count):
        base = session.history.active
        before = [] if base is None else base.path_messages()
        attachment = session.history.attach(
            [*before, {"role": "user", "content": f"question {index}"}], MATCHERS["strict"]
        )
        answer = json.encode(
            {
                "id": f"answer-{index}",
                "choices": [
                    {
                        "message": {"role": "assistant", "content": f"answer {index}"},
                        "finish_reason": "stop",
                        "meta_info": {"output_token_logprobs": [[-0.5, index, None]] * 50, "completion_tokens": 50},
                    }
                ],
            }
        )
        checkpoint = attachment.checkpoint(
            keep=len(attachment.tokens),
            suffix=np.arange(20, dtype=np.int32),
            synthetic=0,
            rendered_with=RenderedWith.of(None, {}),
            events=(),
            completion=extract_completion(answer),
            record=TurnRecord(
                timestamp=2.0,
                request_timestamp=1.0,
                method="POST",
                request_fields=b'{"logprobs":true}',
                routed_experts_start=None,
                respelled={},
                response=answer,
                status_code=200,
            ),
        )
        session.events.append(turn_event(checkpoint, parent=session.number(base), ticket=attachment.ticket, discards=0))
        session.turns.append(session.history.commit(attachment, checkpoint))
    return session
