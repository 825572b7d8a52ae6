"""A streamed chat turn whose client reads as it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.web.support import CHAT, Session, user

__all__ = ["BODY", "COMMENT", "Reading", "opened"]

BODY = {"messages": [user("hi")], "stream": True}
COMMENT = b": waiting for the engine\n\n"


class Reading:
    """A streamed response, read as it comes."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.received = b""
        self._chunks = response.aiter_raw()

    async def until(self, mark: bytes, *, after: int = 0) -> None:
        while mark not in self.received[after:]:
            self.received += await anext(self._chunks)

    async def rest(self) -> bytes:
        async for chunk in self._chunks:
            self.received += chunk
        return self.received


@asynccontextmanager
async def opened(session: Session, **fields: Any) -> AsyncIterator[Reading]:
    async with session.served.client.stream("POST", f"{session.path}/{CHAT}", json={**BODY, **fields}) as response:
        yield Reading(response)
