"""Conversations to measure with."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["agent_conversation", "conversation", "said"]


def said(role: str, number: int) -> dict[str, Any]:
    """A message of about 150 tokens, another for every number."""
    text = f"Message {number}: " + "the build is green, the tests passed, and the report says why. " * 10
    return {"role": role, "content": text}


def conversation(length: int) -> list[dict[str, Any]]:
    """A user and an assistant in turn, the assistant last."""
    return [said("user" if index % 2 == 0 else "assistant", index) for index in range(length)]


def agent_conversation(size: int, *, indent: int | None = None) -> list[dict[str, Any]]:
    """Calls of a tool and their results, as much as makes a body of about ``size`` bytes.

    Args:
        size: of the body.
        indent: how the arguments of calls are spelled.
    """
    pairs = max(1, size // len(json.dumps(_call_and_result(1, indent=None))))
    return [said("user", 0), *(m for number in range(pairs) for m in _call_and_result(number, indent=indent))]


def _call_and_result(number: int, *, indent: int | None) -> list[dict[str, Any]]:
    arguments = json.dumps({"command": f"make test-{number}", "timeout": 60}, indent=indent)
    function = {"name": "run", "arguments": arguments}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return [{**said("assistant", number), "tool_calls": [call]}, {**said("tool", number), "tool_call_id": call["id"]}]
