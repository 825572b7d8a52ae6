"""An HTTP/1.1 client that can be told to behave badly, under trio."""

from __future__ import annotations

import socket
import struct
from typing import Final, Self
from urllib.parse import urlsplit

import h11
import trio

from benchmarks.load.http import Answer

__all__ = ["Broken", "Peer"]

_READ_BYTES: Final = 2**16
_SMALL_BUFFER: Final = 4096
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Broken(Exception):
    """The server took no connection, closed it, or answered something that is no HTTP."""


class Peer:
    """A keep-alive connection; one that was broken, or left, is of no further use."""

    def __init__(self, stream: trio.SocketStream, host: str) -> None:
        self._stream = stream
        self._host = host
        self._state = h11.Connection(h11.CLIENT)

    @classmethod
    async def connect(cls, url: str, *, reads_little: bool = False) -> Self:
        """Connect to the host and port of ``url``.

        Args:
            url: of the server.
            reads_little: the kernel takes only a few kilobytes of an answer that nobody reads.

        Raises:
            Broken: nobody is there.
        """
        target = urlsplit(url)
        connecting = trio.socket.socket()
        if reads_little:
            connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
        try:
            await connecting.connect((target.hostname, target.port))
        except OSError as error:
            connecting.close()
            raise Broken(f"cannot connect: {error}") from error
        return cls(trio.SocketStream(connecting), target.netloc)

    async def request(self, method: str, path: str, *, body: bytes = b"", headers: dict[str, str]) -> Answer:
        """Send a request and wait for its answer.

        Raises:
            Broken: there is none.
        """
        await self.send(method, path, body=body, headers=headers)
        return await self.answer()

    async def send(
        self, method: str, path: str, *, body: bytes = b"", headers: dict[str, str], withheld: int = 0
    ) -> None:
        """Send a request, of its body all but the last ``withheld`` bytes.

        Raises:
            Broken: the server does not take it.
        """
        if self._state.our_state is h11.DONE:
            self._state.start_next_cycle()
        head = {"host": self._host, "content-type": "application/json", "content-length": str(len(body)), **headers}
        data = [self._state.send(h11.Request(method=method, target=path, headers=list(head.items()))) or b""]
        if kept := body[: len(body) - withheld]:
            data.append(self._state.send(h11.Data(data=kept)) or b"")
        if not withheld:
            self._state.send(h11.EndOfMessage())
        await self.send_raw(b"".join(data))

    async def send_raw(self, data: bytes) -> None:
        """Send bytes as they are.

        Raises:
            Broken: the server does not take them.
        """
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise Broken("the connection broke while a request was sent") from error

    async def answer(self) -> Answer:
        """The answer to what was sent.

        Raises:
            Broken: there is none, or not all of it.
        """
        head: h11.Response | None = None
        body = bytearray()
        while True:
            event = await self._event()
            if isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                return Answer(status=head.status_code, headers=dict(head.headers), body=bytes(body))

    async def first_bytes(self) -> None:
        """Wait for the first of an answer's body, or its end.

        Raises:
            Broken: there is none.
        """
        while not isinstance(await self._event(), (h11.Data, h11.EndOfMessage)):
            pass

    @property
    def usable(self) -> bool:
        """Whether another request can be sent."""
        return self._state.our_state in (h11.IDLE, h11.DONE) and self._state.their_state in (h11.IDLE, h11.DONE)

    def close(self) -> None:
        """Close the connection."""
        self._stream.socket.close()

    def reset(self) -> None:
        """Close it as a client does that has crashed, without a farewell."""
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.close()

    async def _event(self) -> h11.Event:
        try:
            while (event := self._state.next_event()) is h11.NEED_DATA:
                self._state.receive_data(await self._stream.receive_some(_READ_BYTES))
        except (h11.RemoteProtocolError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise Broken(f"no whole answer: {type(error).__name__}") from error
        if isinstance(event, h11.ConnectionClosed) or not isinstance(event, h11.Event):
            raise Broken("the connection was closed")
        return event
