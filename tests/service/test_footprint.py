"""What sessions are reckoned to take is about what they take."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.core import traced_memory
from tests.service.conftest import Bench
from trio_sessions.core.token_text import prepare_table
from trio_sessions.engine.base import EngineAnswer, EngineCall
from trio_sessions.testing.engine import ScriptedEngine, chat_answer
from trio_sessions.testing.toy import ToyRenderer, sampled_ids

Message = dict[str, Any]
TOOLS = [
    {"type": "function", "function": {"name": f"tool_{n}", "description": "d" * 1000, "parameters": {"type": "object"}}}
    for n in range(70)
]


def question(number: int, text: str) -> Message:
    return {"role": "user", "content": f"{number}: {text}"}


def line(turns: int, text: str, said: str) -> list[list[Message]]:
    """The requests of one conversation."""
    requests: list[list[Message]] = []
    for number in range(turns):
        before = [*requests[-1], {"role": "assistant", "content": said}] if requests else []
        requests.append([*before, question(number, text)])
    return requests


def branched(turns: int, text: str, said: str) -> list[list[Message]]:
    """The same, with two others beside every turn."""
    others = [question(number, "something else") for number in (-1, -2)]
    return [[*before, asked] for *before, last in line(turns, text, said) for asked in (last, *others)]


@dataclass(frozen=True)
class Shape:
    """What sessions may look like.

    Attributes:
        turns: how many.
        text: what the user says.
        said: what is answered.
        spelled: how the client spells it.
        fields: what else it sends.
        payload: characters that the engine adds to an answer.
        requests: makes the requests.
    """

    turns: int
    text: str = "go on"
    said: str = "fine"
    spelled: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    payload: int = 0
    requests: Callable[[int, str, str], list[list[Message]]] = line


SHAPES = {
    "short turns": Shape(60),
    "77 kB of tools": Shape(15, fields={"tools": TOOLS}),
    "long answers": Shape(4, said="the build is green and tests pass " * 150),
    "long questions": Shape(12, text="the build is green and tests pass " * 300),
    "signs beyond ASCII": Shape(12, text="the build is green ✓ and tests pass " * 300),
    "other spellings": Shape(12, text="a\tb " * 1500, spelled={"indent": 2, "ensure_ascii": True}),
    "replay payloads": Shape(4, payload=300_000),
    "branches": Shape(20, requests=branched),
}


@pytest.mark.parametrize("mode", ["linear", "tree"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_what_is_reckoned_is_about_what_is_held(shape: str, mode: str) -> None:
    made = SHAPES[shape]
    requests = made.requests if mode == "tree" else line

    async def answer(call: EngineCall) -> EngineAnswer:
        meta = {"routed_experts": "A" * made.payload} if made.payload else {}
        answer = chat_answer(made.said, token_ids=sampled_ids(made.said), meta_info=meta)
        # From the network bytes come without the room that an encoder leaves behind them.
        return replace(answer, body=bytes(bytearray(answer.body)))

    engine = ScriptedEngine(otherwise=answer)
    bench = Bench(engine, ToyRenderer(), mode=mode)
    # What is made once for all sessions is not this one's.
    prepare_table()
    await bench.turn(await bench.registry.create(), "warm")
    bodies = [
        json.dumps({"messages": request, **made.fields}, **made.spelled).encode()
        for request in requests(made.turns, made.text, made.said)
    ]
    with traced_memory() as held:
        session = await bench.registry.create()
        for body in bodies:
            assert (await bench.raw_turn(session, body)).status == 200
            engine.calls.clear()
        assert len(session.history.nodes) == len(bodies)
        assert 0.8 < session.footprint / held() < 1.35
