"""Who makes a request of a session, and what for, as far as that is said."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

__all__ = ["NOBODY", "Caller", "Purpose"]

Purpose: TypeAlias = Literal["title", "summary"]
"""What a side request is for: a ``title`` of the conversation, or a ``summary`` that replaces its beginning."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of one turn.

    Attributes:
        agent: name of the agent, or of the kind of sub-agent; None where there is only one.
        thread: the agent's own id of the conversation.
        parent: the thread that started this one.
        purpose: what a side request is for; None for turns of the task itself.
    """

    agent: str | None = None
    thread: str | None = None
    parent: str | None = None
    purpose: Purpose | None = None

    def is_same_as(self, other: Caller) -> bool:
        """Whether both are the same agent in the same conversation, whatever for."""
        return self.agent == other.agent and self.thread == other.thread

    def to_json(self) -> dict[str, Any]:
        """What is known of it, JSON-like; empty for ``NOBODY``."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


NOBODY = Caller()
"""A caller that says nothing of itself."""
