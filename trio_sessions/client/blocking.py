"""The client that blocks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self, TypeVar, cast

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

__all__ = ["Client", "Session"]

Result = TypeVar("Result")


class Client:
    """A gateway, as one that blocks sees it. Use as a context manager, or ``close`` it; threads may share it.

    Args:
        base_url: where the gateway is, such as ``http://127.0.0.1:8700``.
        api_key: a key of the gateway, or the token of a session; None takes the environment variable
            TRIO_SESSIONS_API_KEY, if there is one.
        timeout: seconds that a call may wait for the next byte of its answer.
        retry: how often calls are tried that are safe to try again: those that were not sent, and those that change
            nothing or nothing more when they arrive twice. A turn that may have arrived is never sent again.
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
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.base_url = check_base_url(base_url)
        self.timeout = check_timeout(timeout)
        self.retry = retry or RetryPolicy()
        self._sleep = sleep
        self._jitter = jitter
        self._http = httpx.Client(**client_options(self.base_url, headers, api_key))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; sessions stay."""
        self._http.close()

    def health(self) -> Health:
        """Whether the gateway answers, and which it is."""
        return self._run(wire.health())

    def create_session(self) -> Session:
        """A new session, which lives until it is deleted."""
        created = self._run(wire.create_session())
        return Session(self, created.session_id, created.worker, created.token)

    def attach(self, session_id: str) -> Session:
        """A session that exists already; nothing is sent."""
        return Session(self, session_id)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A new session that is deleted at the end of the block, however it ends."""
        session = self.create_session()
        try:
            yield session
        except BaseException:
            # What went wrong in the block is what the caller has to see, and soon.
            with suppress(ClientError):
                self._run(wire.delete(session.id), session._place, timeout=min(self.timeout, LAST_WORD_SECONDS))
            raise
        with suppress(SessionNotFound):
            session.delete()

    def _run(self, call: Call[Result], place: Place | None = None, *, timeout: float | None = None) -> Result:
        place = place or Place(self.base_url)
        attempts = Attempts(call, self.retry, self._jitter, gateway=place.url)
        while True:
            try:
                response = self._http.request(**request_options(call, timeout or self.timeout, place))
            except httpx.HTTPError as error:
                place.failed(error)
                verdict: Any = attempts.failed(error)
            else:
                verdict = attempts.answered(answer_of(response))
            if isinstance(verdict, Done):
                return cast("Result", verdict.result)
            self._sleep(verdict.seconds)


class Session:
    """One session of a gateway: one rollout.

    Attributes:
        id: its id.
        token: opens the model routes of this session and nothing else, for its agents; None where the gateway has no
            keys, or the session was not created here.
    """

    def __init__(self, client: Client, session_id: str, worker: str | None = None, token: str | None = None) -> None:
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

    def chat(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> ChatCompletion:
        """One turn.

        Args:
            messages: the conversation so far, assistant messages as they were answered.
            fields: anything else of a chat request, such as ``tools`` or ``temperature``.

        Raises:
            ValueError: the request is not JSON, or asks for a stream.
            ClientError: see ``trio_sessions.client.errors``.
        """
        return self._client._run(wire.chat(self.id, messages, fields), self._place)

    def read(self) -> SessionState:
        """Records and metadata."""
        return self._client._run(wire.read(self.id), self._place)

    def samples(
        self,
        max_seq_len: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        rewards: Mapping[str, float] | None = None,
    ) -> SamplesReply:
        """Training samples; the session stays as it is.

        Args:
            max_seq_len: longest sample in ids.
            metadata: goes into every sample's metadata; its ``reward`` is every sample's (tree mode).
            rewards: rewards of branches by the ``response_id`` of a turn (tree mode).

        Raises:
            AssemblyFailed: the session's turns do not make samples.
            ValueError: the request is not JSON.
            ClientError: see ``trio_sessions.client.errors``.
        """
        call = wire.samples(self.id, max_seq_len=max_seq_len, metadata=metadata, rewards=rewards)
        return self._client._run(call, self._place)

    def delete(self) -> None:
        """End it.

        Raises:
            SessionNotFound: there was no such session; not when an earlier attempt of this call may have deleted it.
            ClientError: see ``trio_sessions.client.errors``.
        """
        self._client._run(wire.delete(self.id), self._place)
