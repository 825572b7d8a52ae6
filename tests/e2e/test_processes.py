"""Gateway and engine as processes of their own, driven by the real OpenAI client."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from openai import APIStatusError, OpenAI

from tests.processes import command
from tests.tokenizers import qwen3_tokenizer

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]


@dataclass(frozen=True)
class Stack:
    """A gateway in front of an engine."""

    gateway: str
    engine: str

    def session(self) -> Session:
        """A new session."""
        return Session(self.gateway, httpx.post(f"{self.gateway}/sessions").json()["session_id"])


@dataclass(frozen=True)
class Session:
    """A session of a gateway."""

    gateway: str
    id: str

    @property
    def url(self) -> str:
        return f"{self.gateway}/sessions/{self.id}"

    def client(self, **options: Any) -> OpenAI:
        """The real client, which retries nothing unless told to."""
        return OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, **options)

    def read(self) -> dict[str, Any]:
        """Records and metadata."""
        answer = httpx.get(self.url)
        answer.raise_for_status()
        body: dict[str, Any] = answer.json()
        return body

    def assert_exact(self, *, turns: int) -> dict[str, Any]:
        """Every prompt starts with all that was sampled before it, and the metadata says the same."""
        state = self.read()
        assert len(state["records"]) == turns
        stored: list[int] = []
        for record in state["records"]:
            prompt = record["request"]["input_ids"]
            assert prompt[: len(stored)] == stored
            entries = record["response"]["choices"][0]["meta_info"]["output_token_logprobs"]
            assert all(log_prob <= 0 for log_prob, *_ in entries)
            stored = prompt + [entry[1] for entry in entries]
        assert state["metadata"]["accumulated_token_ids"] == stored
        assert state["metadata"]["max_trim_tokens"] == 0
        wrong = [m for m in state["metadata"]["tito_session_mismatch"] if m["type"] != "assistant_text"]
        assert wrong == []
        return state


@pytest.fixture(scope="module", params=["builtin", "qwen3"])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    tokenizer = "builtin" if request.param == "builtin" else str(qwen3_tokenizer())
    with (
        command("engine", "--port", "0", "--tokenizer", tokenizer) as engine,
        command("serve", "--port", "0", "--engine", engine.url, "--tokenizer", tokenizer) as gateway,
    ):
        yield Stack(gateway.url, engine.url)
        assert gateway.stop() == 0
        assert engine.stop() == 0


def engine_stats(engine: str) -> dict[str, int]:
    """The embedded engine's counters."""
    stats: dict[str, int] = httpx.get(f"{engine}/engine/stats").json()
    return stats


def until(holds: Callable[[], bool], seconds: float = 10) -> None:
    """Ask again and again until it holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"


def run_agent(client: OpenAI, *, stream: bool) -> list[Any]:
    """Two tool calls and two texts; the conversation."""
    messages: list[Any] = [
        {"role": "system", "content": "You help with the weather."},
        {"role": "user", "content": "How is the weather in Zürich? 天気"},
    ]
    for question in ("And in Łódź?", None):
        for _ in range(2):
            message = complete(client, messages, stream=stream)
            messages.append(message)
            for call in message.get("tool_calls") or []:
                assert json.loads(call["function"]["arguments"])["city"]
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "12 °C, light rain"})
        assert messages[-1]["role"] == "assistant"
        if question:
            messages.append({"role": "user", "content": question})
    return messages


def complete(client: OpenAI, messages: list[Any], *, stream: bool) -> dict[str, Any]:
    """The assistant's message as a client would replay it."""
    if not stream:
        completion = client.chat.completions.create(model="default", messages=messages, tools=TOOLS)
        return completion.choices[0].message.model_dump(exclude_none=True)
    chunks = list(client.chat.completions.create(model="default", messages=messages, tools=TOOLS, stream=True))
    assert len(chunks) == 1
    delta = chunks[0].choices[0].delta.model_dump(exclude_none=True)
    assert [call["index"] for call in delta.get("tool_calls", [])] == list(range(len(delta.get("tool_calls", []))))
    return delta


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_using_agent_stays_token_exact(stack: Stack, stream: bool) -> None:
    session = stack.session()
    messages = run_agent(session.client(), stream=stream)
    assert any(message.get("tool_calls") for message in messages)
    state = session.assert_exact(turns=4)
    # The engine samples spellings that no tokenizer would write, so text alone could not have kept the ids.
    assert state["records"][-1]["request"]["messages"] == messages[:-1]


