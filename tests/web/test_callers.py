"""Who calls: headers and paths keep agents apart, and the trainer is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.web.support import CHAT, Serve, assistant, user
from trio_sessions.core.caller import NOBODY, Caller
from trio_sessions.core.samples import decode_samples
from trio_sessions.web.callers import CALLER_HEADERS, caller_of

AGENTS = {
    "claude code": ({"x-claude-code-session-id": "s"}, Caller(thread="s")),
    "claude code, sub-agent": (
        {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"},
        Caller(agent="a", thread="s"),
    ),
    "codex": ({"session-id": "x", "thread-id": "t"}, Caller(thread="t")),
    "codex, sub-agent": (
        {"thread-id": "t2", "x-codex-parent-thread-id": "t", "x-openai-subagent": "review"},
        Caller(agent="review", thread="t2", parent="t"),
    ),
    "pi, by way of responses": ({"session_id": "p", "x-client-request-id": "p"}, Caller(thread="p")),
    "opencode": ({"x-session-id": "o"}, Caller(thread="o")),
    "opencode, sub-agent": ({"x-session-id": "o2", "x-parent-session-id": "o"}, Caller(thread="o2", parent="o")),
}


@pytest.mark.parametrize(("headers", "caller"), AGENTS.values(), ids=AGENTS)
def test_what_agents_say_of_themselves(headers: dict[str, str], caller: Caller) -> None:
    assert caller_of(list(headers.items())) == caller


def test_the_path_goes_before_the_headers_and_the_first_header_before_the_next() -> None:
    said = [("x-claude-code-agent-id", "a"), ("x-claude-code-agent-id", "b"), ("thread-id", "")]
    assert caller_of(said) == Caller(agent="a")
    assert caller_of(said, agent="named") == Caller(agent="named")


@given(st.lists(st.tuples(st.sampled_from([*CALLER_HEADERS, "accept", "x"]), st.text(max_size=400))))
def test_any_headers_make_a_caller_of_bounded_size(headers: list[tuple[str, str]]) -> None:
    caller = caller_of(headers)
    assert all(0 < len(value) <= 256 for value in caller.to_json().values())
    assert (caller == NOBODY) is not any(name in CALLER_HEADERS and value for name, value in headers)


async def test_agents_whose_prompts_and_answers_are_the_same_stay_apart(serve: Serve) -> None:
    """The engine answers every request with the same text, so that nothing but the caller tells them apart."""
    session = await (await serve(mode="tree")).session()
    agents = [("agents/one/", {}), ("", {"x-claude-code-agent-id": "two"}), ("", {"thread-id": "t"}), ("", {})]
    history: list[Any] = [user("do it")]
    for _ in range(3):
        for path, headers in agents:
            url = f"{session.path}/{path}{CHAT}"
            response = await session.served.client.post(url, json={"messages": history}, headers=headers)
            assert response.status_code == 200
        history = [*history, assistant("ok"), user("more")]
    tree = (await session.metadata())["tree"]
    assert [node["parent"] for node in tree["nodes"]] == [*[None] * 4, 0, 1, 2, 3, 4, 5, 6, 7]
    callers = [{"agent": "one"}, {"agent": "two"}, {"thread": "t"}, None] * 3
    assert [node.get("caller") for node in tree["nodes"]] == callers

    payload = await session.served.client.post(f"{session.path}/samples", json={})
    samples = decode_samples(payload.content).samples
    assert sorted(sample.metadata["leaf"]["node_id"] for sample in samples) == [8, 9, 10, 11]
    assert [sample.metadata.get("caller") for sample in samples] == [None, *reversed(callers[:3])]


async def test_an_agent_may_go_on_from_what_another_said(serve: Serve) -> None:
    """A sub-agent that is given its parent's conversation shares the ids of it."""
    session = await (await serve(mode="tree")).session()
    await session.chat(user("hi"), headers={"thread-id": "parent"})
    await session.chat(user("hi"), assistant("ok"), user("sub-task"), headers={"thread-id": "child"})
    assert [node["parent"] for node in (await session.metadata())["tree"]["nodes"]] == [None, 0]


async def test_side_requests_are_labelled_and_by_agent_leaves_them_out(serve: Serve) -> None:
    session = await (await serve(mode="tree", sample_picker="by_agent")).session()
    client = session.served.client
    tools = [{"type": "function", "function": {"name": "f"}}]
    title = {"role": "system", "content": "You are a title generator. You output ONLY a thread title."}
    await session.chat(title, user("fix the bug"))
    for name in ("b", "a"):
        body = {"messages": [user(f"task of {name}")], "tools": tools}
        await client.post(f"{session.path}/agents/{name}/{CHAT}", json=body)
    summary = [user("task of b"), assistant("ok"), user("Summarize this conversation for the next agent.")]
    await client.post(f"{session.path}/agents/b/{CHAT}", json={"messages": summary})
    nodes = (await session.metadata())["tree"]["nodes"]
    assert [node["caller"] for node in nodes] == [
        {"purpose": "title"},
        {"agent": "b"},
        {"agent": "a"},
        {"agent": "b", "purpose": "summary"},
    ]
    payload = await client.post(f"{session.path}/samples", json={})
    assert [sample.metadata["caller"] for sample in decode_samples(payload.content).samples] == [{"agent": "a"}]


@pytest.mark.parametrize("mode", ["linear", "tree"])
async def test_who_says_nothing_leaves_no_trace(serve: Serve, mode: str) -> None:
    session = await (await serve(mode=mode)).session()
    await session.turn(user("hi"))
    assert b"caller" not in await session.state()
    payload = await session.served.client.post(f"{session.path}/samples", json={})
    assert b"caller" not in payload.content


async def test_the_sample_of_a_linear_session_has_its_caller(serve: Serve) -> None:
    session = await (await serve()).session()
    await session.chat(user("hi"), headers={"thread-id": "t"})
    payload = await session.served.client.post(f"{session.path}/samples", json={})
    [sample] = decode_samples(payload.content).samples
    assert sample.metadata["caller"] == {"thread": "t"}


async def test_the_engine_is_asked_the_same_below_an_agents_path(serve: Serve) -> None:
    session = await (await serve()).session()
    response = await session.served.client.get(f"{session.path}/agents/a%20b/v1/models")
    assert response.status_code == 200
    assert session.served.engine.calls[-1].path == "v1/models"
    response = await session.served.client.post(f"{session.path}/agents/a%20b/{CHAT}", json={"messages": [user("x")]})
    assert response.status_code == 200
    assert session.served.engine.calls[-1].path == CHAT


@pytest.mark.parametrize("path", ["agents", "agents/", "agents//v1/chat/completions", "agents/a", "agents/a/"])
async def test_half_a_path_is_not_found(serve: Serve, path: str) -> None:
    session = await (await serve()).session()
    response = await session.served.client.post(f"{session.path}/{path}", json={"messages": [user("x")]})
    assert response.status_code == 404
    assert session.served.engine.calls == []
