"""The least of an HTTP/1.1 client that a load generator needs: one connection, one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

__all__ = ["Answer", "Connection"]

_LARGEST_HEAD = 2**16


@dataclass(frozen=True, slots=True)
class Answer:
    """A response.

    Attributes:
        status: its status.
        headers: by name in lower case.
        body: the whole body.
    """

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes


class Connection:
    """A keep-alive connection; asyncio sets TCP_NODELAY on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader = reader
        self._writer = writer
        self._host = host

    @classmethod
    async def open(cls, url: str) -> Self:
        """Connect to the host and port of ``url``."""
        target = urlsplit(url)
        reader, writer = await asyncio.open_connection(target.hostname, target.port, limit=_LARGEST_HEAD)
        return cls(reader, writer, target.netloc)

    async def request(self, method: str, path: str, *, body: bytes = b"", headers: bytes = b"") -> Answer:
        """Send and wait for the answer.

        Args:
            method: of the request.
            path: with its query.
            body: JSON, or nothing.
            headers: more of them, each ended with CR LF.

        Raises:
            ValueError: the answer has no length, or its head is no HTTP.
            asyncio.IncompleteReadError: the server closed the connection.
        """
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
        )
        self._writer.write(b"".join((head.encode("latin-1"), headers, b"\r\n", body)))
        await self._writer.drain()
        return await self._receive()

    async def _receive(self) -> Answer:
        raw = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = raw[:-4].split(b"\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        status = int(first.split(b" ", 2)[1])
        length = 0 if status == 204 else int(fields[b"content-length"])
        return Answer(status=status, headers=fields, body=await self._reader.readexactly(length))

    async def close(self) -> None:
        """Close it."""
        self._writer.close()
        await self._writer.wait_closed()
