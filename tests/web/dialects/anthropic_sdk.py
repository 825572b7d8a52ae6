"""The official client, of a session on a real port."""

from __future__ import annotations

from typing import Any

import anthropic

from tests.web.support import LIMIT_SECONDS, Session

TOOLS: list[Any] = [
    {
        "name": "get_weather",
        "description": "The weather of a city.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
            "required": ["city"],
        },
    }
]


def sdk(session: Session, path: str = "") -> anthropic.AsyncAnthropic:
    """A client that retries nothing; close it."""
    return anthropic.AsyncAnthropic(
        base_url=f"http://127.0.0.1:{session.served.port}{session.path}{path}",
        api_key="unused",
        max_retries=0,
        timeout=LIMIT_SECONDS,
        # Loading certificates costs more than most of these tests.
        http_client=anthropic.DefaultAsyncHttpxClient(trust_env=False, verify=False),
    )


def asked(text: str = "hi", **fields: Any) -> dict[str, Any]:
    """A request of one user message."""
    return {**counted(text), "max_tokens": 100, **fields}


def counted(messages: Any) -> dict[str, Any]:
    """What is to be counted: messages, or the text of one."""
    return {
        "model": "m",
        "messages": [{"role": "user", "content": messages}] if isinstance(messages, str) else messages,
    }


def plain(message: Any) -> dict[str, Any]:
    """A message without what differs from answer to answer: its id, which signs the reasoning too."""
    decoded: dict[str, Any] = message.to_dict()
    assert decoded.pop("id").startswith("msg_")
    for block in decoded["content"]:
        assert block.pop("signature", "msg_").startswith("msg_")
    return decoded
