"""The turn pipeline: one for every mode and dialect.

decode → (lock) attach, render → (no lock) engine → validate and encode the answer → (lock, shielded) commit → reply.
Whatever can fail is done before the first thing is changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

import msgspec
import numpy as np
import structlog
import trio

from trio_sessions.core import json
from trio_sessions.core.answer import hollow_answer, split_answer
from trio_sessions.core.completion import Completion, extract_completion
from trio_sessions.core.history import Checkpoint, TurnRecord, footprint, path_of
from trio_sessions.core.prefix import assert_pretokenized_prefix
from trio_sessions.core.request import SentMessages
from trio_sessions.core.tokens import TokenIds
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.errors import (
    BadEngineAnswer,
    ClientDisconnected,
    ContextOverflow,
    EngineUnreachable,
    InvalidRequest,
    MemoryExhausted,
    NodeCapReached,
    Overloaded,
    ServerDraining,
    SessionError,
    SessionExpired,
    SessionNotFound,
    StoreUnavailable,
    TurnCancelled,
)
from trio_sessions.observe import Metrics, TurnOutcome
from trio_sessions.service.admission import Admission
from trio_sessions.service.ask import EngineAsker
from trio_sessions.service.dialect import AnswerWriter, Dialect, EventWriter
from trio_sessions.service.failure import engine_failure
from trio_sessions.service.offload import Offloader
from trio_sessions.service.plan import Plan, Planner
from trio_sessions.service.registry import SessionRegistry
from trio_sessions.service.replies import STREAM_HEADERS, Reply
from trio_sessions.service.request import ReadRequest, TurnRequest
from trio_sessions.service.retries import Attempt, AttemptResult
from trio_sessions.service.session import Session

__all__ = ["TurnPipeline", "TurnReply"]

_T = TypeVar("_T")

# Text that is only skipped costs this part of what tokenizing as many bytes does, and an object more.
_SKIPPED_BYTES_PER_UNIT: Final = 256
_UNITS_PER_OBJECT: Final = 2
_LOOKS: Final = 16
_LOOK_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, eq=False)
class TurnReply:
    """What a client gets for its turn.

    Attributes:
        reply: in its dialect; of a stream that was opened, the body is what follows the opening.
        committed: the turn that it answers, where one was recorded.
        shared: whether other requests may be answered with the same turn.
        remaining_tokens: how many ids the conversation may still grow by, where there is a limit.
    """

    reply: Reply
    committed: Checkpoint | None = None
    shared: bool = False
    remaining_tokens: int | None = None


@dataclass(slots=True, eq=False)
class _Turn:
    """A request while it is served.

    Attributes:
        attempt: what later requests may join, where the client says of its requests which are retries.
    """

    session: Session
    request: TurnRequest
    dialect: Dialect
    arrived: float
    log: structlog.stdlib.BoundLogger
    attempt: Attempt | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Ended:
    """How a turn ended.

    Attributes:
        outcome: for the metrics.
        result: what those who repeat the request are answered with; None where it repeats one itself.
    """

    outcome: TurnOutcome
    reply: TurnReply
    result: AttemptResult | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Digest:
    """An engine's answer, checked and encoded: nothing that follows can fail because of it.

    Attributes:
        bare: the answer without replay payloads, compact JSON.
        response: the whole of it, compact JSON.
    """

    completion: Completion
    bare: EngineAnswer
    response: bytes
    reply: Reply


class TurnPipeline:
    """Runs turns of sessions.

    Args:
        registry: knows which turns run, for shutdown.
        admission: gives places to turns.
        asker: asks the engine.
        planner: finds out the prompt of a request.
        max_trim_tokens: how many trailing ids of a stored turn a prompt may replace.
        max_seq_len: most ids of a prompt and its answer; None for no limit.
        retry_linger: seconds for which a turn goes on whose client has gone and may come again.
        metrics: counters and histograms.
        clock: wall clock for records, seconds since the epoch.
        offloader: threads for long computations.
    """

    def __init__(
        self,
        *,
        registry: SessionRegistry,
        admission: Admission,
        asker: EngineAsker,
        planner: Planner,
        max_trim_tokens: int,
        max_seq_len: int | None,
        retry_linger: float,
        metrics: Metrics,
        clock: Callable[[], float],
        offloader: Offloader,
    ) -> None:
        self._registry = registry
        self._admission = admission
        self._asker = asker
        self._planner = planner
        self._max_trim_tokens = max_trim_tokens
        self._max_seq_len = max_seq_len
        self._retry_linger = retry_linger
        self._metrics = metrics
        self._clock = clock
        self._offload_json = offloader.run_json
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.turn")

    async def run(self, session: Session, request: TurnRequest, dialect: Dialect) -> TurnReply:
        """One turn, from the client's bytes to the bytes it gets back.

        Raises:
            SessionError: of the kinds in ``trio_sessions.errors``; except for the one rollback that the contract pins,
                the session is then what it was before.
        """
        arrived = self._clock()
        log = self._log.bind(session=session.id, turn=session.next_turn_number())
        outcome: TurnOutcome = "cancelled"
        turn: _Turn | None = None

        async def gone() -> None:
            assert request.gone is not None
            await request.gone()
            # Those who joined the turn still want its answer.
            if turn is not None and turn.attempt is not None:
                await turn.attempt.left_alone(linger=self._retry_linger)

        try:
            self._registry.require_memory()
            with self._registry.running(session), self._metrics.turns_in_flight.track_inprogress():
                async with session.request_nursery(None if request.gone is None else gone):
                    turn = _Turn(session, request, dialect, arrived, log)
                    ended = await self._turn(turn)
                outcome = ended.outcome
                return ended.reply
        except SessionError as error:
            outcome = _outcome_of(error)
            # Most texts may quote the conversation.
            tell = log.warning if outcome in ("engine_error", "failed") else log.info
            tell("turn failed", code=error.code, **_harmless(error))
            log.debug("why the turn failed", error=str(error))
            raise
        except trio.Cancelled:
            log.info("turn cancelled")
            raise
        except Exception:
            outcome = "failed"
            raise
        finally:
            self._metrics.count_turn(outcome)

    async def count(self, session: Session, request: TurnRequest, dialect: Dialect) -> int:
        """How many ids the prompt of this turn would have. Nothing is sampled, recorded or rolled back.

        Raises:
            SessionError: as the turn would, but that a prompt may leave no room for an answer.
        """
        size = json.weight(request.body)
        with self._registry.running(session):
            read = await self._offload_json(lambda: self._planner.read(session, request, dialect), size=size)
            async with session.locked():
                session.ensure_open()
                try:
                    plan = await self._planner.plan(session, read, size=size, settles=False)
                except ContextOverflow as overflow:
                    return overflow.prompt_tokens
        return len(plan.request.input_ids)

    def note_delivery(self, session: Session, committed: Checkpoint, *, received: bool) -> None:
        """Say whether a client received the answer of a turn that was recorded, as far as that is known."""
        noted = session.delivery.note(committed, received=received)
        for each in noted.to_write:
            session.journal.note_answer(committed, received=each)
        if noted.undelivered:
            self._metrics.undelivered.inc()
            self._log.info("an answer was not delivered", session=session.id)

    async def _turn(self, turn: _Turn) -> _Ended:
        began = trio.current_time()
        size = json.weight(turn.request.body)
        mark = turn.request.mark
        if mark is None:
            return await self._sample(turn, await self._read(turn, size=size), size=size, began=began)
        identity = await self._offload_json(lambda: turn.request.identity(turn.dialect.name), size=size)
        turn.session.ensure_open()
        attempts = turn.session.attempts
        # Between finding none and beginning one nothing is awaited, so that no two begin the same.
        earlier = await attempts.find(mark, identity.fingerprint)
        if earlier is not None:
            return _Ended("repeated", await self._repeat(turn, earlier, stream=identity.stream))
        turn.attempt = attempts.begin(mark, identity.fingerprint)
        result: AttemptResult | Exception = TurnCancelled("the turn that this request repeats was cancelled: try again")
        try:
            read = await self._read(turn, size=size)
            turn.attempt.is_answered_by(read.exchange.writer)
            ended = await self._sample(turn, read, size=size, began=began)
            assert ended.result is not None
            result = ended.result
        except Exception as error:
            result = error
            raise
        finally:
            attempts.end(turn.attempt, result)
        return replace(ended, reply=replace(ended.reply, shared=True))

    async def _read(self, turn: _Turn, *, size: int) -> ReadRequest:
        read = await self._offload_json(lambda: self._planner.read(turn.session, turn.request, turn.dialect), size=size)
        if read.exchange.dropped:
            turn.log.info("left out of the request", dropped=read.exchange.dropped)
        return read

    async def _repeat(self, turn: _Turn, earlier: Attempt, *, stream: bool) -> TurnReply:
        """The answer of an earlier attempt, once it is there, for the client of this one.

        The request is not read again: what it refers to may be gone since then.
        """
        turn.log.info("a retry gets the answer of the turn it repeats", waits=not earlier.over.is_set())
        with earlier.joined_by_another():
            writer = await earlier.writer()
            events = writer.events() if stream else None
            result, opened = await self._keep_waiting(turn, events, None, earlier.outcome)
        answer = result.answer
        reply = await self._offload_json(
            lambda: (
                _reply(writer, events, answer)
                if answer.status == 200
                else _refusal(answer, turn.dialect, events if opened else None)
            ),
            size=json.weight(answer.body),
        )
        return TurnReply(reply, committed=result.committed, shared=True, remaining_tokens=result.remaining_tokens)

    async def _sample(self, turn: _Turn, read: ReadRequest, *, size: int, began: float) -> _Ended:
        """A turn of its own, which began at trio's time ``began``."""
        events = read.exchange.writer.events() if read.exchange.stream else None

        def before_waiting() -> None:
            turn.log.info("the turn waits for a place")
            if events is not None and turn.request.waiting is not None:
                turn.request.waiting.begin(events, None)

        arrived = trio.current_time()
        async with self._admission.place(turn.session, before_waiting=before_waiting):
            waited = trio.current_time() - arrived
            return await self._sample_in_place(turn, read, events, size=size, began=began, waited=waited)

    async def _sample_in_place(
        self, turn: _Turn, read: ReadRequest, events: EventWriter | None, *, size: int, began: float, waited: float
    ) -> _Ended:
        """The turn, for which there is a place after ``waited`` seconds."""
        session, writer, log = turn.session, read.exchange.writer, turn.log
        async with session.locked():
            session.ensure_open()
            plan = await self._planner.plan(session, read, size=size)
        prompt = plan.request.input_ids
        remaining = self._remaining(len(prompt))
        ask = partial(
            self._asker.ask,
            session.id,
            turn.request,
            plan.request,
            pass_on=None if events is None or turn.request.waiting is None else turn.request.waiting.offer,
            size=size,
        )
        asked, opened = await self._keep_waiting(turn, events, remaining, ask)
        answer, plan = asked.answer, replace(plan, request=asked.request)
        self._metrics.engine_seconds.observe(asked.engine_seconds)
        if answer.status != 200:
            log.warning("the engine refused the turn", status=answer.status)
            reply = await self._offload_json(
                lambda: _refusal(answer, turn.dialect, events if opened else None), size=json.weight(answer.body)
            )
            return _Ended("engine_error", TurnReply(reply), AttemptResult(answer))
        hollow = await self._offload_json(partial(hollow_answer, answer.body), size=_weight_to_skip(answer.body))
        digest = await self._offload_json(
            lambda: _digest(answer, hollow, writer, events, prompt), size=json.weight(hollow)
        )

        # Larger than what the engine is sent can only be the spelling of white space, which is not to be kept.
        spelled = read.prepared.spelled_messages
        sent = SentMessages.of(spelled, plan.attachment.request) if 0 < len(spelled) <= asked.sent_bytes else None

        # From here on the turn is decided: a client that goes away now no longer takes it back.
        with trio.CancelScope(shield=True):
            async with session.locked():
                outcome, committed = await self._commit(turn, plan, digest)
                if committed is not None:
                    self._registry.grew(session, session.remember_sent(sent))
        overhead = (trio.current_time() - began) - waited - asked.engine_seconds
        self._metrics.overhead_seconds.observe(overhead)
        log.info(
            "turn answered",
            outcome=outcome,
            prompt_tokens=len(prompt),
            sampled_tokens=len(digest.completion.token_ids),
            finish_reason=digest.completion.finish_reason,
            discarded=plan.attachment.discards,
            engine_seconds=round(asked.engine_seconds, 4),
            overhead_seconds=round(overhead, 4),
        )
        remaining = self._remaining(len(prompt) + len(digest.completion.token_ids))
        return _Ended(
            outcome,
            TurnReply(digest.reply, committed=committed, remaining_tokens=remaining),
            AttemptResult(digest.bare, remaining_tokens=remaining, committed=committed),
        )

    async def _keep_waiting(
        self, turn: _Turn, events: EventWriter | None, remaining: int | None, until: Callable[[], Awaitable[_T]]
    ) -> tuple[_T, bool]:
        """What ``until`` returns, and whether the client's stream was opened meanwhile."""
        waiting = turn.request.waiting
        if events is None or waiting is None:
            return await until(), False
        waiting.begin(events, remaining)
        result = await until()
        return result, waiting.settle()

    def _remaining(self, used: int) -> int | None:
        return None if self._max_seq_len is None else max(0, self._max_seq_len - used)

    async def _commit(self, turn: _Turn, plan: Plan, digest: _Digest) -> tuple[TurnOutcome, Checkpoint | None]:
        session, log = turn.session, turn.log
        if await session.is_deleted():
            return "closed", None
        if session.history.is_stale(plan.attachment):
            return "stale", None
        kept = assert_pretokenized_prefix(
            plan.stored,
            np.concatenate([plan.request.input_ids, digest.completion.token_ids]),
            max_trim_tokens=self._max_trim_tokens,
            request_messages=plan.request.messages,
            assistant_message=digest.completion.message,
        )
        session.history.require_room()
        checkpoint = self._checkpoint(turn, plan, digest)
        discarded = path_of(session.history.active)[-plan.attachment.discards :] if plan.attachment.discards else ()
        await session.journal.write_turn(plan.attachment, checkpoint)
        checkpoint = session.history.commit(plan.attachment, checkpoint)
        session.journal.committed(checkpoint)
        self._registry.grew(session, footprint(checkpoint) - sum(map(footprint, discarded)))
        if plan.attachment.discards:
            log.warning("the turn takes the place of the last one", because=plan.attachment.divergence)
        self._metrics.prompt_tokens.inc(len(plan.request.input_ids))
        self._metrics.sampled_tokens.inc(len(digest.completion.token_ids))
        self._metrics.rollbacks.inc(plan.attachment.discards)
        session.replaced_turns += plan.attachment.discards
        self._metrics.synthetic_tokens.inc(plan.extension.synthetic)
        self._metrics.replaced_tokens.inc(kept.trimmed)
        for event in plan.events:
            # The detail may name what the client sent.
            log.info("boundary event", kind=event.kind)
            self._metrics.boundary_events.labels(event.kind).inc()
        return "committed", checkpoint

    def _checkpoint(self, turn: _Turn, plan: Plan, digest: _Digest) -> Checkpoint:
        return plan.attachment.checkpoint(
            keep=plan.extension.keep,
            suffix=plan.extension.token_ids,
            synthetic=plan.extension.synthetic,
            rendered_with=plan.rendered_with,
            events=plan.events,
            completion=digest.completion,
            caller=plan.caller,
            record=TurnRecord(
                timestamp=self._clock(),
                request_timestamp=turn.arrived,
                method=turn.request.method,
                request_fields=_shared_fields(plan),
                routed_experts_start=plan.request.routed_experts_start,
                respelled=plan.attachment.respelled,
                response=digest.response,
                status_code=200,
            ),
        )