def test_the_sampled_ids_are_not_what_retokenizing_gives(stack: Stack) -> None:
    session = stack.session()
    client = session.client()
    client.chat.completions.create(model="default", messages=[{"role": "user", "content": "Tell me more."}], seed=3)
    record = session.read()["records"][0]
    choice = record["response"]["choices"][0]
    sampled = [entry[1] for entry in choice["meta_info"]["output_token_logprobs"]]
    text = httpx.post(f"{session.url}/detokenize", json={"tokens": sampled}).json()["text"]
    again = httpx.post(f"{session.url}/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
    assert again != sampled


def test_a_retry_replaces_the_last_turn_and_a_deeper_one_is_refused(stack: Stack) -> None:
    session = stack.session()
    client = session.client()
    messages = run_agent(client, stream=False)
    session.assert_exact(turns=4)
    client.chat.completions.create(model="default", messages=messages[:-1], tools=TOOLS)
    state = session.assert_exact(turns=4)
    with pytest.raises(APIStatusError) as refused:
        client.chat.completions.create(model="default", messages=messages[:2], tools=TOOLS)
    assert refused.value.status_code == 400
    assert (
        "rollback failed: discard_count=4 exceeds max_assistant_rollback_steps=1"
        in refused.value.response.json()["error"]
    )
    assert session.read() == state


def test_a_vanished_client_cancels_its_engine_request(stack: Stack) -> None:
    session = stack.session()
    cancelled = engine_stats(stack.engine)["cancelled"]
    body = {"messages": [{"role": "user", "content": "Hello"}]}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{session.url}/v1/chat/completions",
            json=body,
            headers={"x-engine-fault": "hang"},
            timeout=httpx.Timeout(10, read=0.5),
        )
    until(lambda: engine_stats(stack.engine)["cancelled"] > cancelled)
    assert session.read()["records"] == []
    session.client().chat.completions.create(model="default", messages=[{"role": "user", "content": "Hello"}])
    session.assert_exact(turns=1)


FAULTS = {
    "status:503": 503,
    "status:429": 429,
    "status-text:500": 500,
    "not-json": 502,
    "not-object": 502,
    "empty-choices": 502,
    "no-choices": 502,
    "no-meta": 502,
    "no-logprobs": 502,
    "no-completion-tokens": 502,
    "count-mismatch": 502,
    "null-content": 502,
    "null-message": 502,
    "nan-logprob": 502,
    "inf-logprob": 502,
    "null-logprob": 502,
    "bad-token-id": 502,
    "disconnect": 502,
}


@pytest.mark.parametrize(("fault", "status"), FAULTS.items())
def test_an_engine_fault_changes_nothing_and_the_next_turn_is_fine(stack: Stack, fault: str, status: int) -> None:
    session = stack.session()
    client = session.client()
    first = client.chat.completions.create(model="default", messages=[{"role": "user", "content": "Hello"}])
    before = session.read()
    messages = [*before["records"][0]["request"]["messages"], first.choices[0].message.model_dump(exclude_none=True)]
    messages.append({"role": "user", "content": "More, please."})
    answer = httpx.post(
        f"{session.url}/v1/chat/completions", json={"messages": messages}, headers={"x-engine-fault": fault}
    )
    assert answer.status_code == status
    if status == 502:
        assert answer.json()["error"]
    assert session.read() == before
    client.chat.completions.create(model="default", messages=messages)
    session.assert_exact(turns=2)


def test_a_turn_cut_by_length_is_closed_before_it_is_extended(stack: Stack) -> None:
    session = stack.session()
    client = session.client()
    messages: list[Any] = [{"role": "user", "content": "Hello"}]
    cut = client.chat.completions.create(model="default", messages=messages, max_tokens=3)
    assert cut.choices[0].finish_reason == "length"
    messages += [cut.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "Go on."}]
    client.chat.completions.create(model="default", messages=messages)
    session.assert_exact(turns=2)


def test_sessions_run_in_parallel_and_stay_apart(stack: Stack) -> None:
    sessions = [stack.session() for _ in range(8)]
    threads = [
        threading.Thread(target=run_agent, args=(session.client(),), kwargs={"stream": index % 2 == 0})
        for index, session in enumerate(sessions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for session in sessions:
        session.assert_exact(turns=4)


def test_sigterm_lets_a_running_turn_finish() -> None:
    with (
        command("engine", "--port", "0", "--latency", "1.0") as engine,
        command("serve", "--port", "0", "--engine", engine.url) as gateway,
    ):
        session = Stack(gateway.url, engine.url).session()
        answers: list[httpx.Response] = []
        body = {"messages": [{"role": "user", "content": "Hello"}]}
        turn = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{session.url}/v1/chat/completions", json=body, timeout=30))
        )
        turn.start()
        until(lambda: engine_stats(engine.url)["in_flight"] > 0)
        assert gateway.stop() == 0
        turn.join()
        assert answers[0].status_code == 200


def test_sigterm_cancels_a_turn_that_does_not_finish_in_time() -> None:
    with (
        command("engine", "--port", "0") as engine,
        command("serve", "--port", "0", "--engine", engine.url, "--drain-timeout", "0.2") as gateway,
    ):
        session = Stack(gateway.url, engine.url).session()
        answers: list[httpx.Response] = []
        turn = threading.Thread(
            target=lambda: answers.append(
                httpx.post(
                    f"{session.url}/v1/chat/completions",
                    json={"messages": [{"role": "user", "content": "Hello"}]},
                    headers={"x-engine-fault": "hang"},
                    timeout=30,
                )
            )
        )
        turn.start()
        until(lambda: engine_stats(engine.url)["in_flight"] > 0)
        assert gateway.stop(signal.SIGINT) == 0
        turn.join()
        assert answers[0].status_code == 503
        assert "shutting down" in answers[0].json()["error"]
