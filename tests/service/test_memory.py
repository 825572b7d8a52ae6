"""What a long session holds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.core import traced_memory
from tests.service.conftest import Bench
from trio_sessions.core.history import path_of
from trio_sessions.core.token_text import prepare_table
from trio_sessions.engine.base import EngineAnswer, EngineCall
from trio_sessions.testing.engine import ScriptedEngine, chat_answer
from trio_sessions.testing.toy import ToyRenderer, sampled_ids

TURNS = 200
TOKENS = 2000
BYTES_PER_TOKEN = 4
"""An int32 id. Log probs are among what the engine answered."""
TOOLS = [
    {"type": "function", "function": {"name": f"tool_{n}", "description": "d" * 500, "parameters": {"type": "object"}}}
    for n in range(40)
]


@pytest.mark.parametrize("mode", ["linear", "tree"])
@pytest.mark.parametrize("payload_bytes", [0, 500], ids=["no payload", "500 bytes of payload a token"])
async def test_a_session_holds_its_tokens_and_what_the_engine_answered_and_a_fifth_more(mode, payload_bytes):
    text = "x" * (TOKENS - 1)

    async def answer(call: EngineCall) -> EngineAnswer:
        meta = {"routed_experts": "A" * (payload_bytes * TOKENS)} if payload_bytes else {}
        answer = chat_answer(text, token_ids=sampled_ids(text), meta_info=meta)
        # From the network bytes come without the room that an encoder leaves behind them.
        return replace(answer, body=bytes(bytearray(answer.body)))

    engine = ScriptedEngine(otherwise=answer)
    made = Bench(engine, ToyRenderer(), mode=mode)
    session = await made.registry.create()
    said = {"role": "assistant", "content": text}
    # What is made once for all sessions is not this one's.
    prepare_table()
    await made.turn(await made.registry.create(), "warm")
    with traced_memory() as held:
        turns = 4 if payload_bytes else TURNS
        messages = []
        for number in range(turns):
            messages.append({"role": "user", "content": f"question {number}"})
            await made.raw_turn(session, json.dumps({"messages": messages, "tools": TOOLS}).encode())
            messages.append(said)
            engine.calls.clear()
        del messages
    path = path_of(session.history.active)
    tokens = BYTES_PER_TOKEN * len(path[-1].tokens)
    answered = sum(len(checkpoint.record.response) for checkpoint in path)
    assert len(path) == turns
    assert len(path[-1].tokens) > turns * TOKENS
    assert held() < 1.2 * (tokens + answered)