def _weight_to_skip(body: bytes) -> int:
    """How much work it is to find the payloads in ``body``; as ``json.weight``.

    Objects are counted here and there: to count them in all of it would be as much work as to find the payloads.
    """
    apart = max(len(body) // _LOOKS, _LOOK_BYTES)
    seen = sum(body.count(b"{", start, start + _LOOK_BYTES) for start in range(0, len(body), apart))
    return len(body) // _SKIPPED_BYTES_PER_UNIT + _UNITS_PER_OBJECT * seen * (apart // _LOOK_BYTES)


def _shared_fields(plan: Plan) -> bytes:
    """What was asked for beside the messages, in the base's own bytes where it is the same: tools are kept once."""
    base, fields = plan.attachment.base, plan.request.fields
    if base is not None and base.record.request_fields == fields:
        return base.record.request_fields
    return json.without_room(fields)


def _reply(writer: AnswerWriter, events: EventWriter | None, bare: EngineAnswer) -> Reply:
    if events is None:
        return writer.reply(bare)
    # The engine's headers describe its JSON body, not this one.
    return Reply(status=200, headers=STREAM_HEADERS, body=events.finish(bare))


def _refusal(answer: EngineAnswer, dialect: Dialect, opened: EventWriter | None) -> Reply:
    """What the engine refused the turn with; in a stream that was opened its status is gone."""
    if opened is None:
        return dialect.refused(answer)
    return Reply(status=200, headers=STREAM_HEADERS, body=opened.broken(engine_failure(answer.status, answer.body)))


def _digest(
    answer: EngineAnswer, hollow: bytes, writer: AnswerWriter, events: EventWriter | None, prompt: TokenIds
) -> _Digest:
    completion = extract_completion(hollow, prompt=prompt)
    try:
        split = split_answer(answer.body, hollow)
    except json.InvalidJSON as error:
        raise BadEngineAnswer(f"invalid chat completion response: {error}") from error
    bare = EngineAnswer(status=answer.status, headers=answer.headers, body=split.bare)
    if writer.response_id is not None:
        completion = msgspec.structs.replace(completion, response_id=writer.response_id)
    return _Digest(completion=completion, bare=bare, response=split.whole, reply=_reply(writer, events, bare))


def _harmless(error: SessionError) -> dict[str, str]:
    """What the log may say of an error beside its code."""
    match error:
        case EngineUnreachable():
            return {"kind": error.kind}
        case BadEngineAnswer():
            return {"error": str(error)}
        case _:
            return {}


def _outcome_of(error: SessionError) -> TurnOutcome:
    match error:
        case ServerDraining() | ClientDisconnected() | SessionExpired(running=True) | TurnCancelled():
            return "cancelled"
        case StoreUnavailable() | MemoryExhausted():
            return "unavailable"
        case InvalidRequest() | SessionNotFound() | NodeCapReached() | Overloaded():
            return "refused"
        case EngineUnreachable() | BadEngineAnswer():
            return "engine_error"
        case _:
            return "failed"
