"""What tests of the Responses dialect share: the official SDK in a session, and the line that a session has to be."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.web.support import LIMIT_SECONDS, Serve, Session
from trio_sessions.core.samples import decode_samples
from trio_sessions.render.base import TemplateKwargs
from trio_sessions.testing.engine import ScriptedEngine, chat_answer
from trio_sessions.testing.toy import ToyRenderer

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

FUNCTION = {"type": "function", "name": "run", "description": "Runs.", "parameters": {"type": "object"}, "strict": True}
NAMESPACE = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents.",
    "tools": [{"type": "function", "name": "run"}, {"type": "custom", "name": "tell"}],
}
CUSTOM = {
    "type": "custom",
    "name": "patch",
    "description": "Patches.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
TOOLS: list[Any] = [FUNCTION, NAMESPACE, CUSTOM]


def call(name: str, arguments: str, *, call_id: str = "c0", index: int = 0) -> dict[str, Any]:
    """A tool call as an engine parses it."""
    return {
        "id": call_id,
        "index": index,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def message(text: str = "", *calls: dict[str, Any], reasoning: str | None = None) -> dict[str, Any]:
    """An assistant's message as an engine parses it."""
    fields = {} if reasoning is None else {"reasoning_content": reasoning}
    return {"role": "assistant", "content": text, "tool_calls": list(calls) or None, **fields}


def answer(text: str = "", *calls: dict[str, Any], reasoning: str | None = None, **facts: Any) -> Any:
    """An engine's answer; what was sampled spells ``text``."""
    return chat_answer(text, message=message(text, *calls, reasoning=reasoning), **facts)


class OnePlace(ToyRenderer):
    """A template with a place for a system message at the head alone."""

    def appendable_roles(self, kwargs: TemplateKwargs) -> frozenset[str]:
        return frozenset({"user", "tool"})


@dataclass(frozen=True)
class Agent:
    """The SDK's client, whose base URL is a session."""

    session: Session
    client: AsyncOpenAI

    async def create(self, given: Any, **fields: Any) -> Response:
        """A whole response, checked against the SDK's types."""
        response = await self.client.responses.create(model="m", input=given, **fields)
        assert isinstance(response, Response)
        Response.model_validate_json(response.to_json(), strict=True)
        return response

    async def events(self, given: Any, **fields: Any) -> list[Any]:
        """All events of a stream, checked against the SDK's types."""
        stream = await self.client.responses.create(model="m", input=given, stream=True, **fields)
        events = [event async for event in stream]
        for index, event in enumerate(events):
            assert EVENT.validate_json(event.to_json()).type == event.type
            assert event.sequence_number == index
        return events

    def asked(self, index: int = -1) -> dict[str, Any]:
        """What the engine was asked, without the prompt."""
        body = self.session.served.engine.body(index)
        body.pop("input_ids")
        return body


@asynccontextmanager
async def agent_in(session: Session) -> AsyncIterator[Agent]:
    """The SDK in a session; it tries nothing again."""
    url = f"http://127.0.0.1:{session.served.port}{session.path}/v1"
    async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=LIMIT_SECONDS) as client:
        yield Agent(session, client)


@asynccontextmanager
async def agent(serve: Serve, *script: Any, **settings: Any) -> AsyncIterator[Agent]:
    """The SDK in a session of a gateway whose engine answers ``script``; the rest is as for ``serve``."""
    async with agent_in(await (await serve(ScriptedEngine(*script), **settings)).session()) as talking:
        yield talking


def without_ids(items: Sequence[Any]) -> list[dict[str, Any]]:
    """Items as clients send them that keep no ids."""
    return [{key: value for key, value in plain(item).items() if key != "id"} for item in items]


def plain(item: Any) -> dict[str, Any]:
    """An item as JSON has it."""
    fields: dict[str, Any] = item if isinstance(item, dict) else item.to_dict()
    return fields


def comparable(response: Any) -> dict[str, Any]:
    """A response without what is another one in every answer."""
    text: str = response.to_json()
    fields: dict[str, Any] = json.loads(text.replace(response.id.removeprefix("resp_"), "-"))
    del fields["created_at"]
    return fields


async def assert_one_line(session: Session, turns: int) -> None:
    """Every prompt begins with the prompt before it and what was sampled for that, and all of it is one sample."""
    records = await session.records()
    assert len(records) == turns
    ids: list[int] = []
    sampled: list[int] = []
    for record in records:
        prompt = record["request"]["input_ids"]
        assert prompt[: len(ids)] == ids
        completion = _sampled(record)
        ids = prompt + completion
        sampled += completion
    assert (await session.metadata())["accumulated_token_ids"] == ids
    reply = await session.served.client.post(f"{session.path}/samples")
    assert reply.status_code == 200, reply.text
    [sample] = decode_samples(reply.content).samples
    assert list(sample.tokens) == ids
    response = sample.tokens[-sample.response_length :]
    trained = [int(token) for token, mask in zip(response, sample.loss_mask, strict=True) if mask]
    assert trained == sampled


def _sampled(record: Mapping[str, Any]) -> list[int]:
    return [entry[1] for entry in record["response"]["choices"][0]["meta_info"]["output_token_logprobs"]]
