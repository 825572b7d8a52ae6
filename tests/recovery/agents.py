"""Agents that write down what they were answered, and go on behind a crash."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import httpx
import trio

from tests.recovery.answers import Book, LinearBook, Tally, TreeBook, Turn

SECONDS = 60.0
_LONGEST = 7
_BROADEST = 12
_MOST_KEPT = 40


class Ended(Exception):
    """The server takes nothing more, and said so."""


@dataclass
class Crowd:
    """Many agents of one server, and all of their sessions.

    Attributes:
        tree: whether sessions branch.
        relaxed: whether the last turns may be missing after a crash.
        rng: decides everything.
        agents: how many agents there are.
        tally: what was checked.
        books: of all sessions that are to be there.
    """

    tree: bool
    relaxed: bool
    rng: random.Random
    agents: int = 8
    tally: Tally = field(default_factory=Tally)
    books: list[Book] = field(default_factory=list)
    _count: Callable[[], int] = field(default_factory=lambda: partial(next, itertools.count()))

    async def check(self, url: str) -> None:
        """All that was answered is there, as far as the server lives to say so."""
        waiting = list(self.books)
        async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as client, trio.open_nursery() as nursery:

            async def check_some() -> None:
                with suppress(httpx.TransportError):
                    while waiting:
                        await self._check(client, waiting.pop())

            for _ in range(self.agents):
                nursery.start_soon(check_some)

    async def run(self, url: str) -> None:
        """Take turns until the server is gone."""
        waiting = list(self.books)
        self.rng.shuffle(waiting)
        async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as client, trio.open_nursery() as nursery:
            for _ in range(self.agents):
                nursery.start_soon(self._work, client, waiting)

    async def _check(self, client: httpx.AsyncClient, book: Book) -> None:
        state = await client.get(f"/sessions/{book.id}")
        samples = await client.post(f"/sessions/{book.id}/samples")
        assert samples.status_code == state.status_code, samples.text
        if not book.settle(state.status_code, state.content, samples.content):
            self.books.remove(book)

    async def _work(self, client: httpx.AsyncClient, waiting: list[Book]) -> None:
        try:
            while True:
                book = waiting.pop() if waiting else await self._create(client)
                await (self._branch if isinstance(book, TreeBook) else self._extend)(client, book)
                if len(self.books) > _MOST_KEPT or self.rng.random() < 0.3:
                    await self._delete(client, book)
        except (httpx.TransportError, Ended):
            return

    async def _create(self, client: httpx.AsyncClient) -> Book:
        answer = await client.post("/sessions")
        _refuse_the_end(answer)
        assert answer.status_code == 200, answer.text
        kind = TreeBook if self.tree else LinearBook
        book = kind(answer.json()["session_id"], self.tally, self.relaxed)
        self.books.append(book)
        return book

    async def _delete(self, client: httpx.AsyncClient, book: Book) -> None:
        book.deletion = "asked"
        answer = await client.delete(f"/sessions/{book.id}")
        assert answer.status_code == 204, answer.text
        book.deletion = "answered"

    async def _extend(self, client: httpx.AsyncClient, book: Book) -> None:
        assert isinstance(book, LinearBook)
        for turn in list(book.pending):
            book.pending.clear()
            await self._send(client, book, turn.messages)
        while len(book.turns) < _LONGEST and self.rng.random() < 0.9:
            if book.turns and self.rng.random() < 0.2:
                # A retry takes the place of the last turn.
                book.replaces = True
                await self._send(client, book, book.turns[-1].messages)
            else:
                before = book.turns[-1].conversation if book.turns else []
                await self._send(client, book, [*before, self._question()])
            if self.rng.random() < 0.2:
                await self._look(client, book)

    async def _branch(self, client: httpx.AsyncClient, book: Book) -> None:
        assert isinstance(book, TreeBook)
        again, book.pending = book.pending, []
        async with trio.open_nursery() as nursery:
            for turn in again:
                nursery.start_soon(self._sending, client, book, turn.messages, turn.parent)
        while len(book.turns) < _BROADEST and self.rng.random() < 0.8:
            # What was found in the records alone cannot be spelled.
            known = [turn for turn in book.turns if turn.answer is not None and turn.answer.message]
            async with trio.open_nursery() as nursery:
                for _ in range(self.rng.choice([1, 1, 2, 3])):
                    parent = self.rng.choice([None, *known[-4:]])
                    before = [] if parent is None else parent.conversation
                    nursery.start_soon(self._sending, client, book, [*before, self._question()], parent)
            if book.pending:
                return
            if self.rng.random() < 0.2:
                await self._look(client, book)

    async def _sending(self, *args: object) -> None:
        # Of several that break at once, each is the same crash.
        with suppress(httpx.TransportError, Ended):
            await self._send(*args)  # type: ignore[arg-type]

    async def _send(
        self,
        client: httpx.AsyncClient,
        book: LinearBook | TreeBook,
        messages: list[dict[str, str]],
        parent: Turn | None = None,
    ) -> None:
        turn = Turn(messages, self._count(), stream=self.rng.random() < 0.3, parent=parent)
        book.pending.append(turn)
        body = {"messages": messages, "max_tokens": self.rng.choice([4, 30, 60]), "stream": turn.stream}
        answer = await client.post(f"/sessions/{book.id}/v1/chat/completions", json=body)
        if answer.status_code == 503:
            # Which says that nothing was recorded.
            book.pending.remove(turn)
            book.replaces = False
        _refuse_the_end(answer)
        assert answer.status_code == 200, answer.text
        turn.answer_with(answer.content, self._count())
        book.answered(turn)

    async def _look(self, client: httpx.AsyncClient, book: Book) -> None:
        state = await client.get(f"/sessions/{book.id}")
        samples = await client.post(f"/sessions/{book.id}/samples")
        assert (state.status_code, samples.status_code) == (200, 200)
        book.see(state.content, samples.content)

    def _question(self) -> dict[str, str]:
        return {"role": "user", "content": f"Question {self._count()}: how is the weather in Zürich?"}


def _refuse_the_end(answer: httpx.Response) -> None:
    if answer.status_code == 503:
        assert "shutting down" in answer.text
        raise Ended
