"""Asking the engine for one turn, for a whole answer or for a stream that is passed on as it comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio

from trio_sessions.core import json
from trio_sessions.core.request import EngineRequest
from trio_sessions.core.stream import AnswerAssembler, Delta, EventSplitter
from trio_sessions.engine.base import Engine, EngineAnswer, EngineCall
from trio_sessions.service.offload import Offloader
from trio_sessions.service.request import TurnRequest

__all__ = ["CHAT_PATH", "Asked", "EngineAsker"]

CHAT_PATH: Final = "v1/chat/completions"

_log: structlog.stdlib.BoundLogger = structlog.get_logger("trio_sessions.engine")


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What came of it.

    Attributes:
        answer: the engine's, whole.
        request: what it was sent.
        sent_bytes: how large that was.
        engine_seconds: how long the engine took.
    """

    answer: EngineAnswer
    request: EngineRequest
    sent_bytes: int
    engine_seconds: float


class EngineAsker:
    """Asks one engine.

    Args:
        engine: samples.
        real_streams: whether to ask for streams where the client wants one, as long as the engine gives them.
        offloader: threads for long requests.
    """

    def __init__(self, engine: Engine, *, real_streams: bool, offloader: Offloader) -> None:
        self._engine = engine
        self._real_streams = real_streams
        self._offload_json = offloader.run_json

    async def ask(
        self,
        session_id: str,
        turn: TurnRequest,
        request: EngineRequest,
        *,
        pass_on: Callable[[Delta], None] | None,
        size: int,
    ) -> Asked:
        """The engine's answer to ``request``.

        Args:
            session_id: of the turn's session.
            turn: the client's request.
            request: what it comes to.
            pass_on: takes a part of the answer for the client; None where it wants the whole.
            size: how much work it is to encode the request, as ``Offloader`` counts it.

        Raises:
            EngineUnreachable: see ``Engine.call``.
            BadEngineAnswer: a stream that makes no answer.
        """
        if pass_on is not None and self._real_streams:
            streamed = await self._stream(session_id, turn, request.streamed(), pass_on, size=size)
            if streamed.answer.status != 400:
                return streamed
            # Most engines refuse to stream what we need to know, but it may also be the request itself.
            asked = await self._ask_whole(session_id, turn, request, size=size)
            # Of several turns that find it out at the same time one says so.
            if asked.answer.status == 200 and self._real_streams:
                self._real_streams = False
                _log.warning(
                    "the engine gives no ids in streams: from now on clients' streams are fed with whole answers"
                )
            return asked
        return await self._ask_whole(session_id, turn, request, size=size)

    async def _ask_whole(self, session_id: str, turn: TurnRequest, request: EngineRequest, *, size: int) -> Asked:
        body = await self._offload_json(request.encode, size=size)
        began = trio.current_time()
        answer = await self._engine.call(_call(session_id, turn, body))
        return Asked(answer, request, len(body), engine_seconds=trio.current_time() - began)

    async def _stream(
        self,
        session_id: str,
        turn: TurnRequest,
        request: EngineRequest,
        pass_on: Callable[[Delta], None],
        *,
        size: int,
    ) -> Asked:
        body = await self._offload_json(request.encode, size=size)
        events, assembler = EventSplitter(), AnswerAssembler()

        async def take(piece: bytes) -> None:
            for data in events.feed(piece):
                # One event may hold a replay payload of megabytes.
                delta = await self._offload_json(partial(assembler.add, data), size=json.weight(data))
                if delta is not None:
                    pass_on(delta)

        began = trio.current_time()
        answer = await self._engine.stream(_call(session_id, turn, body), take)
        engine_seconds = trio.current_time() - began
        if answer.status == 200:
            whole = await self._offload_json(assembler.answer, size=assembler.weight)
            answer = EngineAnswer(status=200, headers=answer.headers, body=whole)
        return Asked(answer, request, len(body), engine_seconds=engine_seconds)


def _call(session_id: str, turn: TurnRequest, body: bytes) -> EngineCall:
    return EngineCall(
        method=turn.method,
        path=CHAT_PATH,
        query=turn.query,
        headers=turn.headers,
        body=body,
        session_id=session_id,
    )
