"""The turn pipeline: one for every mode and dialect.

decode → (lock) attach, render → (no lock) engine → validate and encode the answer → (lock, shielded) commit → reply.
Whatever can fail is done before the first thing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import structlog
import trio

from trio_sessions.core import json
from trio_sessions.core.answer import hollow_answer, split_answer
from trio_sessions.core.boundary import BoundaryEvent
from trio_sessions.core.completion import Completion, extract_completion
from trio_sessions.core.history import Attachment, Checkpoint, RenderedWith, Seam, SeamPolicy, TurnRecord, decide_seam
from trio_sessions.core.messages import MATCHERS, Matcher
from trio_sessions.core.prefix import assert_pretokenized_prefix
from trio_sessions.core.request import EngineRequest, PreparedRequest, RequestPolicy, SentMessages, prepare_request
from trio_sessions.core.tokens import TokenIds
from trio_sessions.engine.base import Engine, EngineAnswer, EngineCall, Headers
from trio_sessions.errors import (
    AppendRoleNotSupported,
    BadEngineAnswer,
    ClientDisconnected,
    EngineUnreachable,
    InvalidRequest,
    ServerDraining,
    SessionError,
    SessionNotFound,
)
from trio_sessions.observe import Metrics, TurnOutcome
from trio_sessions.render.base import Extension, Renderer
from trio_sessions.service.dialect import Dialect, EventWriter, Exchange, Reading, Waiting
from trio_sessions.service.failure import engine_failure
from trio_sessions.service.offload import Offloader
from trio_sessions.service.registry import SessionRegistry
from trio_sessions.service.replies import STREAM_HEADERS, Reply
from trio_sessions.service.session import Session, WaitsForDisconnect

__all__ = ["CHAT_PATH", "TurnPipeline", "TurnRequest"]

CHAT_PATH: Final = "v1/chat/completions"
# Text that is only skipped costs this part of what tokenizing as many bytes does, and an object more.
_SKIPPED_BYTES_PER_UNIT: Final = 256
_UNITS_PER_OBJECT: Final = 2
_LOOKS: Final = 16
_LOOK_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A client's request for a turn as it arrived.

    Attributes:
        gone: returns when the client has gone away; None where the turn is cancelled then.
        waiting: keeps the client of a stream waiting; None where it waits without a word.
    """

    method: str
    query: str
    headers: Headers
    body: bytes
    gone: WaitsForDisconnect | None = None
    waiting: Waiting | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """A turn between prepare and commit."""

    attachment: Attachment
    stored: TokenIds
    extension: Extension
    rendered_with: RenderedWith
    events: tuple[BoundaryEvent, ...]
    request: EngineRequest


@dataclass(frozen=True, slots=True, eq=False)
class _Digest:
    """An engine's answer, checked and encoded: nothing that follows can fail because of it."""

    completion: Completion
    response: bytes
    reply: Reply


