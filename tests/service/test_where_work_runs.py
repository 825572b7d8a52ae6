"""Long work is done in worker threads, short work on the event loop. What is asked is where, not how long it takes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from tests.service.conftest import Bench
from trio_sessions.render.load import load_renderer
from trio_sessions.testing.engine import ScriptedEngine, chat_answer
from trio_sessions.testing.toy import ToyRenderer, sampled_ids

STEPS = {
    "ChatDialect.read",
    "prepare_request",
    "LinearHistory.attach",
    "EngineRequest.encode",
    "hollow_answer",
    "extract_completion",
    "split_answer",
}


@contextmanager
def called_on_the_loop() -> Iterator[set[str]]:
    """The functions that were called in this thread, which the event loop runs in."""
    called: set[str] = set()

    def record(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.add(frame.f_code.co_qualname)

    sys.setprofile(record)
    try:
        yield called
    finally:
        sys.setprofile(None)


async def steps_on_the_loop(made: Bench, body: bytes) -> set[str]:
    with called_on_the_loop() as called:
        await made.raw_turn(await made.registry.create(), body)
    return called & STEPS


async def test_all_of_a_short_turn_is_done_on_the_loop():
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
    assert await steps_on_the_loop(Bench(ScriptedEngine(), ToyRenderer()), body) == STEPS


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "a word " * 100_000},
        {"role": "user", "content": "", "x": list(range(60_000))},
        {"role": "user", "content": "", "x": [{}] * 10_000},
    ],
    ids=["700 KB of text", "numbers", "objects"],
)
async def test_a_request_that_is_much_work_is_handled_in_threads(message):
    made = Bench(ScriptedEngine(), ToyRenderer())
    on_the_loop = await steps_on_the_loop(made, json.dumps({"messages": [message]}).encode())
    assert on_the_loop == {"hollow_answer", "extract_completion", "split_answer"}


async def test_a_prompt_of_many_ids_is_tokenized_in_a_thread():
    made = Bench(ScriptedEngine(), load_renderer("builtin"))
    body = json.dumps({"messages": [{"role": "user", "content": "a word " * 20_000}]}).encode()
    with called_on_the_loop() as called:
        await made.raw_turn(await made.registry.create(), body)
    assert "TextCodec.encode" not in called
    assert len(made.gateway.registry.in_memory(f"{2:032x}").history.active.tokens) > 20_000


async def test_an_answer_of_four_megabytes_is_read_in_a_thread():
    text = "x" * 120_000
    made = Bench(ScriptedEngine(chat_answer(text, token_ids=sampled_ids(text))), ToyRenderer())
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
    assert await steps_on_the_loop(made, body) == STEPS - {"extract_completion", "split_answer"}


async def test_an_answer_of_two_megabytes_that_are_a_payload_is_not_worth_a_thread():
    answer = chat_answer("ok", meta_info={"routed_experts": "A" * 2_000_000})
    made = Bench(ScriptedEngine(answer), ToyRenderer())
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
    assert await steps_on_the_loop(made, body) == STEPS


async def test_an_answer_of_many_choices_is_looked_through_in_a_thread():
    answer = chat_answer("ok")
    many = answer.body.replace(b"}]", b"}" + b",{}" * 500_000 + b"]", 1)
    made = Bench(ScriptedEngine(type(answer)(200, answer.headers, many)), ToyRenderer())
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
    assert "hollow_answer" not in await steps_on_the_loop(made, body)
