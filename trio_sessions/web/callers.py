"""Who calls, from what agents put into their headers.

Sources: the requests of Claude Code, Codex, opencode and pi; docs/agents.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from trio_sessions.core.caller import NOBODY, Caller
from trio_sessions.engine.base import Headers

__all__ = ["CALLER_HEADERS", "caller_of"]

_Part: TypeAlias = Literal["agent", "thread", "parent"]

CALLER_HEADERS: Final[Mapping[str, _Part]] = {
    "x-claude-code-agent-id": "agent",
    "x-claude-code-session-id": "thread",
    "x-openai-subagent": "agent",
    "thread-id": "thread",
    "x-codex-parent-thread-id": "parent",
    "session_id": "thread",
    "x-session-id": "thread",
    "x-parent-session-id": "parent",
}
"""Header, in lower case, and what it says of the caller."""

_LONGEST: Final = 256


def caller_of(headers: Headers, *, agent: str | None = None) -> Caller:
    """The caller of a request.

    Args:
        headers: names in lower case; of one that is repeated the first counts, and what is longer than anybody's id is
            cut.
        agent: the name in the request's path, which goes before any header; cut likewise.
    """
    said: dict[_Part, str] = {} if agent is None else {"agent": agent[:_LONGEST]}
    for name, value in headers:
        part = CALLER_HEADERS.get(name)
        if part is not None and value:
            said.setdefault(part, value[:_LONGEST])
    if not said:
        return NOBODY
    return Caller(agent=said.get("agent"), thread=said.get("thread"), parent=said.get("parent"))
