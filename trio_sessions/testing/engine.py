"""An engine that answers what a test tells it to, behind the protocol of the real client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from trio_sessions.core import json
from trio_sessions.engine.base import EngineAnswer, EngineCall
from trio_sessions.testing.toy import sampled_ids

__all__ = ["HeldCall", "HeldCalls", "ScriptedEngine", "chat_answer"]

Answer = EngineAnswer | Exception | Callable[[EngineCall], Awaitable[EngineAnswer]]


def chat_answer(
    text: str = "ok",
    *,
    token_ids: Sequence[int] | None = None,
    finish_reason: str = "stop",
    message: dict[str, Any] | None = None,
    meta_info: dict[str, Any] | None = None,
    **fields: Any,
) -> EngineAnswer:
    """A usable 200 answer of SGLang's chat route.

    Args:
        text: the assistant's content.
        token_ids: what was sampled; by default ids that spell ``text`` in no canonical way, and a stop id.
        finish_reason: of the choice.
        message: replaces the assistant message.
        meta_info: adds to, or replaces in, the choice's meta info.
        **fields: add to, or replace in, the answer.
    """
    ids = list(sampled_ids(text) if token_ids is None else token_ids)
    answer = {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "scripted",
        "choices": [
            {
                "index": 0,
                "message": message or {"role": "assistant", "content": text},
                "finish_reason": finish_reason,
                "meta_info": {
                    "output_token_logprobs": [[-0.25 - index / 1024, id_, None] for index, id_ in enumerate(ids)],
                    "completion_tokens": len(ids),
                    **(meta_info or {}),
                },
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": len(ids), "total_tokens": 1 + len(ids)},
        **fields,
    }
    return EngineAnswer(status=200, headers=(("content-type", "application/json"),), body=json.encode(answer))


@dataclass(eq=False)
class HeldCall:
    """A call that waits for its answer.

    Attributes:
        request: the call.
    """

    request: EngineCall
    _answer: EngineAnswer | Exception | None = field(default=None, repr=False)
    _answered: trio.Event = field(default_factory=trio.Event, repr=False)

    def answer(self, answer: EngineAnswer | Exception) -> None:
        """Give it its answer, or the error to raise. The caller goes on when it is next scheduled."""
        self._answer = answer
        self._answered.set()

    async def wait(self) -> EngineAnswer:
        """The answer, once there is one."""
        await self._answered.wait()
        assert self._answer is not None
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class HeldCalls:
    """A step for ``ScriptedEngine`` that lets a test answer calls when, and in what order, it likes.

    Attributes:
        waiting: the calls that are neither answered nor cancelled, oldest first.
    """

    def __init__(self) -> None:
        self.waiting: list[HeldCall] = []

    async def __call__(self, request: EngineCall) -> EngineAnswer:
        """Hold one call."""
        call = HeldCall(request)
        self.waiting.append(call)
        try:
            return await call.wait()
        finally:
            self.waiting.remove(call)


class ScriptedEngine:
    """Answers its script in order; once that is used up, every call gets the same.

    Args:
        *script: see the attribute.
        otherwise: the step for calls that the script does not reach; None stands for ``chat_answer()``.

    Attributes:
        script: answers still to give: an answer, an error to raise, or an async function of the call.
        calls: every call so far.
        cancelled: how many calls were cancelled before they were answered.
        in_flight: calls being answered now.
    """

    def __init__(self, *script: Answer, otherwise: Answer | None = None) -> None:
        self.script: list[Answer] = list(script)
        self._otherwise: Answer = chat_answer() if otherwise is None else otherwise
        self.calls: list[EngineCall] = []
        self.cancelled = 0
        self.in_flight = 0

    async def call(self, request: EngineCall) -> EngineAnswer:
        """See ``Engine.call``."""
        self.calls.append(request)
        step = self.script.pop(0) if self.script else self._otherwise
        self.in_flight += 1
        try:
            await trio.lowlevel.checkpoint()
            if isinstance(step, Exception):
                raise step
            return step if isinstance(step, EngineAnswer) else await step(request)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1

    async def stream(self, request: EngineCall, take: Callable[[bytes], Awaitable[None]]) -> EngineAnswer:
        """See ``Engine.stream``; a body comes in one piece."""
        answer = await self.call(request)
        if answer.status != 200:
            return answer
        await take(answer.body)
        return EngineAnswer(status=200, headers=answer.headers, body=b"")

    def body(self, index: int = -1) -> dict[str, Any]:
        """The decoded body of a call."""
        decoded: dict[str, Any] = json.decode(self.calls[index].body)
        return decoded
