"""All three clients against a server that behaves, and one that does not."""

from __future__ import annotations

import json
from contextlib import ExitStack

import numpy as np
import pytest

from tests.client.drivers import Driver
from tests.client.scripted import CUT, DROP, SILENCE, Reply, Scripted, free_port
from tests.core.samples.grown import Step, line_of
from trio_sessions.client import (
    AssemblyFailed,
    GatewayUnreachable,
    RequestRefused,
    RetryPolicy,
    ServerError,
    SessionNotFound,
    UnusableAnswer,
)
from trio_sessions.core.samples import assemble, encode_samples

HEALTHY = Reply.json({"status": "ok", "session_server_instance_id": "i"})
CREATED = Reply.json({"session_id": "abc"})
DELETED = Reply(204)
GONE = Reply.error(404, "session not found: session_id=abc")
STATE = Reply.json({"session_id": "abc", "records": [], "metadata": {}})
MESSAGE = {"role": "assistant", "content": "hi"}
TURN = Reply.json({"id": "r1", "choices": [{"message": MESSAGE, "finish_reason": "stop"}]})
USER = {"role": "user", "content": "höi"}


def payload() -> bytes:
    forest = line_of(Step(suffix=[1, 2], output=[1000, 1001], experts=True, version="7"))
    sample = assemble(forest.line(), forest.rules())
    return encode_samples([sample], {"accumulated_token_ids": [1, 2, 1000, 1001]}, with_reward=True)


async def chat(client):
    return await client.attach("abc").chat([USER])


async def read(client):
    return await client.attach("abc").read()


async def delete(client):
    return await client.attach("abc").delete()


async def health(client):
    return await client.health()


async def create(client):
    return await client.create_session()


async def samples(client):
    return await client.attach("abc").samples()


def test_a_rollout(driver: Driver, server: Scripted, url: str) -> None:
    server.script = [HEALTHY, CREATED, TURN, STATE, Reply(body=payload()), DELETED]

    async def scenario(client):
        assert (await client.health()).instance_id == "i"
        async with client.session() as session:
            assert (session.id, session.base_url) == ("abc", f"{url}/sessions/abc/v1")
            assert session.base_urls().anthropic == f"{url}/sessions/abc"
            turn = await session.chat([USER], temperature=0.5, tools=[])
            assert (turn.message, turn.response_id) == (MESSAGE, "r1")
            assert (await session.read()).session_id == "abc"
            return await session.samples(max_seq_len=9, metadata={"a": 1}, rewards={"r1": 0.5})

    reply = driver.run(f"{url}/", scenario)
    [sample] = reply.samples
    assert sample.tokens.tolist() == [1, 2, 1000, 1001]
    assert (sample.tokens.dtype, sample.loss_mask.dtype) == (np.int64, np.uint8)
    assert (sample.loss_mask.tolist(), sample.rollout_log_probs.tolist()) == ([1, 1], [-0.5, -1.5])
    assert sample.rollout_routed_experts.shape == (3, 2, 2)
    assert server.lines == [
        "GET /health",
        "POST /sessions",
        "POST /sessions/abc/v1/chat/completions",
        "GET /sessions/abc",
        "POST /sessions/abc/samples",
        "DELETE /sessions/abc",
    ]
    turn, ask = server.received[2], server.received[4]
    assert json.loads(turn.body) == {"messages": [USER], "temperature": 0.5, "tools": []}
    assert "höi".encode() in turn.body
    assert json.loads(ask.body) == {"max_seq_len": 9, "metadata": {"a": 1}, "rewards": {"r1": 0.5}}
    assert {request.headers.get("content-type") for request in (turn, ask)} == {"application/json"}
    assert driver.delays == []


def test_a_session_is_asked_for_at_its_worker(driver: Driver, server: Scripted, url: str) -> None:
    worker = Scripted()
    with worker.running() as worker_url:
        server.script = [Reply.json({"session_id": "abc", "base_url": f"{worker_url}/sessions/abc"})]
        worker.script = [TURN, STATE, Reply(body=payload()), DELETED]

        async def scenario(client):
            async with client.session() as session:
                assert session.base_url == f"{worker_url}/sessions/abc/v1"
                await session.chat([USER])
                await session.read()
                await session.samples()

        driver.run(url, scenario, headers={"authorization": "Bearer x"})
    assert server.lines == ["POST /sessions"]
    assert worker.lines == [
        "POST /sessions/abc/v1/chat/completions",
        "GET /sessions/abc",
        "POST /sessions/abc/samples",
        "DELETE /sessions/abc",
    ]
    assert {request.headers["authorization"] for request in worker.received} == {"Bearer x"}