class TurnPipeline:
    """Runs turns of sessions against one engine.

    Args:
        registry: knows which turns run, for shutdown.
        engine: samples.
        renderer: messages to ids.
        matcher: decides whether replayed history is the stored one; None for what each dialect's clients need.
        policy: what the launch adds to every request.
        seams: what the launch wants where a request extends a stored turn.
        metrics: counters and histograms.
        clock: wall clock for records, seconds since the epoch.
        new_id: draws ids, 32 lowercase hex digits.
        offloader: threads for long computations.
    """

    def __init__(
        self,
        *,
        registry: SessionRegistry,
        engine: Engine,
        renderer: Renderer,
        matcher: Matcher | None,
        policy: RequestPolicy,
        seams: SeamPolicy,
        metrics: Metrics,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        offloader: Offloader,
    ) -> None:
        self._registry = registry
        self._engine = engine
        self._renderer = renderer
        self._matcher = matcher
        self._policy = policy
        self._seams = seams
        self._metrics = metrics
        self._clock = clock
        self._new_id = new_id
        self._offload = offloader.run
        self._offload_json = offloader.run_json
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.turn")

    async def run(self, session: Session, request: TurnRequest, dialect: Dialect) -> Reply:
        """One turn, from the client's bytes to the bytes it gets back.

        Raises:
            SessionError: of the kinds in ``trio_sessions.errors``; except for the one rollback that the contract pins,
                the session is then what it was before.
        """
        arrived = self._clock()
        log = self._log.bind(session=session.id, turn=session.next_turn_number())
        outcome: TurnOutcome = "cancelled"
        try:
            with self._registry.running(session), self._metrics.turns_in_flight.track_inprogress():
                async with session.request_nursery(request.gone) as nursery:
                    outcome, reply = await self._turn(session, request, dialect, arrived, nursery, log)
                return reply
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

    async def _turn(
        self,
        session: Session,
        request: TurnRequest,
        dialect: Dialect,
        arrived: float,
        nursery: trio.Nursery,
        log: structlog.stdlib.BoundLogger,
    ) -> tuple[TurnOutcome, Reply]:
        began = trio.current_time()
        size = json.weight(request.body)
        exchange, prepared = await self._offload_json(lambda: self._read(session, request, dialect), size=size)
        if exchange.dropped:
            log.info("left out of the request", dropped=exchange.dropped)
        matcher = self._matcher or MATCHERS[dialect.matcher]
        async with session.locked():
            session.ensure_open()
            plan = await self._plan(session, prepared, matcher, size=size)
        body = await self._offload_json(plan.request.encode, size=size)
        # Larger than what the engine is sent can only be the spelling of white space, which is not to be kept.
        sent = (
            SentMessages.of(prepared.spelled_messages, plan.attachment.request)
            if 0 < len(prepared.spelled_messages) <= len(body)
            else None
        )

        writer = exchange.events() if exchange.stream else None
        asked = trio.current_time()
        answer, opened = await self._ask(session, request, body, writer, nursery)
        answered = trio.current_time()
        self._metrics.engine_seconds.observe(answered - asked)
        if answer.status != 200:
            log.warning("the engine refused the turn", status=answer.status)
            return "engine_error", await self._offload_json(
                lambda: _refusal(answer, dialect, writer if opened else None), size=json.weight(answer.body)
            )
        hollow = await self._offload_json(partial(hollow_answer, answer.body), size=_weight_to_skip(answer.body))
        digest = await self._offload_json(
            lambda: _digest(answer, hollow, exchange, writer, plan.request.input_ids), size=json.weight(hollow)
        )

        # From here on the turn is decided: a client that goes away now no longer takes it back.
        with trio.CancelScope(shield=True):
            async with session.locked():
                outcome = self._commit(session, request, plan, digest, arrived, log)
                if outcome == "committed":
                    session.sent = sent
        overhead = (trio.current_time() - began) - (answered - asked)
        self._metrics.overhead_seconds.observe(overhead)
        log.info(
            "turn answered",
            outcome=outcome,
            prompt_tokens=len(plan.request.input_ids),
            sampled_tokens=len(digest.completion.token_ids),
            finish_reason=digest.completion.finish_reason,
            discarded=plan.attachment.discards,
            engine_seconds=round(answered - asked, 4),
            overhead_seconds=round(overhead, 4),
        )
        return outcome, digest.reply

    def _read(self, session: Session, request: TurnRequest, dialect: Dialect) -> tuple[Exchange, PreparedRequest]:
        exchange = dialect.read(
            request.body,
            Reading(
                sent=session.sent,
                roles=lambda: self._renderer.appendable_roles(self._renderer.effective_kwargs({})),
                answered=session.answered,
                new_id=self._new_id,
                now=self._clock,
            ),
        )
        return exchange, prepare_request(exchange.chat, self._policy)

    async def _ask(
        self, session: Session, request: TurnRequest, body: bytes, writer: EventWriter | None, nursery: trio.Nursery
    ) -> tuple[EngineAnswer, bool]:
        """The engine's answer, and whether the client's stream was opened meanwhile."""
        waiting = request.waiting if writer is not None else None
        if waiting is not None and writer is not None:
            nursery.start_soon(waiting.keep, writer, ())
        answer = await self._engine.call(
            EngineCall(
                method=request.method,
                path=CHAT_PATH,
                query=request.query,
                headers=request.headers,
                body=body,
                session_id=session.id,
            )
        )
        return answer, waiting is not None and waiting.settle()

    async def _plan(self, session: Session, prepared: PreparedRequest, matcher: Matcher, *, size: int) -> _Plan:
        # The lock is held, so that the history stays as it is while a thread looks at it.
        seam = await self._offload(lambda: self._attach(session, prepared, matcher), size=size)
        kwargs = self._renderer.effective_kwargs(prepared.template_kwargs)
        attachment = seam.attachment
        stored = attachment.tokens.materialize()
        weight = self._renderer.weight(
            attachment.appended, stored=attachment.stored, tools=prepared.tools, kwargs=kwargs
        )
        if attachment.base is None:
            prompt = await self._offload(
                lambda: self._renderer.render(
                    attachment.appended, tools=prepared.tools, kwargs=kwargs, now=session.created
                ),
                size=weight,
            )
            extension = Extension(keep=0, token_ids=prompt)
        else:
            try:
                extension = await self._offload(
                    lambda: self._extend(attachment, stored, prepared, kwargs, now=session.created), size=weight
                )
            except AppendRoleNotSupported:
                session.history.settle_refused_role(attachment)
                raise
        input_ids = np.concatenate([stored[: extension.keep], extension.token_ids])
        request = prepared.engine_request(input_ids, template_kwargs=kwargs, stored_tokens=len(stored))
        return _Plan(
            attachment=attachment,
            stored=stored,
            extension=extension,
            rendered_with=seam.rendered_with,
            events=seam.events(keep=extension.keep, synthetic=extension.synthetic, rendered=extension.events),
            request=request,
        )

    def _attach(self, session: Session, prepared: PreparedRequest, matcher: Matcher) -> Seam:
        found = session.history.attach(prepared.messages, matcher)
        kwargs = self._renderer.effective_kwargs(prepared.template_kwargs)
        return decide_seam(found, prepared.messages, RenderedWith.of(prepared.tools, kwargs), self._seams)

    def _extend(
        self,
        attachment: Attachment,
        stored: TokenIds,
        prepared: PreparedRequest,
        kwargs: Mapping[str, Any],
        *,
        now: datetime,
    ) -> Extension:
        allowed = self._renderer.appendable_roles(kwargs)
        for index, message in enumerate(attachment.appended, start=len(attachment.stored)):
            if message["role"] not in allowed:
                because = f" ({attachment.divergence})" if attachment.divergence else ""
                raise AppendRoleNotSupported(
                    f"appended message at index {index} has role={message['role']!r}, allowed={sorted(allowed)}"
                    f"{because}; the selected TITO fixed template does not support appending this role"
                )
        return self._renderer.extend(
            stored,
            stored_messages=attachment.stored,
            appended=attachment.appended,
            tools=prepared.tools,
            kwargs=kwargs,
            now=now,
        )

    def _commit(
        self,
        session: Session,
        request: TurnRequest,
        plan: _Plan,
        digest: _Digest,
        arrived: float,
        log: structlog.stdlib.BoundLogger,
    ) -> TurnOutcome:
        if session.closed:
            return "closed"
        if session.history.is_stale(plan.attachment):
            return "stale"
        kept = assert_pretokenized_prefix(
            plan.stored,
            np.concatenate([plan.request.input_ids, digest.completion.token_ids]),
            max_trim_tokens=self._renderer.max_trim_tokens,
            request_messages=plan.request.messages,
            assistant_message=digest.completion.message,
        )
        checkpoint = self._checkpoint(request, plan, digest, arrived)
        session.history.commit(plan.attachment, checkpoint)
        if plan.attachment.discards:
            log.warning("the turn takes the place of the last one", because=plan.attachment.divergence)
        self._metrics.prompt_tokens.inc(len(plan.request.input_ids))
        self._metrics.sampled_tokens.inc(len(digest.completion.token_ids))
        self._metrics.rollbacks.inc(plan.attachment.discards)
        self._metrics.synthetic_tokens.inc(plan.extension.synthetic)
        self._metrics.replaced_tokens.inc(kept.trimmed)
        for event in plan.events:
            # The detail may name what the client sent.
            log.info("boundary event", kind=event.kind)
            self._metrics.boundary_events.labels(event.kind).inc()
        return "committed"

    def _checkpoint(self, request: TurnRequest, plan: _Plan, digest: _Digest, arrived: float) -> Checkpoint:
        return plan.attachment.checkpoint(
            keep=plan.extension.keep,
            suffix=plan.extension.token_ids,
            synthetic=plan.extension.synthetic,
            rendered_with=plan.rendered_with,
            events=plan.events,
            completion=digest.completion,
            record=TurnRecord(
                timestamp=self._clock(),
                request_timestamp=arrived,
                method=request.method,
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


def _shared_fields(plan: _Plan) -> bytes:
    """What was asked for beside the messages, in the base's own bytes where it is the same: tools are kept once."""
    base, fields = plan.attachment.base, plan.request.fields
    return base.record.request_fields if base is not None and base.record.request_fields == fields else fields


def _refusal(answer: EngineAnswer, dialect: Dialect, opened: EventWriter | None) -> Reply:
    """What the engine refused the turn with; in a stream that was opened its status is gone."""
    if opened is None:
        return dialect.refused(answer)
    return Reply(status=200, headers=STREAM_HEADERS, body=opened.broken(engine_failure(answer)))


def _digest(
    answer: EngineAnswer, hollow: bytes, exchange: Exchange, writer: EventWriter | None, prompt: TokenIds
) -> _Digest:
    completion = extract_completion(hollow, prompt=prompt)
    try:
        split = split_answer(answer.body, hollow)
    except json.InvalidJSON as error:
        raise BadEngineAnswer(f"invalid chat completion response: {error}") from error
    bare = EngineAnswer(status=answer.status, headers=answer.headers, body=split.bare)
    reply = (
        exchange.answered(bare)
        if writer is None
        # The engine's headers describe its JSON body, not this one.
        else Reply(status=200, headers=STREAM_HEADERS, body=writer.finish(bare))
    )
    if exchange.response_id is not None:
        completion = msgspec.structs.replace(completion, response_id=exchange.response_id)
    return _Digest(completion=completion, response=split.whole, reply=reply)


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
        case InvalidRequest() | SessionNotFound():
            return "refused"
        case EngineUnreachable() | BadEngineAnswer():
            return "engine_error"
        case ServerDraining() | ClientDisconnected():
            return "cancelled"
        case _:
            return "failed"
