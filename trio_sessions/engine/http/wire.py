"""A connection to a server: its bytes, whether it is quiet, and how it is opened.

Closing is synchronous, so that no cancellation can come between.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import httpx
import trio

__all__ = ["Origin", "Wire", "connect"]

# Answers come in few large pieces rather than in many small ones.
_RECEIVE_BYTES: Final = 256 * 1024
# Encrypted, it is sent in parts that the kernel takes whatever the other side does, as sending cannot end in between.
_ENCRYPT_BYTES: Final = 32 * 1024


@dataclass(frozen=True, slots=True)
class Origin:
    """Whom a connection leads to.

    Attributes:
        tls: whether it is encrypted.
        host: name or address, without the brackets of IPv6.
        port: TCP port.
    """

    tls: bool
    host: str
    port: int


class Wire(Protocol):
    """A connection. After any error, or after a call was cancelled, it is good for nothing but closing.

    Attributes:
        tells_what_it_sent: whether ``send`` has sent nothing at all when it raises.
    """

    tells_what_it_sent: bool

    async def send(self, data: bytes | memoryview) -> int:
        """Send the beginning of ``data``, as much as is taken at once, and say how much that was.

        Raises:
            httpx.WriteError: the connection is broken.
        """

    async def receive(self) -> bytes:
        """What has come; nothing if the server has closed.

        Raises:
            httpx.ReadError: the connection is broken.
        """

    async def is_quiet(self) -> bool:
        """Whether the server has neither sent anything nor closed since the last answer."""

    def close(self) -> None:
        """Close it at once. Closing twice is no error."""


class _PlainWire:
    """A connection that is not encrypted."""

    __slots__ = ("_socket",)
    tells_what_it_sent = True

    def __init__(self, stream: trio.SocketStream) -> None:
        self._socket = stream.socket

    async def send(self, data: bytes | memoryview) -> int:
        try:
            return await self._socket.send(data)
        except (OSError, trio.ClosedResourceError) as error:
            raise httpx.WriteError(str(error)) from error

    async def receive(self) -> bytes:
        try:
            return await self._socket.recv(_RECEIVE_BYTES)
        except (OSError, trio.ClosedResourceError) as error:
            raise httpx.ReadError(str(error)) from error

    async def is_quiet(self) -> bool:
        return not self._socket.is_readable()

    def close(self) -> None:
        _close(self._socket)


class _Silence(Exception):
    """Nothing has come."""


class _Underneath(trio.abc.Stream):
    """The connection below the encryption. While it is ``probed``, receiving does not wait."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.socket = stream.socket
        self.probed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self.probed:
            raise _Silence
        return await self._stream.receive_some(max_bytes or _RECEIVE_BYTES)

    async def aclose(self) -> None:
        await self._stream.aclose()


class _TlsWire:
    """An encrypted connection."""

    __slots__ = ("_stream", "_underneath")
    # Of what was given to the encryption, some may have been sent.
    tells_what_it_sent = False

    def __init__(self, stream: trio.SSLStream[_Underneath], underneath: _Underneath) -> None:
        self._stream = stream
        self._underneath = underneath

    async def send(self, data: bytes | memoryview) -> int:
        part = data[:_ENCRYPT_BYTES]
        try:
            await self._stream.send_all(part)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpx.WriteError(_reason(error)) from error
        return len(part)

    async def receive(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some(_RECEIVE_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpx.ReadError(_reason(error)) from error

    async def is_quiet(self) -> bool:
        if self._underneath.socket.is_readable():
            return False
        # What was received with the last answer may be waiting to be decrypted.
        self._underneath.probed = True
        try:
            await self._stream.receive_some(1)
        except _Silence:
            return True
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        finally:
            self._underneath.probed = False
        return False

    def close(self) -> None:
        # As browsers do: what ends an answer is its length, so that a farewell would be one more thing to wait for.
        _close(self._underneath.socket)


async def connect(origin: Origin, tls: ssl.SSLContext | None) -> Wire:
    """A new connection; a name with several addresses is tried as by RFC 6555.

    Raises:
        httpx.ConnectError: nobody answers there, or it cannot be trusted.
        httpx.UnsupportedProtocol: it is to be encrypted, and there is no context for that.
    """
    if origin.tls and tls is None:
        raise httpx.UnsupportedProtocol("https needs a TLS context, and this transport was given none")
    try:
        stream = await trio.open_tcp_stream(origin.host, origin.port)
    # The second for a name that cannot be one.
    except (OSError, UnicodeError) as error:
        raise httpx.ConnectError(str(error)) from error
    try:
        if tls is None or not origin.tls:
            return _PlainWire(stream)
        underneath = _Underneath(stream)
        encrypted = trio.SSLStream(underneath, tls, server_hostname=origin.host, https_compatible=True)
        await encrypted.do_handshake()
    except trio.BrokenResourceError as error:
        _close(stream.socket)
        raise httpx.ConnectError(_reason(error)) from error
    except BaseException:
        _close(stream.socket)
        raise
    return _TlsWire(encrypted, underneath)


def _close(socket: trio.socket.SocketType) -> None:
    # A reset that is told of on closing changes nothing.
    with suppress(OSError):
        socket.close()


def _reason(error: Exception) -> str:
    return str(error) or str(error.__cause__ or type(error).__name__)
