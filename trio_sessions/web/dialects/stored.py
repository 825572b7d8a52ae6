"""Answers of the session that a request names by ids which dialects issued."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trio_sessions.service.dialect import Reading

__all__ = ["StoredAnswers"]


class StoredAnswers:
    """The messages of one session's answers, each looked for once: that takes as long as the session has turns.

    Args:
        reading: of the request that names them.
    """

    def __init__(self, reading: Reading) -> None:
        self._answered = reading.answered
        self._messages: dict[str, Mapping[str, Any] | None] = {}

    def message(self, response_id: str) -> Mapping[str, Any] | None:
        """The assistant's message as it is stored; None where the session does not have it, or no longer."""
        if response_id not in self._messages:
            checkpoint = self._answered(response_id)
            self._messages[response_id] = None if checkpoint is None else checkpoint.messages[-1]
        return self._messages[response_id]

    def call(self, response_id: str, index: int) -> Mapping[str, Any] | None:
        """The tool call of that index in ``message``; None where there is none."""
        message = self.message(response_id)
        calls = (message or {}).get("tool_calls") or ()
        return calls[index] if index < len(calls) and isinstance(calls[index], Mapping) else None
