"""How long the event loop stands still while the samples of a large session are assembled."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Any, Final

import numpy as np
import trio

from benchmarks.figures import Row, Table, figure
from benchmarks.options import Options
from benchmarks.timing import watched
from trio_sessions.config import Settings
from trio_sessions.core import json
from trio_sessions.engine.base import EngineAnswer, EngineCall
from trio_sessions.process import settle
from trio_sessions.service.gateway import Gateway
from trio_sessions.service.request import TurnRequest
from trio_sessions.service.session import Session
from trio_sessions.testing.engine import ScriptedEngine, chat_answer
from trio_sessions.testing.toy import ToyRenderer, sampled_ids
from trio_sessions.web.dialects.chat import ChatDialect

__all__ = ["measure"]

PART: Final = "samples"
_REPEATS: Final = 3
_TURNS: Final = 20
_TOKENS: Final = 800
_QUICK_TURNS: Final = 2
_QUICK_TOKENS: Final = 50
_LAYERS: Final = 40
_TOP_K: Final = 8


def measure(options: Options) -> list[Table]:
    """Assemble the samples of one session with replay payloads."""
    return trio.run(_measure, options)


async def _measure(options: Options) -> list[Table]:
    turns, tokens = (_QUICK_TURNS, _QUICK_TOKENS) if options.quick else (_TURNS, _TOKENS)
    options.show.step(f"taking {turns} turns", turns)
    gateway = Gateway(
        Settings(engine="http://unused", routing_replay=True, num_layers=_LAYERS),
        engine=ScriptedEngine(otherwise=_answer_with(tokens)),
        renderer=ToyRenderer(),
    )
    session = await gateway.registry.create()
    messages: list[dict[str, Any]] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"question {turn}"})
        await _turn(gateway, session, messages)
        messages.append({"role": "assistant", "content": "x" * (tokens - 1)})
        options.show.done(turn + 1)
    # As a gateway that is served.
    settle()
    held = sum(len(node.record.response) for node in session.history.nodes)
    payload = sum(map(len, await gateway.samples.collect(session, b"")))
    repeats = options.times(_REPEATS)
    options.show.step("assembling", repeats)
    costs = []
    for done in range(repeats):
        began = trio.current_time()
        async with watched() as stall:
            await gateway.samples.collect(session, b"")
            took = trio.current_time() - began
        costs.append((took, stall.milliseconds))
        options.show.done(done + 1)
    labels = {"turns": str(turns), "held": f"{held / 2**20:.1f} MiB", "samples": f"{payload / 2**20:.1f} MiB"}
    figures = {"assembled_s": figure(cost[0] for cost in costs), "stall_ms": figure(cost[1] for cost in costs)}
    return [Table(PART, "samples of one session", (Row(labels, figures),))]


async def _turn(gateway: Gateway, session: Session, messages: list[dict[str, Any]]) -> None:
    request = TurnRequest(method="POST", query="", headers=(), body=json.encode({"messages": messages}))
    await gateway.turns.run(session, request, ChatDialect())


def _answer_with(tokens: int) -> Callable[[EngineCall], Awaitable[EngineAnswer]]:
    async def answer(call: EngineCall) -> EngineAnswer:
        prompt = len(json.decode(call.body)["input_ids"])
        rows = np.zeros((prompt + tokens - 1, _LAYERS, _TOP_K), dtype=np.int32)
        text = "x" * (tokens - 1)
        return chat_answer(
            text,
            token_ids=sampled_ids(text),
            meta_info={"routed_experts": base64.b64encode(rows.tobytes()).decode()},
        )

    return answer
