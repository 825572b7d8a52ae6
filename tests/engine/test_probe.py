"""A gateway that is started before its engine says so."""

from __future__ import annotations

import socket

import httpx
import pytest
import trio
from structlog.testing import capture_logs

from tests.processes import command
from tests.raw_server import Connection, response, serving
from trio_sessions.engine.probe import probe, warn_unless_answering
from trio_sessions.engine.sglang import SGLangEngine


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("200 OK", None),
        ("404 Not Found", None),
        ("401 No", None),
        ("503 Loading", "status 503"),
        ("500 X", "status 500"),
    ],
)
async def test_any_answer_but_a_server_error_will_do(status: str, reason: str | None) -> None:
    async with serving(response(status=status)) as server, SGLangEngine(f"{server.url}/base", timeout=600) as engine:
        assert await probe(engine) == reason
        assert [(request.method, request.target) for request in server.requests] == [("GET", "/base/health")]


async def test_an_engine_that_is_not_there() -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    with capture_logs() as logs:
        async with SGLangEngine(url, timeout=600) as engine:
            await warn_unless_answering(engine, url)
    [line] = logs
    assert (line["log_level"], line["engine"]) == ("warning", url)
    assert "turns get 502 until it does" in line["event"]
    assert "ConnectError" in line["reason"]


async def test_an_engine_that_says_nothing_is_not_waited_for(autojump_clock: trio.abc.Clock) -> None:
    class Silent:
        async def call(self, _: object) -> None:
            await trio.sleep_forever()

    with capture_logs() as logs:
        await warn_unless_answering(Silent(), "http://silent")  # type: ignore[arg-type]
    assert "no answer within" in logs[0]["reason"]


async def test_an_engine_that_closes_is_none() -> None:
    async def hang_up(connection: Connection) -> None:
        await connection.read()

    async with serving(hang_up) as server, SGLangEngine(server.url, timeout=600) as engine:
        assert "transport error" in str(await probe(engine))


def test_serve_starts_without_its_engine_and_warns() -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    with command("serve", "--port", "0", "--engine", url) as gateway:
        session = httpx.post(f"{gateway.url}/sessions").json()["session_id"]
        turn = httpx.post(
            f"{gateway.url}/sessions/{session}/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "hi"}]},
        )
        assert turn.status_code == 502
        assert gateway.stop() == 0
    log = "".join(gateway.log)
    assert log.count("the engine does not answer yet: turns get 502 until it does") == 1
    assert "Traceback" not in log
