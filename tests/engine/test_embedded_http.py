"""The engine on a real port: faults, disconnects, counters, and a connection that stays usable."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest
import trio

from tests.engine.embedded_fixtures import WEATHER, body, engine, output
from trio_sessions.engine.embedded import (
    FAULT_KINDS,
    Desk,
    Fault,
    create_engine_app,
    parse_fault,
    serve_engine,
)
from trio_sessions.errors import AddressInUse
from trio_sessions.hosting import WholeRequests

_PATH = "/v1/chat/completions"


@asynccontextmanager
async def _served(**options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with trio.open_nursery() as nursery:
        url = await nursery.start(partial(serve_engine, engine(), **options))
        async with httpx.AsyncClient(base_url=url, timeout=10) as client:
            yield client
        nursery.cancel_scope.cancel()


async def _ask(client: httpx.AsyncClient, fault: str | None = None, **fields: Any) -> httpx.Response:
    headers = {} if fault is None else {"x-engine-fault": fault}
    return await client.post(_PATH, content=body(**fields), headers=headers)


async def _stats(client: httpx.AsyncClient) -> dict[str, int]:
    stats: dict[str, int] = (await client.get("/engine/stats")).json()
    return stats


async def test_http_and_the_engine_itself_give_the_same_answer() -> None:
    direct = engine().complete(body(seed=2, tools=[WEATHER]))
    async with _served() as client:
        answer = await _ask(client, seed=2, tools=[WEATHER])
    assert answer.headers["content-type"] == "application/json"
    assert output(answer.json()) == output(json.loads(direct.body))


async def test_faults_of_the_answer() -> None:
    async with _served() as client:

        async def ask(fault: str) -> httpx.Response:
            return await _ask(client, fault, seed=1)

        plain = (await _ask(client, seed=1)).json()
        ids, log_probs = output(plain)

        assert (await ask("status:503")).status_code == 503
        assert (await ask("status:503")).json()["code"] == 503
        text = await ask("status-text:429")
        assert (text.status_code, text.headers["content-type"]) == (429, "text/plain; charset=utf-8")
        with pytest.raises(json.JSONDecodeError):
            (await ask("not-json")).json()
        assert (await ask("not-object")).json() == []
        assert (await ask("empty-choices")).json()["choices"] == []
        assert "choices" not in (await ask("no-choices")).json()
        assert (await ask("null-message")).json()["choices"][0]["message"] is None
        assert (await ask("null-content")).json()["choices"][0]["message"]["content"] is None
        assert "meta_info" not in (await ask("no-meta")).json()["choices"][0]

        async def meta(fault: str) -> dict[str, Any]:
            meta: dict[str, Any] = json.loads((await ask(fault)).content)["choices"][0]["meta_info"]
            return meta

        assert "output_token_logprobs" not in await meta("no-logprobs")
        assert "completion_tokens" not in await meta("no-completion-tokens")
        assert (await meta("count-mismatch"))["completion_tokens"] == len(ids) + 1
        assert math.isnan((await meta("nan-logprob"))["output_token_logprobs"][0][0])
        assert b"NaN" in (await ask("nan-logprob")).content
        assert (await meta("inf-logprob"))["output_token_logprobs"][0][0] == -math.inf
        assert (await meta("null-logprob"))["output_token_logprobs"][0][0] is None
        assert (await meta("bad-token-id"))["output_token_logprobs"][0][1] == -1
        assert (await meta("bad-token-id:string"))["output_token_logprobs"][0][1] == str(ids[0])

        for fault in ("abort", "length"):
            answer = (await ask(fault)).json()
            assert output(answer) == (ids[:-1], log_probs[:-1])
            assert answer["choices"][0]["finish_reason"] == fault
            assert answer["choices"][0]["meta_info"]["finish_reason"]["type"] == fault
            assert answer["choices"][0]["meta_info"]["completion_tokens"] == len(ids) - 1


async def test_a_disconnect_announces_more_than_it_sends_and_only_that_connection_suffers() -> None:
    async with _served() as client:
        with pytest.raises(httpx.RemoteProtocolError, match="peer closed connection"):
            await _ask(client, "disconnect")
        assert (await _ask(client)).status_code == 200


async def test_a_client_that_goes_away_is_counted_as_cancelled() -> None:
    async with _served() as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_ask, client, "hang")
            while (await _stats(client))["in_flight"] == 0:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        with trio.fail_after(5):
            while (await _stats(client))["in_flight"]:
                await trio.lowlevel.checkpoint()
        assert await _stats(client) == {"requests": 1, "completed": 0, "cancelled": 1, "in_flight": 0}
        assert (await _ask(client)).status_code == 200
        assert (await _stats(client))["completed"] == 1


async def test_latency_and_slowness_are_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    desk = Desk(engine(), latency=20.0)
    started = trio.current_time()
    await desk.answer("POST", _PATH, body())
    assert trio.current_time() - started >= 20
    started = trio.current_time()
    await desk.answer("POST", _PATH, body(), fault_spec="slow:300")
    assert trio.current_time() - started >= 320
    assert desk.stats.completed == 2


async def test_a_global_fault_strikes_what_generates_and_a_header_wins() -> None:
    async with _served(fault=parse_fault("status:503")) as client:
        assert (await _ask(client)).status_code == 503
        assert (await _ask(client, "status:418")).status_code == 418
        assert (await client.get("/v1/models")).status_code == 200
        assert (await _ask(client, "wrong")).status_code == 400


@pytest.mark.parametrize(
    ("spec", "struck"), [("status:500@2", [False, True] * 2), ("status:500*2", [True] * 2 + [False] * 2)]
)
async def test_a_fault_can_be_limited(spec: str, struck: list[bool]) -> None:
    desk = Desk(engine(), fault=parse_fault(spec))
    replies = [await desk.answer("POST", _PATH, body()) for _ in struck]
    assert [reply.status == 500 for reply in replies] == struck  # type: ignore[union-attr]


async def test_an_answer_before_the_body_leaves_the_connection_usable() -> None:
    async with _served() as client:
        url = client.base_url
        stream = await trio.open_tcp_stream(url.host, url.port or 80)
        async with stream:
            with trio.fail_after(5):
                for _ in range(2):
                    await stream.send_all(b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n")
                    await stream.send_all(b"hello")
                    answer = b""
                    while b"NotFoundError" not in answer:
                        received = await stream.receive_some()
                        assert received, "the connection was closed"
                        answer += received
                    assert answer.startswith(b"HTTP/1.1 404")


async def test_a_disconnect_after_the_answer_does_not_reach_the_application() -> None:
    app = WholeRequests(create_engine_app(engine()))
    events: list[Any] = [{"type": "http.request", "body": b"", "more_body": False}, {"type": "http.disconnect"}]
    sent: list[Any] = []
    answered = trio.Event()
    finished = False

    async def receive() -> Any:
        if len(events) == 1:
            await answered.wait()
        return events.pop(0)

    async def send(event: Any) -> None:
        nonlocal finished
        sent.append(event)
        if event["type"] == "http.response.body" and not event["more_body"]:
            answered.set()
            # Slow to be taken; a disconnect that came through meanwhile would cancel this.
            await trio.testing.wait_all_tasks_blocked()
            finished = True

    scope: Any = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/v1/models",
        "raw_path": b"/v1/models",
        "query_string": b"",
        "root_path": "",
        "headers": [],
        "client": None,
        "server": None,
        "extensions": {},
        "state": {},
    }
    await app(scope, receive, send)
    assert sent[0]["status"] == 200
    assert finished


async def test_large_prompts_are_taken() -> None:
    long = {"role": "user", "content": "a" * 17_000_000}
    async with _served() as client:
        assert (await _ask(client, messages=[long], input_ids=[1, 2, 3])).status_code == 200


async def test_an_address_that_is_taken_is_an_error() -> None:
    async with _served() as client:
        with pytest.RaisesGroup(AddressInUse, allow_unwrapped=True):
            await serve_engine(engine(), port=client.base_url.port or 0)


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ("hang", Fault("hang")),
        (" status:503 ", Fault("status", "503")),
        ("slow:0.5@3", Fault("slow", "0.5", every=3)),
        ("disconnect*1", Fault("disconnect", first=1)),
    ],
)
def test_specs(spec: str, fault: Fault) -> None:
    assert parse_fault(spec) == fault


@pytest.mark.parametrize(
    "spec",
    ["", "boom", "status", "status:abc", "status:99", "hang:1", "slow:-1", "slow:nan", "slow", "hang@0", "hang@x"],
)
def test_a_wrong_spec_is_refused_with_the_kinds(spec: str) -> None:
    with pytest.raises(ValueError, match="kinds are") as caught:
        parse_fault(spec)
    assert all(kind in str(caught.value) for kind in FAULT_KINDS)
