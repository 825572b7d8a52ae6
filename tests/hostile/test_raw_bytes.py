"""Whatever bytes come over a connection: they are answered or it ends, and nobody else notices."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given

from tests.hostile.budget import effort
from tests.hostile.stand import Stand, standing
from tests.web.support import CHAT
from trio_sessions.testing.strategies import raw_requests

ID = "{id}"
PATHS = [
    "/health",
    "/metrics",
    "/openapi.json",
    "/sessions",
    f"/sessions/{ID}",
    f"/sessions/{ID}/samples",
    f"/sessions/{ID}/{CHAT}",
    f"/sessions/{ID}/{CHAT}?a=b",
    f"/sessions/{ID}/agents/a/{CHAT}",
    f"/sessions/{ID}/v1/messages",
    f"/sessions/{ID}/v1/messages/count_tokens",
    f"/sessions/{ID}/v1/responses",
    f"/sessions/{ID}/v1/models",
    f"/sessions/{ID}/v1/models/m",
    f"/sessions/{ID}/tokenize",
    f"/sessions/{ID}/agents/a/v1/completions",
    f"/sessions/{ID}/flush_cache",
]
TURN = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
BODIES = [json.dumps(body).encode() for body in (TURN, {**TURN, "stream": True}, {"input": "hi"}, [], 1)]


@pytest.fixture(scope="module", params=["linear", "tree"])
def stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    with standing(mode=request.param) as made:
        yield made


@effort(60)
@given(raw=raw_requests(PATHS, BODIES))
def test_any_bytes(stand: Stand, raw: bytes) -> None:
    stand.attack(raw.replace(ID.encode(), stand.session_id.encode()))


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize(
    "target", ["http://[", "http://[/health", "http://]/health", "//[/health", "http://[::1", "*", "x", "http:", "x:1"]
)
def test_a_target_that_is_no_url_is_not_found(stand: Stand, method: str, target: str) -> None:
    reply = stand.attack(f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
    assert reply.statuses[0] in (400, 404)
