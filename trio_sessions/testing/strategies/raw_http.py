"""HTTP/1 requests as bytes: legal, ambiguous, broken, and several in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hypothesis import strategies as st

__all__ = ["RawRequest", "raw_requests", "twisted_targets"]

_METHODS: Final = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "PRI", "P ST")
_VERSIONS: Final = ("HTTP/1.1",) * 8 + ("HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/1.1 x", "http/1.1", "")
_LINE_ENDS: Final = (b"\r\n",) * 12 + (b"\n", b"\r", b"\r\n\r\n", b"\x0b\r\n")
_HOSTS: Final = (
    (b"Host: x",),
    (b"Host: x",),
    (b"Host: x",),
    (),
    (b"Host: x", b"Host: evil"),
    (b"Host: http://evil/",),
    (b"Host:",),
    (b"Host: a\x00b",),
)
_ODD_HEADERS: Final = (
    b"Content-Length: +5",
    b"Content-Length: -1",
    b"Content-Length: 0x5",
    b"Content-Length: 5, 5",
    b"Content-Length: 5_0",
    b"Content-Length: 99999999999999999999",
    b"Content-Length : 5",
    b"Content-Length:\t5",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: chunked, chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding:\x0bchunked",
    b"transfer-encoding : chunked",
    b"Transfer-Encoding: chunked\r\n ,identity",
    b"Expect: 100-continue",
    b"Expect: 200-ok",
    b"Connection: close",
    b"Connection: keep-alive, content-length, host, x-smg-routing-key",
    b"Connection: Upgrade, HTTP2-Settings",
    b"Upgrade: h2c",
    b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA",
    b"Upgrade: websocket",
    b"X-Folded: a\r\n b",
    b" X-Leading: a",
    b"X-Nul: a\x00b",
    b"X-Return: a\rb",
    b"X-Line: a\nX-Smuggled: b",
    b"X-Latin: caf\xe9",
    b"X-Utf: \xe5\xa4\xa9",
    b"X-Bad Name: a",
    b"X-\xe9: a",
    b": empty",
    b"no colon",
    b"X-SMG-Routing-Key: other",
    b"X-Http-Method-Override: DELETE",
    b"X-Forwarded-Host: evil",
    b"Idempotency-Key: a",
    b"Idempotency-Key: \xff\xfe",
    b"X-Stainless-Retry-Count: \xb2",
    b"X-Stainless-Retry-Count: 99999999999999999999999",
    b"Anthropic-Version: 1",
    b"Accept-Encoding: gzip",
    b"Content-Encoding: gzip",
    b"Content-Type: application/json; charset=utf-16",
    b"Authorization: Bearer \xff",
    b"Cookie: a=b\x7f",
    b"Trailer: Host",
    b"TE: trailers",
    b"X-Claude-Code-Agent-Id: " + b"a" * 5000,
    b"Thread-Id: \x01",
)
_TWISTS: Final = (
    "/..",
    "/../",
    "/.",
    "//",
    "/%2e%2e",
    "/%2e%2e/",
    "/%252e%252e/",
    "%2F",
    "%2f..%2f",
    "%5c",
    "\\",
    "%00",
    "%0d%0a",
    "%0aHost:%20evil",
    ";",
    ";x=y",
    "/..;/",
    "/%2e.;x",
    "?",
    "?a=%00&b",
    "#",
    "@evil/",
    "/http://evil/",
    "//evil/",
    "/%",
    "%zz",
    "%ff",
    "%C0%AE",
    "\u00e9",
    " ",
    "\t",
    "*",
    "~",
    "%20",
)


def twisted_targets(paths: Sequence[str]) -> st.SearchStrategy[str]:
    """Targets of requests that some server might read as another: with dots, escapes, other hosts and schemes in them.

    Args:
        paths: what they are made from, each with a slash before it.
    """
    return st.one_of(st.sampled_from(paths), _twisted(paths), _whole_urls(paths))


@st.composite
def _twisted(draw: st.DrawFn, paths: Sequence[str]) -> str:
    target = draw(st.sampled_from(paths))
    for twist in draw(st.lists(st.sampled_from(_TWISTS), min_size=1, max_size=3)):
        slashes = [index for index, letter in enumerate(target) if letter == "/"]
        at = draw(st.sampled_from([*slashes, len(target)]))
        target = target[:at] + twist + target[at:]
    return target


@st.composite
def _whole_urls(draw: st.DrawFn, paths: Sequence[str]) -> str:
    before = draw(
        st.sampled_from(
            ["http://x", "http://evil", "https://u:p@evil:1", "//evil", "ftp:", "http://[", "http:", "x", ""]
        )
    )
    return before + draw(st.sampled_from([*paths, "*", "", "evil:443"]))


@dataclass(frozen=True, slots=True)
class RawRequest:
    """A request that a server answers.

    Attributes:
        method: such as ``GET``.
        target: such as ``/health``.
        body: sent with its length.
    """

    method: str
    target: str
    body: bytes = b""


@st.composite
def raw_requests(draw: st.DrawFn, requests: Sequence[RawRequest]) -> bytes:
    """One to three of ``requests`` as they are sent one behind the other, some of them made odd in up to two ways.

    Framing is given twice, in contradictory ways, or not at all; heads have odd headers, targets or line ends; a body
    is a request itself; some of it all is cut, doubled or replaced.
    """
    sent = b"".join(draw(st.lists(_request(requests), min_size=1, max_size=3)))
    if draw(st.integers(0, 7)):
        return sent
    at = draw(st.integers(0, len(sent)))
    until = min(len(sent), at + draw(st.integers(0, 40)))
    return sent[:at] + draw(st.sampled_from([b"", sent[at:until] * 2, b"\x00", b"\r\n", b"\xff"])) + sent[until:]


@st.composite
def _request(draw: st.DrawFn, requests: Sequence[RawRequest]) -> bytes:
    legal = draw(st.sampled_from(requests))
    odd = draw(
        st.sets(st.sampled_from(["method", "target", "version", "host", "headers", "framing", "ends"]), max_size=2)
    )
    method, target, body = legal.method, legal.target, legal.body
    if "method" in odd:
        method = draw(st.sampled_from(_METHODS))
    if "target" in odd:
        target = draw(twisted_targets([request.target for request in requests]))
    version = draw(st.sampled_from(_VERSIONS)) if "version" in odd else "HTTP/1.1"
    headers = list(draw(st.sampled_from(_HOSTS))) if "host" in odd else [b"Host: x"]
    if "headers" in odd:
        headers += draw(st.lists(st.sampled_from(_ODD_HEADERS), min_size=1, max_size=3))
    framing, body = draw(_framed(requests, body)) if "framing" in odd else ((b"Content-Length: %d" % len(body),), body)
    ends = st.sampled_from(_LINE_ENDS) if "ends" in odd else st.just(b"\r\n")
    line = " ".join((method, target, version)).encode("latin-1", "replace")
    head = b"".join(part + draw(ends) for part in (line, *draw(st.permutations([*headers, *framing]))))
    return head + draw(ends) + body


@st.composite
def _framed(draw: st.DrawFn, requests: Sequence[RawRequest], body: bytes) -> tuple[tuple[bytes, ...], bytes]:
    """Headers that say where a body ends, and the body."""
    body = draw(st.just(body) | _hidden([request.target for request in requests]))
    length = b"Content-Length: %d" % len(body)
    other = b"Content-Length: %d" % draw(st.integers(0, len(body)))
    match draw(st.sampled_from(["chunks", "chunks", "both", "two lengths", "none", "short", "many"])):
        case "chunks":
            return (b"Transfer-Encoding: chunked",), draw(_chunked(body))
        case "both":
            return (other, b"Transfer-Encoding: chunked"), draw(_chunked(body))
        case "two lengths":
            return (length, other), body
        case "short":
            return (other,), body
        case "many":
            return (*(b"X-%d: a" % index for index in range(draw(st.sampled_from([100, 2000])))), length), body
        case _:
            return (), body


@st.composite
def _hidden(draw: st.DrawFn, paths: Sequence[str]) -> bytes:
    """A body that is a request."""
    target = draw(st.sampled_from([*paths, "/flush_cache", "/v1/models"]))
    return f"{draw(st.sampled_from(['GET', 'POST']))} {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


@st.composite
def _chunked(draw: st.DrawFn, body: bytes) -> bytes:
    size: bytes = draw(
        st.sampled_from(
            [b"%x"] * 5
            + [b"%X", b"0%x", b"%x;a=b", b"%x ", b" %x", b"%x;\x00", b"-%x", b"+%x", b"0x%x", b"f" * 17 + b"%x"]
        )
    )
    end: bytes = draw(
        st.sampled_from([b"0\r\n\r\n"] * 3 + [b"0\n\n", b"0\r\nHost: evil\r\nX: a\x00\r\n\r\n", b"0;x\r\n\r\n", b""])
    )
    return size % len(body) + b"\r\n" + body + draw(st.sampled_from([b"\r\n", b"\r\n", b"\n", b""])) + end
