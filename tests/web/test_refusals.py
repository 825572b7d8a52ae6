"""Who is refused before a turn begins reads it in the words of the API that it speaks."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.web.shapes import SHAPES, text_in
from tests.web.support import RawConnection, Serve, Session, serving_app
from trio_sessions.hosting import WholeRequests
from trio_sessions.web.refusals import refusal

MIB = 0.5


@pytest.mark.parametrize(("path", "shape"), SHAPES.items())
class TestShapes:
    async def test_a_body_that_is_too_large(self, serve: Serve, path: str, shape: str) -> None:
        session = await (await serve(max_body_mb=MIB)).session()
        for base in (session.path, f"{session.path}/agents/a"):
            response = await session.served.client.post(f"{base}/{path}", content=b" " * int(MIB * 2**20 + 1))
            assert response.status_code == 413
            assert text_in(response.json(), shape) == "the request body is larger than 0.5 MiB (--max-body-mb)"

    async def test_a_body_that_does_not_come(self, path: str, shape: str) -> None:
        async def never(*_: Any) -> None:
            raise AssertionError

        app = WholeRequests(never, body_timeout=0.01, refuse=refusal)
        head = f"POST /sessions/x/{path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n".encode()
        async with (
            serving_app(app, keep_alive=5) as port,
            RawConnection(await trio.open_tcp_stream("127.0.0.1", port)) as connection,
        ):
            await connection.send(head)
            response = await connection.response()
        assert (response.status, response.all("connection")) == (408, [b"close"])
        assert text_in(json.loads(response.body), shape) == (
            "the request body did not arrive within 0.01 s (--body-timeout)"
        )

    async def test_a_wrong_method(self, session: Session, path: str, shape: str) -> None:
        response = await session.served.client.put(f"{session.path}/{path}", content=b"{}")
        assert response.status_code == 404
        assert "PUT" in text_in(response.json(), shape)

    async def test_a_session_that_is_not_there(self, session: Session, path: str, shape: str) -> None:
        response = await session.served.client.post(f"/sessions/nope/{path}", content=b"{}")
        assert response.status_code == 404
        assert text_in(response.json(), shape) == "session not found: session_id=nope"

    async def test_no_session_at_all(self, session: Session, path: str, shape: str) -> None:
        response = await session.served.client.post(f"/{path}", content=b"{}")
        assert response.status_code == 404
        assert text_in(response.json(), shape).startswith(f"not found: POST /{path}")
