"""What callers may do to the gateway, and it to them."""

from __future__ import annotations

import pytest

from tests.web.support import CHAT, Serve, user
from trio_sessions.testing.engine import ScriptedEngine


async def test_samples_are_reached_below_an_agent_too(serve: Serve) -> None:
    """docs/wire.md: "All of these below /sessions/{id}/ are also reached below /sessions/{id}/agents/{name}/"."""
    session = await (await serve()).session()
    await session.turn(user("hi"))
    response = await session.served.client.post(f"{session.path}/agents/one/samples", json={})
    assert response.status_code == 200, response.text


async def test_a_name_in_the_path_is_cut_like_one_in_a_header(serve: Serve) -> None:
    session = await (await serve(mode="tree")).session()
    path = f"{session.path}/agents/{'a' * 30_000}/{CHAT}"
    assert (await session.served.client.post(path, json={"messages": [user("hi")]})).status_code == 200
    [node] = (await session.metadata())["tree"]["nodes"]
    assert len(node["caller"]["agent"]) <= 256


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_a_limit_that_is_text_does_not_get_past_the_budget(serve: Serve, name: str) -> None:
    """SGLang reads "5000" as 5000."""
    session = await (await serve(ScriptedEngine(), max_seq_len=100)).session()
    response = await session.chat(user("hi"), **{name: "5000"})
    assert response.status_code == 400 or session.served.engine.body()[name] != "5000"
