"""From a client's request to the exact prompt: read it, find what it extends, render what it adds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np

from trio_sessions.core.boundary import BoundaryEvent
from trio_sessions.core.caller import Caller
from trio_sessions.core.history import Attachment, Preference, RenderedWith, Seam, SeamPolicy, decide_seam
from trio_sessions.core.matchers import MATCHERS, Matcher
from trio_sessions.core.purpose import purpose_of
from trio_sessions.core.request import EngineRequest, PreparedRequest, RequestPolicy, prepare_request
from trio_sessions.core.tokens import TokenIds
from trio_sessions.errors import AppendRoleNotSupported
from trio_sessions.render.base import Extension, Renderer
from trio_sessions.service.dialect import Dialect, Reading
from trio_sessions.service.limits import RequestLimits
from trio_sessions.service.offload import Offloader
from trio_sessions.service.request import ReadRequest, TurnRequest
from trio_sessions.service.session import Session

__all__ = ["Plan", "Planner"]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A turn between prepare and commit.

    Attributes:
        attachment: where it joins the history.
        caller: who made it, and what for.
        stored: the ids that stand there.
        extension: what the prompt has behind them.
        rendered_with: tools and template kwargs.
        events: what is declared at the seam.
        request: for the engine, with the exact prompt.
    """

    attachment: Attachment
    caller: Caller
    stored: TokenIds
    extension: Extension
    rendered_with: RenderedWith
    events: tuple[BoundaryEvent, ...]
    request: EngineRequest


class Planner:
    """Plans turns.

    Args:
        renderer: messages to ids.
        matcher: decides whether replayed history is the stored one; None for what each dialect's clients need.
        policy: what the launch adds to every request.
        seams: what the launch wants where a request extends a stored turn.
        max_seq_len: most ids of a prompt and its answer; None for no limit.
        limits: what a request and a session may come to.
        new_id: draws ids, 32 lowercase hex digits.
        clock: wall clock, seconds since the epoch.
        offloader: threads for long computations.
    """

    def __init__(
        self,
        *,
        renderer: Renderer,
        matcher: Matcher | None,
        policy: RequestPolicy,
        seams: SeamPolicy,
        max_seq_len: int | None,
        limits: RequestLimits,
        new_id: Callable[[], str],
        clock: Callable[[], float],
        offloader: Offloader,
    ) -> None:
        self._renderer = renderer
        self._matcher = matcher
        self._policy = policy
        self._seams = seams
        self._max_seq_len = max_seq_len
        self._limits = limits
        self._new_id = new_id
        self._clock = clock
        self._offload = offloader.run

    def read(self, session: Session, request: TurnRequest, dialect: Dialect) -> ReadRequest:
        """The request as ``dialect`` reads it; nothing of the session is changed.

        Raises:
            InvalidRequest: it cannot be read, or asks for what cannot be done.
        """
        self._limits.check_body(request.body)
        exchange = dialect.read(
            request.body,
            Reading(
                sent=session.sent,
                roles=lambda: self._renderer.appendable_roles(self._renderer.effective_kwargs({})),
                answered=session.answered(),
                answers_at=session.answers_at(),
                new_id=self._new_id,
                now=self._clock,
            ),
        )
        self._limits.check_messages(len(exchange.chat.messages))
        purpose = purpose_of(exchange.chat)
        return ReadRequest(
            exchange=exchange,
            prepared=prepare_request(exchange.chat, self._policy),
            matcher=self._matcher or MATCHERS[dialect.matcher],
            caller=request.caller if purpose is None else replace(request.caller, purpose=purpose),
        )

    async def plan(self, session: Session, read: ReadRequest, *, size: int, settles: bool = True) -> Plan:
        """What becomes of a request, which the session is open for. The session's lock is held.

        Args:
            session: the session.
            read: the request.
            size: how much work it is to look through its messages, as ``Offloader`` counts it.
            settles: whether a refused role leaves the session rolled back, as the contract has it.

        Raises:
            SessionError: of the kinds that attaching, rendering and the budget have; the session is as before, but for
                the one rollback that the contract pins.
        """
        prepared = read.prepared
        # The lock is held, so that the history stays as it is while a thread looks at it.
        seam = await self._offload(lambda: self._attach(session, read), size=size)
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
            refused: AppendRoleNotSupported | None = None
            try:
                extension = await self._offload(
                    lambda: self._extend(attachment, stored, prepared, kwargs, now=session.created), size=weight
                )
            except AppendRoleNotSupported as error:
                refused = error
            if refused is not None:
                if settles and attachment.discards and not session.closed:
                    await session.journal.write_rollback(attachment)
                    session.history.settle_refused_role(attachment)
                raise refused
        self._limits.check_tokens(stored=session.history.stored_tokens(attachment), added=len(extension.token_ids))
        input_ids = np.concatenate([stored[: extension.keep], extension.token_ids])
        request = prepared.engine_request(
            input_ids, template_kwargs=kwargs, stored_tokens=len(stored), max_seq_len=self._max_seq_len
        )
        return Plan(
            attachment=attachment,
            caller=read.caller,
            stored=stored,
            extension=extension,
            rendered_with=seam.rendered_with,
            events=seam.events(keep=extension.keep, synthetic=extension.synthetic, rendered=extension.events),
            request=request,
        )

    def _attach(self, session: Session, read: ReadRequest) -> Seam:
        prepared = read.prepared
        found = session.history.attach(
            prepared.messages, read.matcher, Preference(caller=read.caller, extends=read.exchange.extends)
        )
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
