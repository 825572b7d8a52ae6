"""What the session has stored of answers that a request names by ids which dialects issued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trio_sessions.core.history import Checkpoint
from trio_sessions.service.dialect import Reading

__all__ = ["last_answered", "stored_call", "stored_message"]


def stored_message(reading: Reading, response_id: str) -> Mapping[str, Any] | None:
    """The assistant's message of an answer; None where the session does not have it, or no longer."""
    checkpoint = reading.answered(response_id)
    return None if checkpoint is None else checkpoint.messages[-1]


def stored_call(reading: Reading, response_id: str, index: int) -> Mapping[str, Any] | None:
    """The tool call of that index in the message of an answer; None where there is none."""
    message = stored_message(reading, response_id)
    calls = (message or {}).get("tool_calls") or ()
    return calls[index] if index < len(calls) and isinstance(calls[index], Mapping) else None


def last_answered(reading: Reading, response_ids: Sequence[str]) -> Checkpoint | None:
    """The turn of the last of these response ids that the session has; None where it has none."""
    return next((turn for id_ in reversed(response_ids) if (turn := reading.answered(id_)) is not None), None)
