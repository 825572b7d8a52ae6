"""The client for trio and asyncio: ``blocking`` with ``await``, and cancellation."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import anyio
import httpx

from trio_sessions.client import wire
from trio_sessions.client.errors import ClientError, SessionNotFound
from trio_sessions.client.retry import Attempts, Done, RetryPolicy
from trio_sessions.client.transport import (
    DEFAULT_BASE_URL,
    DEFAULT_TIMEOUT,
    LAST_WORD_SECONDS,
    Place,
    answer_of,
    check_base_url,
    check_timeout,
    client_options,
    request_options,
)
from trio_sessions.client.wire import BaseUrls, Call, ChatCompletion, Health, SessionState
from trio_sessions.core.samples import SamplesReply

__all__ = ["AsyncClient", "AsyncSession"]

Result = TypeVar("Result")

# Samples with replay data take long to read; other tasks go on meanwhile.
_LONG_BYTES: Final = 1_000_000


class AsyncClient:
    """A gateway, under trio or asyncio. Use as an async context manager, or ``aclose`` it; tasks may share it.

    Cancelling a call closes its connection, on which the gateway gives the turn up and records nothing.

    Args:
        base_url: where the gateway is, such as ``http://127.0.0.1:8700``.
        api_key: a key of the gateway, or the token of a session; None takes the environment variable
            TRIO_SESSIONS_API_KEY, if there is one.
        timeout: seconds that a call may wait for the next byte of its answer.
        retry: see ``Client``.
        headers: sent with every request.
        sleep: waits between attempts.
        jitter: draws from 0 to 1.

    Raises:
        ConfigurationError: ``base_url`` is not a URL of a gateway, or ``timeout`` not a positive number, or ``api_key``
            not a key.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_BASE_URL,
        *,
        api_key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        retry: RetryPolicy | None = None,
        headers: Mapping[str, str] | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.base_url = check_base_url(base_url)
        self.timeout = check_timeout(timeout)
        self.retry = retry or RetryPolicy()
        self._sleep = sleep
        self._jitter = jitter
        self._http = httpx.AsyncClient(**client_options(self.base_url, headers, api_key))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; sessions stay."""
        # Sockets must be closed also when the block is left by cancellation.
        with anyio.CancelScope(shield=True):
            await self._http.aclose()

    async def health(self) -> Health:
        """Whether the gateway answers, and which it is."""
        return await self._run(wire.health())

    async def create_session(self) -> AsyncSession:
        """A new session, which lives until it is deleted."""
        created = await self._run(wire.create_session())
        return AsyncSession(self, created.session_id, created.worker, created.token)

    def attach(self, session_id: str) -> AsyncSession:
        """A session that exists already; nothing is sent."""
        return AsyncSession(self, session_id)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncSession]:
        """A new session that is deleted at the end of the block, however it ends; a cancelled block included."""
        session = await self.create_session()
        try:
            yield session
        except BaseException:
            # What went wrong in the block is what the caller has to see. One that is cancelled does not want to wait,
            # but a session that stays takes memory until the gateway ends.
            with suppress(ClientError), anyio.move_on_after(LAST_WORD_SECONDS, shield=True):
                await session.delete()
            raise
        try:
            with suppress(SessionNotFound):
                await session.delete()
        except anyio.get_cancelled_exc_class():
            with suppress(ClientError), anyio.move_on_after(LAST_WORD_SECONDS, shield=True):
                await session.delete()
            raise

    async def _run(self, call: Call[Result], place: Place | None = None) -> Result:
        place = place or Place(self.base_url)
        attempts = Attempts(call, self.retry, self._jitter, gateway=place.url)
        while True:
            try:
                response = await self._http.request(**request_options(call, self.timeout, place))
            except httpx.HTTPError as error:
                place.failed(error)
                verdict: Any = attempts.failed(error)
            else:
                answer = answer_of(response)
                if len(answer.body) < _LONG_BYTES:
                    verdict = attempts.answered(answer)
                else:
                    verdict = await anyio.to_thread.run_sync(attempts.answered, answer)
            if isinstance(verdict, Done):
                return cast("Result", verdict.result)
            await self._sleep(verdict.seconds)


class AsyncSession:
    """One session of a gateway: one rollout.

    Attributes:
        id: its id.
        token: opens the model routes of this session and nothing else, for its agents; None where the gateway has no
            keys, or the session was not created here.
    """

    def __init__(
        self, client: AsyncClient, session_id: str, worker: str | None = None, token: str | None = None
    ) -> None:
        self._client = client
        self._place = Place(client.base_url, worker)
        self.id = session_id
        self.token = token

    @property
    def base_url(self) -> str:
        """Where an OpenAI client finds it; see ``base_urls``."""
        return self.base_urls().openai

    def base_urls(self, *, agent: str | None = None) -> BaseUrls:
        """Where agents find it.

        Args:
            agent: a name for one of several agents that share the session, such as a sub-agent: it stays on branches of
                its own, and its samples carry the name. None for an agent that is alone, or says itself who it is.
        """
        return wire.base_urls(self._place.url, self.id, agent=agent)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self._client.base_url}>"

    async def chat(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> ChatCompletion:
        """One turn; see ``Session.chat``."""
        return await self._client._run(wire.chat(self.id, messages, fields), self._place)

    async def read(self) -> SessionState:
        """Records and metadata."""
        return await self._client._run(wire.read(self.id), self._place)

    async def samples(
        self,
        max_seq_len: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        rewards: Mapping[str, float] | None = None,
    ) -> SamplesReply:
        """Training samples; see ``Session.samples``."""
        call = wire.samples(self.id, max_seq_len=max_seq_len, metadata=metadata, rewards=rewards)
        return await self._client._run(call, self._place)

    async def delete(self) -> None:
        """End it; see ``Session.delete``."""
        await self._client._run(wire.delete(self.id), self._place)
