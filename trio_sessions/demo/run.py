"""The demo from start to end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import httpx
import trio

from trio_sessions.config import Settings
from trio_sessions.demo.agent import Conversation, converse
from trio_sessions.demo.failure import DemoFailed
from trio_sessions.demo.trace import Trace, trace_session

__all__ = ["Demonstration", "run_demo"]

_HOST: Final = "127.0.0.1"
_TIMEOUT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What came of the demo.

    Attributes:
        messages: the conversation as the agent saw it.
        trace: its tokens, checked to be exact.
        pieces: the text of each token, per segment of ``trace``.
        encoded_again: how many tokens the tokenizer makes of the same text.
    """

    messages: Sequence[Mapping[str, Any]]
    trace: Trace
    pieces: Sequence[Sequence[str]]
    encoded_again: int


async def run_demo(*, seed: int) -> Demonstration:
    """Run the agent against an embedded engine and a gateway on free ports.

    Args:
        seed: of what the engine samples; the same seed gives the same tokens.

    Raises:
        ExceptionGroup: of ``DemoFailed`` when a request was refused or the tokens are not exact, or of whatever made a
            service crash.
    """
    async with _gateway(seed) as base_url, httpx.AsyncClient(base_url=base_url, timeout=_TIMEOUT_SECONDS) as client:
        try:
            conversation = await converse(client)
            return await _read_back(client, conversation)
        except httpx.HTTPError as error:
            raise DemoFailed(f"{type(error).__name__}: {error}") from error


@asynccontextmanager
async def _gateway(seed: int) -> AsyncIterator[str]:
    """A running gateway's base URL; its engine and it end with the body."""
    # What these import takes seconds to load, so only a demo that runs pays for it.
    from trio_sessions.engine.embedded import EmbeddedEngine, serve_engine
    from trio_sessions.serve import serve

    engine = EmbeddedEngine(seed=seed)
    async with trio.open_nursery() as nursery:
        engine_url = await nursery.start(partial(serve_engine, engine, host=_HOST, port=0))
        running = await nursery.start(serve, Settings(host=_HOST, port=0, engine=engine_url))
        yield running.base_url
        nursery.cancel_scope.cancel()


async def _read_back(client: httpx.AsyncClient, conversation: Conversation) -> Demonstration:
    """Everything about the session, its text by way of the engine's tokenizer."""
    path = f"/sessions/{conversation.session_id}"
    response = await client.get(path)
    response.raise_for_status()
    trace = trace_session(response.json())
    token_ids = trace.sample().tokens
    # One token each, then all of them: bytes of one character may be spread over several tokens.
    tokens = [*([token_id] for token_id in token_ids), list(token_ids)]
    response = await client.post(f"{path}/detokenize", json={"tokens": tokens, "skip_special_tokens": False})
    response.raise_for_status()
    *texts, text = response.json()["text"]
    response = await client.post(f"{path}/tokenize", json={"prompt": text, "add_special_tokens": False})
    response.raise_for_status()
    rest = iter(texts)
    return Demonstration(
        messages=conversation.messages,
        trace=trace,
        pieces=[[next(rest) for _ in segment.token_ids] for segment in trace.segments],
        encoded_again=len(response.json()["tokens"]),
    )
