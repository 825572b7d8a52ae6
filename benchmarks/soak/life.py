"""One session's life: what its agent knows, and the connection it talks over."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from benchmarks.load.http import Answer
from benchmarks.soak.dialects import Dialect
from benchmarks.soak.peer import Broken, Peer
from benchmarks.soak.tally import Tally

__all__ = ["Life", "Line"]

_WORDS: Final = "what is structured concurrency and which library closed at nine in bergen with an apology"


class Line:
    """The well-behaved connection of an agent, opened again when it is needed; close it with ``close``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._peer: Peer | None = None

    async def request(self, method: str, path: str, *, body: bytes = b"", headers: dict[str, str]) -> Answer:
        """Send a request and wait for its answer.

        Raises:
            Broken: there is none.
        """
        if self._peer is None or not self._peer.usable:
            self.close()
            self._peer = await Peer.connect(self.url)
        return await self._peer.request(method, path, body=body, headers=headers)

    def close(self) -> None:
        """Close it."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None


class Life:
    """A session from its creation to its deletion.

    The agent goes on from the last answer that it is sure of. What it sent and did not see answered, it does not send
    again but for other words: in linear mode that is a retry of the last turn, in tree mode a branch.

    Attributes:
        path: of the session.
        dialect: of its turns.
        draw: what decides.
        tally: where to count.
    """

    def __init__(self, line: Line, path: str, dialect: Dialect, draw: random.Random, tally: Tally) -> None:
        self._line = line
        self.path = path
        self.dialect = dialect
        self.draw = draw
        self.tally = tally
        self._history: list[dict[str, Any]] = []
        self._pending: list[dict[str, Any]] = []

    def next_items(self) -> list[dict[str, Any]]:
        """The conversation with something new to answer."""
        return [*self._history, *self._pending, {"role": "user", "content": self.text()}]

    def text(self) -> str:
        """A few words or, seldom, many."""
        words = _WORDS.split()
        # So many that they are encoded in a worker thread, and so is the request that has them.
        count = 12_000 if self.draw.random() < 0.01 else self.draw.randrange(3, 40)
        return " ".join(self.draw.choice(words) for _ in range(count))

    def go_on_from(self, items: list[dict[str, Any]], answer: Answer) -> None:
        """``items`` were answered."""
        said = self.dialect.said(answer.body)
        self._history = [*items, *said]
        self._pending = self.dialect.results(said, self.text())

    @property
    def turn_path(self) -> str:
        """Where turns go."""
        return f"{self.path}/{self.dialect.path}"

    async def request(
        self, method: str, path: str, *, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Answer:
        """A request over the agent's own connection.

        Raises:
            Broken: there is no answer.
        """
        return await self._line.request(method, path, body=body, headers=headers or {})

    @asynccontextmanager
    async def stranger(self, *, reads_little: bool = False) -> AsyncIterator[Peer]:
        """Another connection, which ends with the block, in one way or another."""
        peer = await Peer.connect(self._line.url, reads_little=reads_little)
        try:
            yield peer
        finally:
            if self.draw.random() < 0.5:
                peer.reset()
            else:
                peer.close()

    async def aside(self, body: bytes, *, headers: dict[str, str] | None = None, path: str = "") -> Answer | None:
        """A turn over another connection; None where it breaks."""
        async with self.stranger() as peer:
            try:
                return await peer.request("POST", path or self.turn_path, body=body, headers=headers or {})
            except Broken:
                return None

    @staticmethod
    async def begin(line: Line, dialect: Dialect, draw: random.Random, tally: Tally) -> Life | None:
        """A new session, or None where the server makes none."""
        answer = await line.request("POST", "/sessions", headers={})
        if not tally.answered("create", answer, 200):
            return None
        session = msgspec.json.decode(answer.body)["session_id"]
        return Life(line, f"/sessions/{session}", dialect, draw, tally)