def test_a_failed_block_deletes_its_session_at_its_worker(driver: Driver, server: Scripted, url: str) -> None:
    worker = Scripted()
    with worker.running() as worker_url:
        server.script = [Reply.json({"session_id": "abc", "base_url": f"{worker_url}/sessions/abc"})]
        worker.script = [DELETED]

        async def scenario(client):
            async with client.session():
                raise KeyError

        with pytest.raises(KeyError):
            driver.run(url, scenario)
    assert (server.lines, worker.lines) == (["POST /sessions"], ["DELETE /sessions/abc"])


def test_a_worker_out_of_reach_is_reached_through_the_gateway(driver: Driver, server: Scripted, url: str) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    server.script = [Reply.json({"session_id": "abc", "base_url": f"{nowhere}/sessions/abc"}), TURN, STATE]

    async def scenario(client):
        session = await client.create_session()
        assert session.base_url == f"{nowhere}/sessions/abc/v1"
        await session.chat([USER])
        assert session.base_url == f"{url}/sessions/abc/v1"
        await session.read()

    driver.run(url, scenario)
    assert server.lines == ["POST /sessions", "POST /sessions/abc/v1/chat/completions", "GET /sessions/abc"]


def test_headers_go_with_every_request(driver: Driver, server: Scripted, url: str) -> None:
    server.script = [HEALTHY, STATE]

    async def scenario(client):
        await client.health()
        await read(client)

    driver.run(url, scenario, headers={"authorization": "Bearer x"})
    assert {request.headers["authorization"] for request in server.received} == {"Bearer x"}


@pytest.mark.parametrize("trouble", [DROP, CUT, Reply(502), Reply(503), Reply(504), Reply(429)], ids=str)
@pytest.mark.parametrize(
    ("ask", "good"), [(health, HEALTHY), (read, STATE), (delete, DELETED), (samples, Reply(body=payload()))]
)
def test_what_changes_nothing_is_asked_again(driver: Driver, server: Scripted, url: str, trouble, ask, good) -> None:
    server.script = [trouble, trouble, good]
    driver.run(url, ask)
    assert len(server.received) == 3
    assert driver.delays == [0.2, 0.4]


@pytest.mark.parametrize("trouble", [DROP, CUT], ids=str)
@pytest.mark.parametrize("ask", [chat, create])
def test_a_turn_or_a_session_that_may_have_arrived_is_not_sent_again(driver, server, url, trouble, ask) -> None:
    server.script = [trouble]
    with pytest.raises(GatewayUnreachable) as raised:
        driver.run(url, ask)
    assert raised.value.may_have_arrived
    assert (len(server.received), driver.delays) == (1, [])


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize("ask", [chat, create])
def test_nor_is_one_that_was_answered(driver, server, url, status, ask) -> None:
    server.script = [Reply.error(status, "no", retry_after="1")]
    with pytest.raises((ServerError, RequestRefused)) as raised:
        driver.run(url, ask)
    assert (raised.value.status, raised.value.text, raised.value.retry_after) == (status, "no", 1.0)
    assert (len(server.received), driver.delays) == (1, [])


def test_a_gateway_that_starts_late_is_waited_for(driver: Driver, server: Scripted) -> None:
    port = free_port()
    with ExitStack() as stack:
        server.script = [CREATED, TURN]

        def start() -> None:
            if len(driver.delays) == 2:
                stack.enter_context(server.running(port))

        driver.asleep = start

        async def scenario(client):
            session = await client.create_session()
            return await session.chat([USER])

        driver.run(f"http://127.0.0.1:{port}", scenario)
    assert server.lines == ["POST /sessions", "POST /sessions/abc/v1/chat/completions"]
    assert driver.delays == [0.2, 0.4]


