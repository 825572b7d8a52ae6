"""One request and its answer as bytes: what an answer is, and what of a connection is left after it."""

from __future__ import annotations

from dataclasses import dataclass, field

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.engine.http.support import HOSTILE, cut
from trio_sessions.engine.http.exchange import AnswerTooLarge, Exchange, Head, Limits

HOST = [(b"Host", b"x")]
CLOSED = b""


@dataclass(frozen=True)
class Got:
    """What an exchange made of the bytes it was given."""

    status: int
    body: bytes
    reusable: bool
    unread: list[bytes] = field(default_factory=list, compare=False)


def exchange(method: str = "POST", *, limits: Limits | None = None, headers=()) -> Exchange:
    """One whose request, without a body, is sent."""
    made = Exchange(limits or Limits())
    made.send_head(method, b"/", [*HOST, *headers])
    made.send_end()
    return made


def got(segments, made: Exchange | None = None) -> Got:
    """What comes out when the segments go in one by one, as a reader does it."""
    made = made or exchange()
    left = list(segments)
    while (head := made.head()) is None:
        made.receive(left.pop(0))
    pieces = []
    while not made.finished:
        piece = made.body()
        if piece is not None:
            pieces.append(piece)
        elif not made.finished:
            made.receive(left.pop(0))
    assert made.body() is None
    # A reader looks at the connection before it uses it again, and finds what was not read.
    return Got(head.status, b"".join(pieces), made.reusable and not left, left)


