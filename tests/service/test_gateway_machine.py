"""Sessions under any interleaving of turns, answers, cancellations, deletions and shutdown are what the model says."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, get_args

import pytest
import trio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.service.conftest import described
from tests.service.model import ModelPlan, ModelSession, Refused, spell, text_of
from trio_sessions.config import Settings
from trio_sessions.core.boundary import BoundaryKind
from trio_sessions.core.history import LinearHistory, path_of
from trio_sessions.core.records import encode_records
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.errors import BadEngineAnswer, EngineUnreachable, SessionNotFound, StoreUnavailable
from trio_sessions.service.gateway import Gateway
from trio_sessions.service.replies import Reply
from trio_sessions.service.request import TurnRequest
from trio_sessions.service.session import Session
from trio_sessions.store import Restored
from trio_sessions.testing.engine import HeldCall, HeldCalls, ScriptedEngine, chat_answer
from trio_sessions.testing.machine import DrivenTask, TrioDriver
from trio_sessions.testing.store import RecordingStore
from trio_sessions.testing.toy import TOY_END, ToyRenderer
from trio_sessions.web.dialects.chat import ChatDialect

EPOCH = 1_700_000_000.0
# Longer than any client waits, so that what is left after it is only stopped by the server.
GRACE = 1000.0

CONTENTS = ["", "a", "b", "é", "a\n"]
ROLES = ["user", "tool", "system"]
UNAPPENDABLE = ["assistant", "developer"]

BAD_BODIES = {
    b"{": "invalid JSON body:",
    b"\xff": "invalid JSON body:",
    b"": "messages must be a list with at least one message",
    b"[]": "the request body must be a JSON object, got a list",
    b'{"messages":{}}': "messages must be a list, got an object",
    b'{"messages":[1]}': "messages[0] must be an object, got a number",
    b'{"messages":[{"content":"x"}]}': "messages[0] has no role",
    b'{"messages":[{"role":"user"}],"chat_template_kwargs":[]}': "chat_template_kwargs must be an object",
}

messages = st.builds(
    lambda role, content, extra: {"role": role, "content": content, **extra},
    st.sampled_from(ROLES),
    st.sampled_from(CONTENTS) | st.none(),
    st.sampled_from([{}, {"name": "n"}]),
)
tails = st.lists(messages, min_size=1, max_size=2)
options = st.fixed_dictionaries(
    {},
    optional={
        "stream": st.booleans(),
        "stream_options": st.just({"include_usage": True}),
        "temperature": st.just(0.5),
        "input_ids": st.just([9, 9]),
        "logprobs": st.just(False),
        "chat_template_kwargs": st.sampled_from([{}, {"a": 1}, {"pinned": True}, {"pinned": False}]),
    },
)

ANSWERS = [*["ok"] * 3, *["no_stop_id"] * 2, "empty", "status", "status_text", "unusable", "unreachable"]


@dataclass(eq=False, repr=False)
class Flight:
    """A turn that is not finished."""

    tag: str
    session: ModelSession
    body: dict[str, Any]
    task: DrivenTask[Reply | None]
    arrived: float
    deadline: float
    plan: ModelPlan | None = None
    held: HeldCall | None = None
    answer: dict[str, Any] | None = None
    failure: str | tuple[int, bytes] | None = None

    def __repr__(self) -> str:
        return f"<{self.tag} of {self.session.id[-1]}: {self.body['messages']}>"

    @property
    def at_engine(self) -> bool:
        return self.held is not None and self.answer is None

    @property
    def decided(self) -> bool:
        """Whether the answer is taken, so that only the lock keeps the turn from committing."""
        return self.answer is not None


class GatewayMachine(RuleBasedStateMachine):
    """A whole gateway against ``ModelSession``; every rule runs until everything is blocked."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = TrioDriver()
        self.calls = HeldCalls()
        self.engine = ScriptedEngine(otherwise=self.calls)
        ids = (f"{number:032x}" for number in itertools.count(1))
        self.store = RecordingStore()
        self.gateway = Gateway(
            Settings(engine="http://unused"),
            engine=self.engine,
            renderer=ToyRenderer(),
            clock=lambda: EPOCH + self.driver.now,
            new_id=lambda: next(ids),
            store=self.store,
        )
        self.sessions: list[tuple[ModelSession, Session]] = []
        self.flights: list[Flight] = []
        # What waits for a session's lock, in the order it came.
        self.queues: dict[str, list[Flight]] = {}
        self.locks: dict[str, tuple[trio.Event, DrivenTask[None]]] = {}
        self.outcomes: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.declared: Counter[str] = Counter()
        self.mismatches = 0
        self.numbers = itertools.count(1)
        self.sampled = itertools.count(1)

    # -- rules: sessions ----------------------------------------------------------------------------------------------

    @initialize(data=st.data(), turns=st.integers(0, 3))
    def first_session(self, data: st.DataObject, turns: int) -> None:
        self.create(data, turns)

    @precondition(lambda self: len(self.sessions) < 4)
    @rule(data=st.data(), turns=st.integers(0, 3))
    def create(self, data: st.DataObject, turns: int) -> None:
        if self.store.broken:
            with pytest.raises(StoreUnavailable):
                self.driver.run(self.gateway.registry.create)
            return
        session = self.driver.run(self.gateway.registry.create)
        model = ModelSession(session.id)
        self.sessions.append((model, session))
        self._converse(data, model, session, turns, data.draw(tails), data.draw(st.sampled_from(["ok", "no_stop_id"])))

    # A deleted session has little more to tell, so one is only deleted when another can take its place.
    @precondition(lambda self: len(self.sessions) > 1)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        model, _ = data.draw(st.sampled_from(self.sessions[:-1]))
        self._delete(model)

    def _delete(self, model: ModelSession) -> None:
        if model.closed:
            with pytest.raises(SessionNotFound, match=f"^session not found: session_id={model.id}$"):
                at_once(self.gateway.registry.delete(model.id))
            return
        if self.store.broken:
            with pytest.raises(StoreUnavailable):
                at_once(self.gateway.registry.delete(model.id))
            return
        at_once(self.gateway.registry.delete(model.id))
        model.closed = True

    @rule()
    def break_or_mend_the_store(self) -> None:
        """As a disk that is full for a while."""
        self.store.broken = "" if self.store.broken else "the disk is full"

    @precondition(lambda self: any(not model.closed for model, _ in self.sessions))
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """What ``GET`` answers is the model, spelled as the contract says."""
        model, session = data.draw(st.sampled_from([pair for pair in self.sessions if not pair[0].closed]))
        task = self.driver.start(described, self.gateway, session)
        self.driver.run_until(lambda: task.done)
        answer = json.loads(task.result())
        metadata: dict[str, Any] = {"accumulated_token_ids": model.ids, "max_trim_tokens": 0}
        if model.replaced:
            metadata["replaced_turns"] = model.replaced
        if model.turns:
            findings = answer["metadata"].pop("tito_session_mismatch")
            differs = text_of(spell(model.messages)) != text_of(model.ids)
            assert [finding["type"] for finding in findings] == ["assistant_text"] * differs
            self.mismatches += differs and not model.turns[-1].compared
            model.turns[-1].compared = True
        declared = [(event["turn"], event["kind"], event["position"]) for event in _events(answer)]
        assert declared == [(number, *event) for number, turn in enumerate(model.turns) for event in turn.events]
        assert answer == {
            "session_id": model.id,
            "records": [
                {
                    "timestamp": turn.timestamp,
                    "request_timestamp": turn.request_timestamp,
                    "method": "POST",
                    "path": "/v1/chat/completions",
                    "request": turn.request,
                    "response": turn.response,
                    "status_code": 200,
                }
                for turn in model.turns
            ],
            "metadata": metadata,
        }

    # -- rules: turns -------------------------------------------------------------------------------------------------

    @rule(data=st.data(), tail=tails, options=options)
    def extend(self, data: st.DataObject, tail: list[Any], options: dict[str, Any]) -> None:
        model, session = self._pick(data)
        self._start(model, session, [*self._replayed(data, model.messages), *tail], options)
        self._settle_starts()

    @precondition(lambda self: not self.locks)
    @rule(data=st.data(), turns=st.integers(1, 3), tail=tails, kind=st.sampled_from(["ok", "no_stop_id"]))
    def converse(self, data: st.DataObject, turns: int, tail: list[Any], kind: str) -> None:
        """Turns one after the other, as an agent takes them."""
        model, session = self._pick(data)
        self._converse(data, model, session, turns, tail, kind)

    @precondition(lambda self: not self.locks)
    @rule(data=st.data(), tail=tails, other=tails)
    def extend_twice_at_once(self, data: st.DataObject, tail: list[Any], other: list[Any]) -> None:
        for appended in (tail, other):
            model, session = self._pick(data)
            self._start(model, session, [*model.messages, *appended], {})
        self._settle_starts()

    @rule(data=st.data(), options=options)
    def send_again(self, data: st.DataObject, options: dict[str, Any]) -> None:
        """Exactly what is stored; for an empty session a first turn."""
        model, session = self._pick(data)
        self._start(model, session, model.messages or [{"role": "user", "content": "a"}], options)
        self._settle_starts()

    @rule(data=st.data(), tail=tails, options=options)
    def retry(self, data: st.DataObject, tail: list[Any], options: dict[str, Any]) -> None:
        """Give up the last turn; after the first turn, with a different conversation altogether."""
        model, session = self._pick(data)
        kept = model.turns[-2].messages if len(model.turns) > 1 else []
        self._start(model, session, [*self._replayed(data, kept), *tail], options)
        self._settle_starts()

    @rule(data=st.data(), tail=tails)
    def diverge_anywhere(self, data: st.DataObject, tail: list[Any]) -> None:
        """Often too far back; also with fewer messages than are stored."""
        model, session = self._pick(data)
        kept = data.draw(st.integers(0, len(model.messages)))
        appended = data.draw(st.sampled_from([tail, []])) if kept else tail
        self._start(model, session, [*model.messages[:kept], *appended], {})
        self._settle_starts()

    @rule(data=st.data(), shots=st.lists(st.sampled_from(CONTENTS), min_size=1, max_size=2), tail=tails)
    def few_shot(self, data: st.DataObject, shots: list[str], tail: list[Any]) -> None:
        """Assistants that the client brings are prompt in a first turn, and refused after one."""
        model, session = self._pick(data)
        kept = data.draw(st.sampled_from([[], model.messages]))
        brought = [{"role": "assistant", "content": shot} for shot in shots]
        self._start(model, session, [*kept, *tail, *brought, *tail], {})
        self._settle_starts()

    @rule(data=st.data(), role=st.sampled_from(UNAPPENDABLE), tail=tails, back=st.booleans())
    def append_refused_role(self, data: st.DataObject, role: str, tail: list[Any], back: bool) -> None:
        model, session = self._pick(data)
        kept = model.messages
        if back and len(model.turns) > 1:
            kept = model.turns[-2].messages
        self._start(model, session, [*kept, *tail, {"role": role, "content": "c"}], {})
        self._settle_starts()

    @rule(data=st.data(), body=st.sampled_from(sorted(BAD_BODIES)))
    def send_bad_body(self, data: st.DataObject, body: bytes) -> None:
        _, session = self._pick(data)
        task = self.driver.start(self._client, session, body, None)
        self.driver.settle()
        assert type(task.exception).__name__ == "InvalidRequest"
        assert str(task.exception).startswith(BAD_BODIES[body])
        self.outcomes["refused"] += 1

    @rule(data=st.data(), tail=tails, then=st.sampled_from(["vanish", "vanish", "delete"]))
    def start_and(self, data: st.DataObject, tail: list[Any], then: str) -> None:
        """The client goes, or the session is deleted, before the turn has made its first step."""
        model, session = self._pick(data)
        flight = self._start(model, session, [*model.messages, *tail], {})
        if then == "vanish":
            flight.task.cancel()
            self.driver.settle()
            self._finish_cancelled(flight)
        else:
            self._delete(model)
            self._settle_starts()

    # -- rules: what happens to turns ---------------------------------------------------------------------------------

    @precondition(lambda self: any(flight.at_engine for flight in self.flights))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """Some of the calls in flight are answered at the same time, in any order."""
        chosen = data.draw(
            st.lists(
                st.sampled_from([flight for flight in self.flights if flight.at_engine]),
                min_size=1,
                max_size=3,
                # Which of two commits comes first at a lock is trio's choice; with one there is none to make.
                unique_by=lambda flight: flight.session.id if flight.session.id in self.locks else flight.tag,
            )
        )
        for flight in chosen:
            self._answer(flight, data.draw(st.sampled_from(ANSWERS)), data.draw(st.sampled_from(CONTENTS)))
        late = data.draw(st.lists(st.sampled_from(chosen), unique=True))
        for flight in late:
            # The answer came first, so the turn is decided.
            flight.task.cancel()
        self.driver.settle()
        self._take_answers(chosen)

    @precondition(lambda self: self.flights)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.flights), min_size=1, max_size=2, unique=True))
        for flight in chosen:
            flight.task.cancel()
            if flight.at_engine and data.draw(st.booleans()):
                # Too late: the client is gone already.
                assert flight.held is not None
                flight.held.answer(chat_answer("too late"))
        self.driver.settle()
        for flight in chosen:
            self._cancelled(flight)

    @rule(seconds=st.sampled_from([0.5, 5.0, 60.0]))
    def wait(self, seconds: float) -> None:
        """Time passes, and with it the deadlines of some clients."""
        self.driver.advance(seconds)
        for flight in [flight for flight in self.flights if flight.deadline <= self.driver.now]:
            self._cancelled(flight)

    @precondition(lambda self: len(self.locks) < min(2, len(self.sessions)))
    @rule(data=st.data())
    def hold_lock(self, data: st.DataObject) -> None:
        """As a turn does that prepares for long: what comes now has to wait."""
        model, session = data.draw(st.sampled_from([pair for pair in self.sessions if pair[0].id not in self.locks]))
        release = trio.Event()
        task = self.driver.start(_hold, session, release)
        self.driver.settle()
        self.locks[model.id] = (release, task)
        self.queues[model.id] = []

    @precondition(lambda self: self.locks)
    @rule(data=st.data())
    def release_lock(self, data: st.DataObject) -> None:
        session_id = data.draw(st.sampled_from(sorted(self.locks)))
        self._release(session_id)

    def _release(self, session_id: str) -> None:
        release, task = self.locks.pop(session_id)
        release.set()
        self.driver.settle()
        task.result()
        for flight in self.queues.pop(session_id):
            if flight.decided:
                self._commit(flight)
            else:
                self._prepare(flight)

    # -- the machinery of the rules -----------------------------------------------------------------------------------

    def _pick(self, data: st.DataObject) -> tuple[ModelSession, Session]:
        """A session, most often one that is open."""
        still_open = [pair for pair in self.sessions if not pair[0].closed]
        return data.draw(st.sampled_from([*still_open * 4, *self.sessions]))

    def _replayed(self, data: st.DataObject, stored: list[Any]) -> list[Any]:
        """Stored messages as a client may spell them: the matcher sees no difference, the record does."""
        if not data.draw(st.booleans()):
            return stored
        return [{**message, "content": message.get("content") or None, "name": "again"} for message in stored]

    def _converse(
        self, data: st.DataObject, model: ModelSession, session: Session, turns: int, tail: list[Any], kind: str
    ) -> None:
        for _ in range(turns):
            flight = self._start(model, session, [*self._replayed(data, model.messages), *tail], {})
            self._settle_starts()
            if flight.at_engine:
                self._answer(flight, kind, data.draw(st.sampled_from(CONTENTS)))
                self.driver.settle()
                self._take_answers([flight])

    async def _client(self, session: Session, body: bytes, patience: float | None) -> Reply | None:
        with trio.move_on_after(float("inf") if patience is None else patience):
            turn = await self.gateway.turns.run(
                session, TurnRequest(method="POST", query="", headers=(), body=body), ChatDialect()
            )
            return turn.reply
        return None

    def _start(self, model: ModelSession, session: Session, messages: list[Any], options: dict[str, Any]) -> Flight:
        tag = f"turn-{next(self.numbers)}"
        body = {**options, "user": tag, "messages": messages}
        # Every third client is impatient.
        timeout = 30.0 if next(self.numbers) % 3 == 0 else None
        flight = Flight(
            tag=tag,
            session=model,
            body=body,
            task=self.driver.start(self._client, session, json.dumps(body).encode(), timeout, name=tag),
            arrived=EPOCH + self.driver.now,
            deadline=float("inf") if timeout is None else self.driver.now + timeout,
        )
        self.flights.append(flight)
        return flight

    def _settle_starts(self) -> None:
        self.driver.settle()
        for flight in [flight for flight in self.flights if flight.plan is None and flight not in self._queued()]:
            if flight.session.id in self.locks:
                self.queues[flight.session.id].append(flight)
            else:
                self._prepare(flight)

    def _queued(self) -> list[Flight]:
        return [flight for waiting in self.queues.values() for flight in waiting]

    def _prepare(self, flight: Flight) -> None:
        try:
            flight.plan = flight.session.prepare(flight.body, broken=self.store.broken)
        except Refused as error:
            refused = error
        else:
            refused = None
        if refused is not None:
            raised = flight.task.exception
            assert (type(raised).__name__, str(raised)) == (refused.kind, refused.text)
            self._finished(flight, "unavailable" if refused.kind == "StoreUnavailable" else "refused")
            return
        assert not flight.task.done, flight.task
        [flight.held] = [call for call in self.calls.waiting if json.loads(call.request.body)["user"] == flight.tag]
        call = flight.held.request
        assert json.loads(call.body) == flight.plan.request
        assert (call.method, call.path, call.query, call.session_id) == (
            "POST",
            "v1/chat/completions",
            "",
            flight.session.id,
        )
        stored = flight.session.turns[flight.plan.keep - 1].ids if flight.plan.keep else []
        assert json.loads(call.body)["input_ids"][: len(stored)] == stored
        assert flight.plan.discards <= 1

    def _answer(self, flight: Flight, kind: str, text: str) -> None:
        assert flight.held is not None
        # Ids that no other answer has, of the bytes that the text has.
        ids = [512 * next(self.sampled) + byte for byte in text.encode()]
        match kind:
            case "ok":
                answer = chat_answer(text, token_ids=[*ids, TOY_END], id=flight.tag)
            case "no_stop_id":
                answer = chat_answer(text, token_ids=ids, finish_reason="length", id=flight.tag)
            case "empty":
                answer = chat_answer("", token_ids=[], finish_reason="abort", id=flight.tag)
            case "status":
                answer = EngineAnswer(503, (("retry-after", "1"),), b'{ "error" : "busy" }')
                flight.failure = (503, b'{"error":"busy"}')
            case "status_text":
                answer = EngineAnswer(500, (), b"<html>\xff")
                flight.failure = (500, b"<html>\xff")
            case "unusable":
                answer = chat_answer(text, token_ids=ids, meta_info={"completion_tokens": 99})
                flight.failure = (
                    f"invalid chat completion response: len(output_token_logprobs)={len(ids)} != completion_tokens=99"
                )
            case _:
                flight.failure = "backend transport error: ReadError: cut"
                flight.held.answer(EngineUnreachable("ReadError", "cut"))
                return
        if kind in ("ok", "no_stop_id", "empty"):
            flight.answer = json.loads(answer.body)
        flight.held.answer(answer)

    def _take_answers(self, answered: list[Flight]) -> None:
        """Which of several answers to one session commits is open, but only one does; the gateway says which."""
        active = {session.history.active for _, session in self.sessions} - {None}
        winners = {json.loads(leaf.record.request_fields)["user"] for leaf in active if leaf is not None}
        for flight in sorted(answered, key=lambda flight: flight.tag not in winners):
            if flight.answer is None:
                self._check_failure(flight)
            elif flight.session.id in self.locks:
                assert not flight.task.done
                self.queues[flight.session.id].append(flight)
            else:
                self._commit(flight)

    def _check_failure(self, flight: Flight) -> None:
        if flight.task.exception is not None:
            assert isinstance(flight.task.exception, EngineUnreachable | BadEngineAnswer)
            assert str(flight.task.exception) == flight.failure
        else:
            reply = flight.task.result()
            assert reply is not None
            assert (reply.status, reply.body) == flight.failure
        self._finished(flight, "engine_error")

    def _commit(self, flight: Flight) -> None:
        """The client is answered 200 whether the turn is recorded or not; but not if it should be and cannot be."""
        assert flight.plan is not None
        assert flight.answer is not None
        if self.store.broken and flight.session.would_commit(flight.plan):
            assert str(flight.task.exception) == self.store.broken
            self._finished(flight, "unavailable")
            return
        reply = flight.task.result()
        assert reply is not None
        assert reply.status == 200
        if flight.body.get("stream"):
            assert reply.body.startswith(b"data: ")
            assert reply.body.endswith(b"\n\ndata: [DONE]\n\n")
            assert flight.tag.encode() in reply.body
        else:
            assert json.loads(reply.body) == flight.answer
        plan = flight.plan
        outcome = flight.session.commit(plan, flight.answer, arrived=flight.arrived, now=EPOCH + self.driver.now)
        if outcome == "committed":
            self.totals["prompt_tokens"] += len(plan.prompt)
            self.totals["sampled_tokens"] += len(flight.session.ids) - len(plan.prompt)
            self.totals["rollbacks"] += plan.discards
            self.totals["synthetic_tokens"] += plan.closers
            self.declared.update(kind for kind, _ in plan.events)
        self._finished(flight, outcome)

    def _cancelled(self, flight: Flight) -> None:
        """What cancelling did: nothing to a decided turn, else an end without a trace."""
        if flight.decided:
            assert not flight.task.done
        else:
            self._finish_cancelled(flight)

    def _finish_cancelled(self, flight: Flight) -> None:
        assert flight.task.cancelled or flight.task.result() is None
        for waiting in self.queues.values():
            if flight in waiting:
                waiting.remove(flight)
        self._finished(flight, "cancelled")

    def _finished(self, flight: Flight, outcome: str) -> None:
        assert flight.task.done
        self.flights.remove(flight)
        self.outcomes[outcome] += 1

    # -- what always holds --------------------------------------------------------------------------------------------

    @invariant()
    def sessions_are_the_model(self) -> None:
        for model, session in self.sessions:
            assert session.closed == model.closed
            active = session.history.active
            path = path_of(active)
            assert len(path) == len(model.turns)
            assert session.lock.locked() == (model.id in self.locks)
            if active is None:
                continue
            assert active.tokens.materialize().tolist() == model.ids
            assert active.path_messages() == model.messages
            stored: list[int] = []
            records = list(encode_records(path))
            for checkpoint, record, turn in zip(path, records, model.turns, strict=True):
                assert json.loads(record)["request"] == turn.request
                assert json.loads(checkpoint.record.response) == turn.response
                assert checkpoint.record.request_timestamp == turn.request_timestamp
                assert checkpoint.record.timestamp == turn.timestamp
                assert turn.prompt[: len(stored)] == stored
                stored = checkpoint.tokens.materialize().tolist()
                assert stored == turn.ids
                assert (checkpoint.prompt_length, checkpoint.synthetic) == (len(turn.prompt), turn.closers)
                assert checkpoint.origins().tolist() == turn.origins
                assert [(event.kind, event.position) for event in checkpoint.events] == turn.events

    @invariant()
    def what_is_written_down_is_the_sessions(self) -> None:
        assert self.store.payloads.keys() == {model.id for model, _ in self.sessions if not model.closed}
        for model, session in self.sessions:
            if not model.closed:
                restored = Restored.of(self.store.events(model.id), LinearHistory())
                path, live = path_of(restored.history.active), path_of(session.history.active)
                assert list(encode_records(path)) == list(encode_records(live))
                assert [turn.events for turn in path] == [turn.events for turn in live]
                assert restored.replaced_turns == session.replaced_turns == model.replaced

    @invariant()
    def no_session_has_ids_of_another(self) -> None:
        sampled = [{id_ for id_ in model.ids if id_ >= 512} for model, _ in self.sessions]
        assert sum(map(len, sampled)) == len(set().union(*sampled))

    @invariant()
    def metrics_count_what_happened(self) -> None:
        value = self.gateway.metrics.registry.get_sample_value
        counted = {
            sample.labels["outcome"]: sample.value
            for family in self.gateway.metrics.turns.collect()
            for sample in family.samples
            if sample.name.endswith("_total")
        }
        assert {outcome: count for outcome, count in counted.items() if count} == dict(self.outcomes)
        assert value("trio_sessions_turns_in_flight") == len(self.flights)
        assert value("trio_sessions_sessions_open") == sum(not model.closed for model, _ in self.sessions)
        for name in ("prompt_tokens", "sampled_tokens", "rollbacks", "synthetic_tokens", "replaced_tokens"):
            assert value(f"trio_sessions_{name}_total") == self.totals[name]
        for kind in get_args(BoundaryKind):
            assert value("trio_sessions_boundary_events_total", {"kind": kind}) == self.declared[kind]
        assert (value("trio_sessions_mismatches_total", {"type": "assistant_text"}) or 0) == self.mismatches

    @invariant()
    def the_engine_works_only_for_turns_in_flight(self) -> None:
        at_engine = {flight.held for flight in self.flights if flight.at_engine}
        assert set(self.calls.waiting) == at_engine
        assert self.engine.in_flight == len(at_engine)

    # -- the end ------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Every run ends with a shutdown in mid-flight."""
        try:
            self._drain()
            self.sessions_are_the_model()
            self.metrics_count_what_happened()
            self.the_engine_works_only_for_turns_in_flight()
        finally:
            self.driver.close()

    def _drain(self) -> None:
        for session_id in list(self.locks):
            self._release(session_id)
        drained = self.driver.start(lambda: self.gateway.registry.drain(grace=GRACE))
        self.driver.settle()
        assert drained.done == (not self.flights)
        for model, session in self.sessions:
            refused = self._start(model, session, [{"role": "user", "content": "a"}], {})
            self.driver.settle()
            assert str(refused.task.exception) == "the server is shutting down and takes no more turns"
            self._finished(refused, "cancelled")
        for flight in self.flights[::2]:
            self._answer(flight, "ok", "a")
            self.driver.settle()
            self._take_answers([flight])
        assert drained.done == (not self.flights)
        self.driver.advance(GRACE)
        for flight in list(self.flights):
            if flight.deadline < float("inf"):
                self._cancelled(flight)
            else:
                assert type(flight.task.exception).__name__ == "ServerDraining"
                self._finished(flight, "cancelled")
        drained.result()
        assert not self.flights


def _events(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Takes the declared events out of the metadata; there is no empty list of them."""
    events = answer["metadata"].pop("boundary_events", None)
    assert events != []
    return events or []


def at_once(step: Coroutine[Any, Any, None]) -> None:
    """Take a step that waits for nothing, before anything else gets to run: which of two came first is then known."""
    with pytest.raises(StopIteration):
        step.send(None)


async def _hold(session: Session, release: trio.Event) -> None:
    async with session.lock:
        await release.wait()


TestGateway = GatewayMachine.TestCase
TestGateway.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