@pytest.mark.parametrize("ask", [health, create, chat, read, delete, samples])
def test_one_that_never_starts_is_given_up(driver: Driver, ask) -> None:
    with pytest.raises(GatewayUnreachable, match="ConnectError") as raised:
        driver.run(f"http://127.0.0.1:{free_port()}", ask, retry=RetryPolicy(attempts=3, first_delay=1))
    assert not raised.value.may_have_arrived
    assert driver.delays == [1.0, 2.0]


def test_retry_after_is_heard(driver: Driver, server: Scripted, url: str) -> None:
    server.script = [Reply.error(503, "shutting down", retry_after="3"), STATE]
    driver.run(url, read)
    assert driver.delays == [3.0]


def test_a_deletion_whose_answer_was_lost_is_done(driver: Driver, server: Scripted, url: str) -> None:
    server.script = [DROP, GONE]
    driver.run(url, delete)
    assert server.lines == ["DELETE /sessions/abc"] * 2


def test_a_deletion_of_what_is_not_there_is_an_error(driver: Driver, server: Scripted, url: str) -> None:
    server.script = [GONE]
    with pytest.raises(SessionNotFound):
        driver.run(url, delete)


def test_a_session_that_the_block_deleted_is_not_missed(driver: Driver, server: Scripted, url: str) -> None:
    server.script = [CREATED, DELETED, GONE]

    async def scenario(client):
        async with client.session() as session:
            await session.delete()

    driver.run(url, scenario)


def test_a_session_is_deleted_when_the_block_fails(driver: Driver, server: Scripted, url: str) -> None:
    server.script = [CREATED, Reply(500)]

    async def scenario(client):
        async with client.session():
            raise LookupError("the agent's own")

    with pytest.raises(LookupError, match="the agent's own"):
        driver.run(url, scenario)
    assert server.lines[-1] == "DELETE /sessions/abc"


def test_a_session_that_cannot_be_deleted_is_an_error_after_a_good_block(driver, server, url) -> None:
    server.script = [CREATED, Reply.error(500, "broken")]

    async def scenario(client):
        async with client.session():
            pass

    with pytest.raises(ServerError, match="broken"):
        driver.run(url, scenario)


def test_samples_that_cannot_be_assembled(driver: Driver, server: Scripted, url: str) -> None:
    server.script = [Reply(422, b"cursor 1 != len(accumulated_token_ids) 2", {"content-type": "text/plain"})]
    with pytest.raises(AssemblyFailed, match="cursor 1") as raised:
        driver.run(url, samples)
    assert (raised.value.status, raised.value.text) == (422, "cursor 1 != len(accumulated_token_ids) 2")


def test_an_answer_from_something_else(driver: Driver, server: Scripted, url: str) -> None:
    server.script = [Reply(body=b"<html>", headers={"content-type": "text/html"})]
    with pytest.raises(UnusableAnswer, match="GET /health"):
        driver.run(url, health)


def test_a_redirect_is_not_followed(driver: Driver, server: Scripted, url: str) -> None:
    server.script = [Reply(307, b"", {"location": "/elsewhere"})]
    with pytest.raises(Exception, match="307"):
        driver.run(url, chat)
    assert len(server.received) == 1


def test_waiting_for_an_answer_ends(driver: Driver, server: Scripted, url: str) -> None:
    server.script = [SILENCE]
    with pytest.raises(GatewayUnreachable, match="ReadTimeout"):
        driver.run(url, chat, timeout=0.2)
    assert server.vanished.wait(20)
    assert len(server.received) == 1


def test_large_samples_are_read(driver: Driver, server: Scripted, url: str) -> None:
    forest = line_of(Step(suffix=[1] * 200_000, output=[1000]))
    body = encode_samples([assemble(forest.line(), forest.rules())], {})
    assert len(body) > 1_000_000
    server.script = [Reply(body=body)]
    assert len(driver.run(url, samples).samples[0].tokens) == 200_001


def test_a_session_says_what_it_is(driver: Driver, url: str) -> None:
    async def scenario(client):
        return repr(getattr(session := client.attach("abc"), "_inner", session))

    assert driver.run(url, scenario).endswith(f"Session abc of {url}>")
