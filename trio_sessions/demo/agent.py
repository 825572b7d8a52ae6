"""A small agent that knows nothing of tokens: it speaks the chat API and uses a tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import httpx

from trio_sessions.demo.failure import DemoFailed
from trio_sessions.demo.tools import TOOLS, execute

__all__ = ["TURNS", "Conversation", "converse"]

TURNS: Final = 3

_SYSTEM: Final = "You are a helpful assistant. Use the tool when you need it, and keep the answer short."
_QUESTIONS: Final = ("What is the weather in Oslo?", "Thank you. Do I need a coat there?", "And tomorrow?")


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said, and where it is kept.

    Attributes:
        session_id: the session's id.
        messages: everything the agent saw, in order.
    """

    session_id: str
    messages: list[dict[str, Any]]


async def converse(client: httpx.AsyncClient) -> Conversation:
    """Hold a conversation of ``TURNS`` turns: a tool call, the answer to its result, and one more question.

    Args:
        client: speaks to a gateway; its base URL is the gateway's.

    Raises:
        DemoFailed: the gateway refused a request.
    """
    session_id = (await _post(client, "/sessions"))["session_id"]
    questions = iter(_QUESTIONS)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": _SYSTEM},
        {"role": "user", "content": next(questions)},
    ]
    for turn in range(TURNS):
        answer = await _post(
            client,
            f"/sessions/{session_id}/v1/chat/completions",
            {
                "model": "default",
                "messages": messages,
                "tools": TOOLS,
                "tool_choice": "required" if turn == 0 else "none",
                "max_tokens": 200,
            },
        )
        message = answer["choices"][0]["message"]
        messages.append(message)
        if turn < TURNS - 1:
            messages.extend(_tool_results(message) or [{"role": "user", "content": next(questions)}])
    return Conversation(session_id, messages)


def _tool_results(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "role": "tool",
            "tool_call_id": call["id"],
            "content": execute(call["function"]["name"], call["function"]["arguments"]),
        }
        for call in message.get("tool_calls") or ()
    ]


async def _post(client: httpx.AsyncClient, path: str, body: Any = None) -> Any:
    response = await client.post(path, json=body)
    if response.status_code != httpx.codes.OK:
        raise DemoFailed(f"POST {path} answered {response.status_code}: {response.text[:500]}")
    return response.json()
