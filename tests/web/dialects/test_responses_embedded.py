"""The Responses API of a real process, whose engine samples under a real chat template."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.processes import command

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
    "strict": False,
}
TURNS = 4


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    with command("serve", "--port", "0") as running:
        yield running.url


@pytest.mark.parametrize("way", ["replay", "replay without ids", "name the response before"])
def test_an_agent_that_calls_tools(gateway: str, way: str) -> None:
    with httpx.Client(base_url=gateway, timeout=20) as http:
        path = f"/sessions/{http.post('/sessions').json()['session_id']}"
        with OpenAI(base_url=f"{gateway}{path}/v1", api_key="unused", max_retries=0) as client:
            finals = _take_turns(client, way)
        state = http.get(path).json()
        records, metadata = state["records"], state["metadata"]
    assert len(records) == TURNS
    assert any(item.type == "function_call" for final in finals for item in final.output)
    ids: list[int] = []
    for record in records:
        choice = record["response"]["choices"][0]
        prompt = record["request"]["input_ids"]
        assert prompt[: len(ids)] == ids
        ids = prompt + [entry[1] for entry in choice["meta_info"]["output_token_logprobs"]]
    assert metadata["accumulated_token_ids"] == ids
    assert metadata["tito_session_mismatch"] == []
    assert [final.usage.input_tokens for final in finals] == [len(record["request"]["input_ids"]) for record in records]


def _take_turns(client: OpenAI, way: str) -> list[Any]:
    """The first two turns have to call a tool, the others may."""
    finals: list[Any] = []
    line: list[Any] = []
    given: list[Any] = [{"role": "user", "content": "How is the weather in Zürich?"}]
    for turn in range(TURNS):
        named = way == "name the response before" and finals
        fields: dict[str, Any] = {"previous_response_id": finals[-1].id} if named else {}
        choice: Any = "required" if turn < 2 else "none"
        asked: Any = given if named else [*line, *given]
        events = list(
            client.responses.create(
                model="m",
                input=asked,
                tools=[WEATHER],
                tool_choice=choice,
                max_output_tokens=400,
                stream=True,
                **fields,
            )
        )
        final = events[-1].response
        assert final.status == "completed"
        finals.append(final)
        kept = [item.to_dict() for item in final.output]
        if way == "replay without ids":
            kept = [{key: value for key, value in item.items() if key != "id"} for item in kept]
        line += [*given, *kept]
        given = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
            for item in final.output
            if item.type == "function_call"
        ] or [{"role": "user", "content": "And tomorrow?"}]
    return finals
