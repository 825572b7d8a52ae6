"""One request and its answer as bytes, without a connection.

An exchange is made for one request and dropped after its answer. What a server sends behind an answer can so not be
taken for the next one: nothing that holds bytes outlives the exchange that received them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import h11
import httpx

from trio_sessions.engine.base import RawHeaders

__all__ = ["AnswerTooLarge", "Exchange", "Head", "Limits"]

_WITHOUT_BODY: Final = frozenset({204, 304})


class AnswerTooLarge(httpx.RemoteProtocolError):
    """The body of an answer is larger than it may be. As much of it as was received is gone."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server may send for one answer.

    Attributes:
        head_bytes: bytes before the body, interim responses included.
        body_bytes: bytes of the body as they are sent, before any decoding; None for no limit.
    """

    head_bytes: int = 100 * 1024
    body_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """Everything of an answer that comes before its body; headers as they were on the wire."""

    status: int
    reason: bytes
    http_version: bytes
    headers: RawHeaders


class Exchange:
    """What to send for one request, and what the bytes that come back mean.

    h11 does both, but for bodies with a length: it would copy each piece of them more often than needed.

    Attributes:
        finished: whether the answer is there to its last byte.
    """

    __slots__ = (
        "_h11",
        "_has_head",
        "_left",
        "_length",
        "_limits",
        "_method",
        "_piece",
        "_received",
        "_surplus",
        "finished",
    )

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=limits.head_bytes)
        self._method = ""
        self._has_head = False
        self._received = 0
        # Of the body: its length if it is counted here, what is missing, and the piece that is here but not yet taken.
        self._length: int | None = None
        self._left = 0
        self._piece = b""
        self._surplus = False
        self.finished = False

    def send_head(self, method: str, target: bytes, headers: RawHeaders) -> bytes:
        """The bytes of a request's head.

        Raises:
            httpx.LocalProtocolError: it is no HTTP request.
        """
        self._method = method
        try:
            sent = self._h11.send(h11.Request(method=method, target=target, headers=list(headers)))
        except h11.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error)) from error
        return sent or b""

    def send_body(self, data: bytes) -> bytes:
        """The bytes of a piece of its body.

        Raises:
            httpx.LocalProtocolError: there is more than the head announced.
        """
        try:
            return self._h11.send(h11.Data(data=data)) or b""
        except h11.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error)) from error

    def send_end(self) -> bytes:
        """The bytes that end the request.

        Raises:
            httpx.LocalProtocolError: there is less than the head announced.
        """
        try:
            return self._h11.send(h11.EndOfMessage()) or b""
        except h11.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error)) from error

    def receive(self, data: bytes) -> None:
        """Take what the server sent; nothing means that it has closed.

        Call it only when ``head`` and ``body`` have nothing more to give.

        Raises:
            httpx.RemoteProtocolError: it has closed in the middle of the answer.
        """
        if not data and not self._has_head:
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        if self._length is None:
            self._received += len(data)
            self._h11.receive_data(data)
        elif data:
            self._piece = data
        else:
            raise httpx.RemoteProtocolError(
                "peer closed connection without sending complete message body "
                f"(received {self._length - self._left} bytes, expected {self._length})"
            )

    def head(self) -> Head | None:
        """The head of the answer, once; None if more bytes are needed. Interim responses are skipped.

        Raises:
            httpx.RemoteProtocolError: this is no HTTP, or the head is too large.
            AnswerTooLarge: the body is going to be.
        """
        while True:
            event = self._next_event()
            if event is h11.NEED_DATA:
                self._check_head(self._received)
                return None
            if isinstance(event, h11.Response):
                return self._begin(event)
            # Nobody asks for another protocol here.
            if not isinstance(event, h11.InformationalResponse) or event.status_code == 101:
                raise httpx.RemoteProtocolError("the server wants to speak another protocol")

    def body(self) -> bytes | None:
        """The next piece of the body; None if more bytes are needed, or if it is ``finished``.

        Raises:
            httpx.RemoteProtocolError: this is no HTTP, or it was cut off.
            AnswerTooLarge: the body is larger than it may be.
        """
        if self.finished:
            return None
        if self._length is not None:
            return self._counted()
        event = self._next_event()
        if isinstance(event, h11.Data):
            self._left += len(event.data)
            self._check_body(self._left)
            return bytes(event.data)
        if isinstance(event, h11.EndOfMessage):
            self.finished = True
        elif event is not h11.NEED_DATA:
            raise httpx.RemoteProtocolError("the server wants to speak another protocol")
        return None

    @property
    def reusable(self) -> bool:
        """Whether both sides are done with the connection as it was before, so that it can carry another exchange.

        It is so only for an answer that is there to its last byte and that nothing came behind, and not if either side
        said that it closes. Whether all of the request was sent is for the sender to know.
        """
        if not self.finished or self._surplus or self._h11.our_state is not h11.DONE:
            return False
        return self._length is not None or (
            self._h11.their_state is h11.DONE and self._h11.trailing_data == (b"", False)
        )

    def _begin(self, response: h11.Response) -> Head:
        self._has_head = True
        headers = response.headers.raw_items()
        rest, _ = self._h11.trailing_data
        self._check_head(self._received - len(rest))
        if response.status_code not in _WITHOUT_BODY and self._method != "HEAD":
            self._choose_framing(headers, rest)
        return Head(response.status_code, response.reason, b"HTTP/" + response.http_version, headers)

    def _choose_framing(self, headers: RawHeaders, rest: bytes) -> None:
        length = None
        chunked = False
        for name, value in headers:
            lower = name.lower()
            if lower == b"content-length":
                length = int(value)
            elif lower == b"transfer-encoding":
                chunked = True
        if length is None:
            return
        if chunked:
            # Which of the two is meant is what smuggled answers are made of.
            self._surplus = True
            return
        self._check_body(length)
        self._length = self._left = length
        self._piece = rest
        if not length:
            self.finished = True
            self._surplus = bool(rest)

    def _counted(self) -> bytes | None:
        piece = self._piece
        if not piece:
            return None
        self._piece = b""
        if len(piece) > self._left:
            self._surplus = True
            piece = piece[: self._left]
        self._left -= len(piece)
        self.finished = not self._left
        return piece

    def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            return self._h11.next_event()
        except h11.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(str(error)) from error

    def _check_head(self, size: int) -> None:
        if size > self._limits.head_bytes:
            raise httpx.RemoteProtocolError(f"the answer's head is larger than {self._limits.head_bytes} bytes")

    def _check_body(self, size: int) -> None:
        most = self._limits.body_bytes
        if most is not None and size > most:
            raise AnswerTooLarge(f"the answer's body has at least {size} bytes, {most} are allowed")
