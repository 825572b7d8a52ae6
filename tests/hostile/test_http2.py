"""HTTP/2 can say in a header what HTTP/1 cannot spell; what reaches the engine is HTTP/1 nevertheless."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest
from hpack import Encoder
from hyperframe.frame import DataFrame, Frame, HeadersFrame, SettingsFrame
from hypothesis import example, given
from hypothesis import strategies as st

from tests.hostile.budget import effort
from tests.hostile.stand import Stand, standing, standing_before_workers
from tests.web.support import CHAT
from trio_sessions.testing.strategies import twisted_targets

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TURN = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
ID = "{id}"
SMUGGLED = "\r\nHost: evil\r\n\r\nGET /flush_cache HTTP/1.1\r\nHost: evil\r\n\r\n"
TARGETS = [
    f"/sessions/{ID}/{path}"
    for path in (CHAT, f"{CHAT}?a=b", "v1/models", "v1/models/m", "v1/models?a=b", "agents/a/v1/models", "tokenize")
]
ODD = [" ", "\t", "\r\n", "\n", "\0", "\x7f", "é", "%0d%0a", "#", "\\", " HTTP/1.1", SMUGGLED]
Headers = Sequence[tuple[bytes, bytes]]


def framed(frame: Frame) -> bytes:
    return bytes(frame.serialize())


def http2(headers: Headers, body: bytes) -> bytes:
    """One request, on a connection that begins with it."""
    head = HeadersFrame(1, data=Encoder().encode(headers), flags=["END_HEADERS", *([] if body else ["END_STREAM"])])
    data = framed(DataFrame(1, data=body, flags=["END_STREAM"])) if body else b""
    return PREFACE + framed(SettingsFrame(0)) + framed(head) + data


def spelled(method: str, target: str, more: Headers) -> Headers:
    pseudo = [(":method", method), (":scheme", "http"), (":path", target), (":authority", "x")]
    return [*((name.encode(), value.encode("latin-1", "replace")) for name, value in pseudo), *more]


STANDS = {"linear": standing, "workers": standing_before_workers}


@pytest.fixture(scope="module", params=STANDS)
def stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    with STANDS[request.param]() as made:
        yield made


@st.composite
def targets(draw: st.DrawFn) -> str:
    target = draw(st.sampled_from(TARGETS) | twisted_targets(TARGETS))
    at = draw(st.integers(0, len(target)))
    return target[:at] + draw(st.sampled_from(["", *ODD])) + target[at:]


NAMES = st.sampled_from(
    [
        b"x-a",
        b"X-A",
        b"content-length",
        b"transfer-encoding",
        b"host",
        b"connection",
        b":path",
        b":evil",
        b"x a",
        b"x\r\ny",
        b"",
    ]
)
VALUES = st.sampled_from([b"", b"a", b"5", b"chunked", b"a\r\nx-smuggled: b", b"a\nb", b"a\0b", b"\xff", b" a ", b"/"])


@effort(40)
@given(
    method=st.sampled_from(["GET", "POST", "POST", "DELETE", "G T", "GET / HTTP/1.1\r\n"]),
    target=targets(),
    more=st.lists(st.tuples(NAMES, VALUES), max_size=2),
    body=st.sampled_from([b"", TURN]),
)
@example("GET", f"/sessions/{ID}/v1/models?a=b HTTP/1.1{SMUGGLED}", [], b"")
@example("GET", f"/sessions/{ID}/v1/models/a b", [], b"")
@example("POST", f"/sessions/{ID}/{CHAT}?a=b HTTP/1.1{SMUGGLED}", [], TURN)
@example("POST", f"/sessions/{ID}/{CHAT}", [(b"x-a", b"b\r\nx-smuggled: c")], TURN)
@example("POST", f"/sessions/{ID}/{CHAT}?\xe9", [(b"x-\xe9", b"b")], TURN)
def test_any_request(stand: Stand, method: str, target: str, more: Headers, body: bytes) -> None:
    stand.attack(http2(spelled(method, target.replace(ID, stand.session_id), more), body), requests=1)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/health"),
        ("GET", "/sessions/{id}"),
        ("GET", "/sessions/{id}/v1/models"),
        ("POST", f"/sessions/{ID}/{CHAT}"),
    ],
)
@pytest.mark.parametrize("character", ["\xe9", " ", "\x7f"])
def test_a_target_that_http1_cannot_spell_is_refused(stand: Stand, method: str, path: str, character: str) -> None:
    target = f"{path.replace(ID, stand.session_id)}?a={character}b"
    reply = stand.attack(http2(spelled(method, target, []), TURN if method == "POST" else b""), requests=0)
    assert b"have to be escaped with %" in reply.raw


@effort(15)
@given(frames=st.lists(st.binary(max_size=30), max_size=4), opened=st.booleans())
def test_any_frames(stand: Stand, frames: list[bytes], opened: bool) -> None:
    stand.attack(PREFACE + (framed(SettingsFrame(0)) if opened else b"") + b"".join(frames), requests=0)


def test_a_turn_over_http2_is_a_turn(stand: Stand) -> None:
    """So that the others show something."""
    stand.attack(http2(spelled("POST", f"/sessions/{stand.session_id}/{CHAT}", []), TURN), requests=1)
    assert len(stand.engine.requests) == 1