WITH_LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\nt: 1\r\n\r\n"
EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        ([WITH_LENGTH], Got(200, b"abc", True)),
        ([WITH_LENGTH[:-2], b"b", b"c"], Got(200, b"abc", True)),
        ([EMPTY], Got(200, b"", True)),
        ([CHUNKED], Got(200, b"abc", True)),
        ([b"HTTP/1.1 200\r\ncontent-length: 1, 1\r\nContent-Length: 1\r\n\r\na"], Got(200, b"a", True)),
        # Interim answers are not the answer.
        ([b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 X\r\na: b\r\n\r\n" + WITH_LENGTH], Got(200, b"abc", True)),
        # These have no body whatever they say.
        ([b"HTTP/1.1 204 X\r\n\r\n"], Got(204, b"", True)),
        ([b"HTTP/1.1 204 X\r\ncontent-length: 3\r\n\r\n"], Got(204, b"", True)),
        ([b"HTTP/1.1 304 X\r\ncontent-length: 3\r\n\r\n"], Got(304, b"", True)),
        ([b"HTTP/1.1 304 X\r\ntransfer-encoding: chunked\r\n\r\n"], Got(304, b"", True)),
        # Either side closes.
        ([WITH_LENGTH.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")], Got(200, b"abc", False)),
        ([WITH_LENGTH.replace(b"\r\n\r\n", b"\r\nConnection: x, Close\r\n\r\n")], Got(200, b"abc", False)),
        ([CHUNKED.replace(b"OK\r\n", b"OK\r\nconnection: close\r\n")], Got(200, b"abc", False)),
        ([WITH_LENGTH.replace(b"1.1", b"1.0")], Got(200, b"abc", False)),
        (
            [WITH_LENGTH.replace(b"1.1 200 OK\r\n", b"1.0 200 OK\r\nconnection: keep-alive\r\n")],
            Got(200, b"abc", False),
        ),
        ([b"HTTP/1.1 200 OK\r\n\r\n", b"ab", b"c", CLOSED], Got(200, b"abc", False)),
        ([b"HTTP/1.1 200 OK\r\n\r\n", CLOSED], Got(200, b"", False)),
        # Something comes behind it.
        ([WITH_LENGTH + b"x"], Got(200, b"abc", False)),
        ([WITH_LENGTH[:-1], b"cx"], Got(200, b"abc", False)),
        ([WITH_LENGTH + WITH_LENGTH], Got(200, b"abc", False)),
        ([EMPTY + b"x"], Got(200, b"", False)),
        ([CHUNKED + b"x"], Got(200, b"abc", False)),
        ([b"HTTP/1.1 204 X\r\ncontent-length: 3\r\n\r\nabc"], Got(204, b"", False)),
        # Which of the two is meant?
        ([CHUNKED.replace(b"OK\r\n", b"OK\r\ncontent-length: 3\r\n")], Got(200, b"abc", False)),
    ],
)
def test_what_an_answer_is(segments, expected):
    assert got(segments) == expected


@pytest.mark.parametrize("framing", [b"content-length: 3", b"transfer-encoding: chunked", b"x: y"])
def test_an_answer_to_head_has_no_body(framing):
    assert got([b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n"], exchange("HEAD")) == Got(200, b"", True)


def test_the_head_comes_as_it_was():
    made = exchange()
    made.receive(b"HTTP/1.0 418 I'm a  teapot\r\nX-A:  1 \r\nx-a: 2\r\nx-latin: caf\xe9\r\n\r\n")
    assert made.head() == Head(
        418, b"I'm a  teapot", b"HTTP/1.0", [(b"X-A", b"1"), (b"x-a", b"2"), (b"x-latin", b"caf\xe9")]
    )


def test_a_connection_that_the_client_wants_closed_is_not_reusable():
    assert not got([WITH_LENGTH], exchange(headers=[(b"Connection", b"close")])).reusable


@pytest.mark.parametrize("answer", [WITH_LENGTH, CHUNKED, EMPTY])
def test_an_exchange_whose_request_has_not_ended_is_not_reusable(answer):
    made = Exchange(Limits())
    made.send_head("POST", b"/", [*HOST, (b"content-length", b"9")])
    made.send_body(b"12345678")
    assert not got([answer], made).reusable


BAD = [
    ([CLOSED], "Server disconnected without sending a response."),
    ([b"HTTP/1.1 200 OK\r\n", CLOSED], "Server disconnected without sending a response."),
    ([b"HTTP/1.1 100 Continue\r\n\r\n", CLOSED], "Server disconnected without sending a response."),
    ([WITH_LENGTH[:-1], CLOSED], "without sending complete message body (received 2 bytes, expected 3)"),
    ([WITH_LENGTH[:-3], CLOSED], "without sending complete message body (received 0 bytes, expected 3)"),
    ([CHUNKED[:-24], CLOSED], "without sending complete message body (incomplete chunked read)"),
    ([CHUNKED[:-3], CLOSED], "peer unexpectedly closed connection"),
    ([b"SSH-2.0-x\r\n\r\n"], "illegal status line"),
    ([b"\x15\x03\x01"], "illegal"),
    ([b"HTTP/1.1 099 X\r\n\r\n"], ""),
    ([b"HTTP/1.1 200 OK\r\na b: c\r\n\r\n"], "illegal header line"),
    ([b"HTTP/1.1 200 OK\r\n\r\n".replace(b"OK\r\n", b"OK\r\ncontent-length: -1\r\n")], "bad Content-Length"),
    ([b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n"], "conflicting Content-Length"),
    ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n"], "Transfer-Encoding"),
    ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n"], "illegal chunk header"),
    ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc"], "malformed chunk footer"),
    ([b"HTTP/1.1 101 X\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"], ""),
    # Heads that never end, in one piece and in many.
    ([b"HTTP/1.1 200 OK\r\n" + b"x" * 200_000], "Receive buffer too long"),
    ([b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n"], "head is larger than 102400 bytes"),
    ([b"HTTP/1.1 200 OK\r\n"] + [b"x: y\r\n"] * 50_000, "Receive buffer too long"),
    ([b"HTTP/1.1 100 X\r\n\r\n" * 10] * 5_000, "head is larger than 102400 bytes"),
    ([CHUNKED[:-5], b"t: 1\r\n" * 50_000], "Receive buffer too long"),
]


@pytest.mark.parametrize(("segments", "text"), BAD)
def test_what_is_no_answer(segments, text):
    with pytest.raises(httpx.RemoteProtocolError) as caught:
        got(segments)
    assert text in str(caught.value)


@pytest.mark.parametrize("headers", [[(b"Upgrade", b"x"), (b"Connection", b"upgrade")], [(b"Upgrade", b"websocket")]])
def test_no_other_protocol_is_spoken_even_if_the_client_asks(headers):
    with pytest.raises(httpx.RemoteProtocolError, match="another protocol"):
        got([b"HTTP/1.1 101 X\r\nupgrade: x\r\n\r\n"], exchange(headers=headers))


def test_nor_is_a_tunnel_dug():
    with pytest.raises(httpx.RemoteProtocolError, match="another protocol"):
        got([b"HTTP/1.1 200 OK\r\n\r\n"], exchange("CONNECT"))


# -- limits -----------------------------------------------------------------------------------------------------------


def test_a_body_that_says_it_is_too_large_is_not_read():
    made = exchange(limits=Limits(body_bytes=2))
    made.receive(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n")
    with pytest.raises(AnswerTooLarge, match="has at least 3 bytes, 2 are allowed"):
        made.head()


@pytest.mark.parametrize("answer", [CHUNKED, b"HTTP/1.1 200 OK\r\n\r\nabc"])
@pytest.mark.parametrize(("most", "fits"), [(2, False), (3, True), (None, True)])
def test_a_body_that_does_not_say_it_is_read_until_it_is(answer, most, fits):
    made = exchange(limits=Limits(body_bytes=most))
    if fits:
        assert got([answer, CLOSED], made).body == b"abc"
    else:
        with pytest.raises(AnswerTooLarge):
            got([answer, CLOSED], made)


def test_a_limit_is_for_bodies_not_for_what_an_answer_to_head_says_of_one():
    made = exchange("HEAD", limits=Limits(body_bytes=2))
    assert got([b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n"], made).status == 200


# -- what is sent -----------------------------------------------------------------------------------------------------


def test_what_is_sent():
    made = Exchange(Limits())
    headers = [(b"X-A", b"1"), (b"host", b"h"), (b"content-length", b"2")]
    sent = made.send_head("PUT", b"/a?b", headers) + made.send_body(b"xy") + made.send_end()
    assert sent == b"PUT /a?b HTTP/1.1\r\nhost: h\r\nX-A: 1\r\ncontent-length: 2\r\n\r\nxy"


def test_what_is_sent_in_chunks():
    made = Exchange(Limits())
    made.send_head("POST", b"/", [*HOST, (b"transfer-encoding", b"chunked")])
    assert [made.send_body(b"xy"), made.send_body(b""), made.send_end()] == [b"2\r\nxy\r\n", b"", b"0\r\n\r\n"]


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("POST", b"/", []),
        ("POST", b"/", [*HOST, *HOST]),
        ("P OST", b"/", HOST),
        ("POST", b"/ HTTP/1.1\r\nx: y", HOST),
        ("POST", b"/", [*HOST, (b"x", b"y\r\nz: w")]),
        ("POST", b"/", [*HOST, (b"x y", b"z")]),
        ("POST", b"/", [*HOST, (b"content-length", b"x")]),
    ],
)
def test_what_is_no_request_is_not_sent(method, target, headers):
    with pytest.raises(httpx.LocalProtocolError):
        Exchange(Limits()).send_head(method, target, headers)


@pytest.mark.parametrize("body", [b"1", b"123"])
def test_a_body_of_another_length_than_announced_is_an_error(body):
    made = Exchange(Limits())
    made.send_head("POST", b"/", [*HOST, (b"content-length", b"2")])
    with pytest.raises(httpx.LocalProtocolError, match="for declared Content-Length"):
        _ = made.send_body(body), made.send_end()


# -- properties -------------------------------------------------------------------------------------------------------

BODIES = st.binary(max_size=40)
CHUNK_LISTS = st.lists(st.binary(min_size=1, max_size=12), max_size=6)


def _chunked(chunks: list[bytes], trailers: bytes) -> bytes:
    pieces = [b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks]
    return b"transfer-encoding: chunked\r\n\r\n" + b"".join(pieces) + b"0\r\n" + trailers + b"\r\n"


@dataclass(frozen=True)
class Answer:
    """The bytes of an answer, and what it says."""

    raw: bytes
    body: bytes
    keeps: bool


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 X\r\nlink: y\r\n\r\n"]))
    version, connection = draw(
        st.sampled_from([(b"1.1", b""), (b"1.1", b"connection: close\r\n"), (b"1.0", b"connection: keep-alive\r\n")])
    )
    head = interim + b"HTTP/" + version + b" 200 OK\r\n" + connection
    if draw(st.booleans()):
        body = draw(BODIES)
        raw = head + b"content-length: %d\r\n\r\n%s" % (len(body), body)
    else:
        chunks = draw(CHUNK_LISTS)
        body = b"".join(chunks)
        raw = head + _chunked(chunks, draw(st.sampled_from([b"", b"x: y\r\n"])))
    return Answer(raw, body, keeps=version == b"1.1" and not connection)


@given(answers(), st.lists(st.integers(0, 10_000), max_size=20))
def test_it_does_not_matter_where_an_answer_is_cut(answer, places):
    assert got(cut(answer.raw, places)) == Got(200, answer.body, answer.keeps)


@given(answers(), st.binary(min_size=1, max_size=30), st.lists(st.integers(0, 10_000), max_size=20))
def test_what_comes_behind_an_answer_neither_changes_it_nor_outlives_it(answer, surplus, places):
    assert got(cut(answer.raw + surplus, places)) == Got(200, answer.body, reusable=False)


@given(answers(), st.integers(0, 10_000), st.lists(st.integers(0, 10_000), max_size=8))
def test_an_answer_that_is_cut_off_is_an_error(answer, end, places):
    raw = answer.raw[: end % len(answer.raw)]
    with pytest.raises(httpx.RemoteProtocolError):
        got([*cut(raw, places), CLOSED])


@given(HOSTILE, st.lists(st.integers(0, 10_000), max_size=10))
@example(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", [])
def test_hostile_bytes_are_an_answer_or_an_error_and_nothing_else(raw, places):
    """And an answer that leaves the connection usable is one that took all of the bytes."""
    limits = Limits(head_bytes=1000, body_bytes=100)
    made = exchange(limits=limits)
    try:
        result = got([*cut(raw, places), CLOSED], made)
    except httpx.RemoteProtocolError:
        assert not made.reusable
        return
    assert len(result.body) <= 100
    if made.reusable:
        read = raw[: len(raw) - sum(map(len, result.unread))]
        assert got([read], exchange(limits=limits)) == Got(result.status, result.body, reusable=True)
        assert got([read + b"x"], exchange(limits=limits)) == Got(result.status, result.body, reusable=False)
