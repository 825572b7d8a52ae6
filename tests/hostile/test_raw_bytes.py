"""Whatever bytes come over a connection: they are answered or it ends, and nobody else notices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile.budget import effort
from tests.hostile.stand import Stand, standing, standing_before_workers
from tests.web.support import CHAT
from trio_sessions.testing.strategies import RawRequest, raw_requests, twisted_targets

ID = "{id}"
BASE = f"/sessions/{ID}"
TURN = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
TURNS = [json.dumps({**TURN, **more}).encode() for more in ({}, {"stream": True})]
REQUESTS = [
    *(RawRequest("GET", path) for path in ("/health", "/metrics", "/openapi.json", BASE)),
    RawRequest("POST", "/sessions"),
    RawRequest("DELETE", BASE),
    RawRequest("POST", f"{BASE}/samples", b'{"max_seq_len":9}'),
    *(
        RawRequest("POST", f"{BASE}/{path}", body)
        for path in (CHAT, f"{CHAT}?a=b", f"agents/a/{CHAT}", "v1/messages")
        for body in TURNS
    ),
    RawRequest("POST", f"{BASE}/v1/messages/count_tokens", TURNS[0]),
    RawRequest("POST", f"{BASE}/v1/responses", b'{"input":"hi"}'),
    RawRequest("POST", f"{BASE}/tokenize", b'{"prompt":"hi"}'),
    RawRequest("POST", f"{BASE}/agents/a/v1/completions", b"{}"),
    *(RawRequest("GET", f"{BASE}/{path}") for path in ("v1/models", "v1/models/m", "version", "flush_cache")),
]


STANDS = {
    "linear": partial(standing, mode="linear"),
    "tree": partial(standing, mode="tree"),
    "workers": standing_before_workers,
    "open proxy": partial(standing, open_proxy=True),
}


@pytest.fixture(scope="module", params=STANDS)
def stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    with STANDS[request.param]() as made:
        yield made


@effort(40)
@given(raw=raw_requests(REQUESTS))
def test_any_bytes(stand: Stand, raw: bytes) -> None:
    stand.attack(raw.replace(ID.encode(), stand.session_id.encode()))


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "target", ["http://[", "http://[/health", "http://]/health", "//[/health", "http://[::1", "*", "x", "http:", "x:1"]
)
def test_a_target_that_is_no_url_is_not_found(stand: Stand, method: str, target: str) -> None:
    reply = stand.attack(f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
    assert reply.statuses[0] in (400, 404)


PASSED_ON = [f"{BASE}/{path}" for path in ("v1/models/m", "agents/a/v1/models/m", "v1/models", CHAT)]


@effort(25)
@given(method=st.sampled_from(["GET", "POST"]), target=twisted_targets(PASSED_ON))
def test_any_target(stand: Stand, method: str, target: str) -> None:
    line = f"{method} {target.replace(ID, stand.session_id)} HTTP/1.1\r\n".encode("latin-1", "replace")
    stand.attack(line + b"Host: x\r\nContent-Length: %d\r\n\r\n" % len(TURNS[0]) + TURNS[0])
