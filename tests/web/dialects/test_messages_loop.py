"""An agent of the official SDK that calls tools, over a real tokenizer, template and sampler."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import trio

from tests.engine.embedded_fixtures import engine
from tests.render.families import renderer_of
from tests.web.dialects.anthropic_sdk import TOOLS, sdk
from tests.web.support import LIMIT_SECONDS, Serve, Served, Session
from trio_sessions.core.samples import decode_samples
from trio_sessions.engine.embedded import serve_engine
from trio_sessions.engine.sglang import SGLangEngine

Start = Callable[..., Awaitable[Served]]


@pytest.fixture(params=["builtin", "qwen3"])
async def start(request: pytest.FixtureRequest, serve: Serve) -> AsyncIterator[Start]:
    """Starts a gateway over an embedded engine that has a port of its own."""
    name = request.param
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve_engine, engine(name))
        async with SGLangEngine(url, timeout=LIMIT_SECONDS) as client:

            async def started(**settings: Any) -> Served:
                return await serve(client, renderer=renderer_of(name), **settings)

            yield started
        nursery.cancel_scope.cancel()


class Agent:
    """Replays what the SDK gave it.

    Attributes:
        messages: the conversation.
        counted: how many tokens each prompt was said to have beforehand.
        seen: what was answered.
    """

    def __init__(self, client: Any, *, stream: bool, **fields: Any) -> None:
        self.messages: list[Any] = []
        self.counted: list[int] = []
        self.seen: list[Any] = []
        self._client = client
        self._stream = stream
        self._fields = {"model": "m", "system": [{"type": "text", "text": "You help."}], "tools": TOOLS, **fields}

    async def turn(self, content: Any, **fields: Any) -> Any:
        """One turn; the message, which is part of the conversation from then on."""
        self.messages.append({"role": "user", "content": content})
        request = {**self._fields, "messages": self.messages, **fields}
        self.counted.append((await self._client.messages.count_tokens(**request)).input_tokens)
        request["max_tokens"] = 400
        if self._stream:
            async with self._client.messages.stream(**request) as stream:
                message = await stream.get_final_message()
        else:
            message = await self._client.messages.create(**request)
        self.messages.append({"role": "assistant", "content": message.content})
        self.seen.append(message)
        return message


def results(message: Any) -> list[dict[str, Any]]:
    """A result for every call, a list of blocks for the first of them."""
    calls = [block for block in message.content if block.type == "tool_use"]
    assert calls
    assert all(block.input["city"] for block in calls)
    contents = [[{"type": "text", "text": "12 °C"}, {"type": "text", "text": "rain 🌧"}], *["cold"] * len(calls)]
    return [
        {"type": "tool_result", "tool_use_id": call.id, "content": content}
        for call, content in zip(calls, contents, strict=False)
    ]


async def converse(agent: Agent) -> None:
    """Two questions with a call and its results each, and one to sum up."""
    for question in ("How is the weather in Zürich? 天気", "And in Łódź?"):
        called = await agent.turn(
            [{"type": "text", "text": "<reminder>"}, {"type": "text", "text": question}],
            tool_choice={"type": "any"},
        )
        assert called.stop_reason == "tool_use"
        answered = await agent.turn(results(called), tool_choice={"type": "none"})
        assert answered.stop_reason == "end_turn"
    await agent.turn("Sum it up.", tool_choice={"type": "none"})


async def assert_one_exact_line(session: Session, agent: Agent) -> None:
    """No turn was taken back; every prompt begins with all that was sampled before it; the sample has these ids."""
    records = await session.records()
    assert len(records) == len(agent.seen)
    stored: list[int] = []
    for record, counted, message in zip(records, agent.counted, agent.seen, strict=True):
        prompt = record["request"]["input_ids"]
        assert prompt[: len(stored)] == stored
        assert counted == len(prompt)
        sampled = [entry[1] for entry in record["response"]["choices"][0]["meta_info"]["output_token_logprobs"]]
        assert message.usage.output_tokens == len(sampled)
        assert message.usage.input_tokens + message.usage.cache_read_input_tokens == len(prompt)
        stored = prompt + sampled
    metadata = await session.metadata()
    assert metadata["accumulated_token_ids"] == stored
    assert [found for found in metadata["tito_session_mismatch"] if found["type"] != "assistant_text"] == []
    payload = await session.served.client.post(f"{session.path}/samples")
    [sample] = decode_samples(payload.content).samples
    assert list(sample.tokens) == stored
    assert session.served.gateway.metrics.registry.get_sample_value("trio_sessions_rollbacks_total") == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("thinking", [None, {"type": "enabled", "budget_tokens": 1024}])
async def test_it_stays_one_line(start: Start, stream: bool, thinking: Any) -> None:
    session = await (await start()).session()
    async with sdk(session) as client:
        agent = Agent(client, stream=stream, **({} if thinking is None else {"thinking": thinking}))
        await converse(agent)
    await assert_one_exact_line(session, agent)


async def test_so_it_does_in_streams_that_begin_before_the_answer(start: Start) -> None:
    session = await (await start(stream_grace=0, stream_keep_alive=0.01)).session()
    async with sdk(session) as client:
        agent = Agent(client, stream=True, thinking={"type": "adaptive"})
        await converse(agent)
    await assert_one_exact_line(session, agent)


async def test_a_text_that_is_added_to_the_last_results_extends_the_turn(start: Start) -> None:
    """A retry that asks for a summary appends to the message that was answered already."""
    served = await start(mode="tree")
    session = await served.session()
    async with sdk(session) as client:
        agent = Agent(client, stream=False)
        called = await agent.turn("How is the weather in Zürich?", tool_choice={"type": "any"})
        answer_of_tools = results(called)
        await agent.turn(answer_of_tools, tool_choice={"type": "none"})
        del agent.messages[-2:]
        await agent.turn([*answer_of_tools, {"type": "text", "text": "Sum it up."}], tool_choice={"type": "none"})
    nodes = (await session.metadata())["tree"]["nodes"]
    assert [node["parent"] for node in nodes] == [None, 0, 0]


async def test_stop_sequences_and_the_limit(start: Start) -> None:
    served = await start()
    async with sdk(await served.session()) as client:
        request: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        cut = await client.messages.create(**request, max_tokens=1)
        assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 1)
    async with sdk(await served.session()) as client:
        stopped = await client.messages.create(**request, max_tokens=400, stop_sequences=["never said", " ", "e", "."])
    assert stopped.stop_reason == "stop_sequence"
    assert stopped.stop_sequence in (" ", "e", ".")
