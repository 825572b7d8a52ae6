"""Message matchers: does a replayed message say what a stored one says?

A matcher is a synchronous ``(stored, replayed) -> bool``. It decides only whether history is reused; on a match the
*stored* message, and the ids that were sampled for it, stay authoritative.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trio_sessions.core.matchers.agent import agent
from trio_sessions.core.matchers.base import Matcher, matching_prefix_length
from trio_sessions.core.matchers.content import BILLING_PREFIX
from trio_sessions.core.matchers.equality import identical
from trio_sessions.core.matchers.loose import loose_tool_call
from trio_sessions.core.matchers.strict import differing_fields, role_content_only, strict

__all__ = [
    "BILLING_PREFIX",
    "MATCHERS",
    "Matcher",
    "agent",
    "differing_fields",
    "identical",
    "loose_tool_call",
    "matching_prefix_length",
    "role_content_only",
    "strict",
]

MATCHERS: Final[Mapping[str, Matcher]] = {
    "strict": strict,
    "loose_tool_call": loose_tool_call,
    "role_content_only": role_content_only,
    "agent": agent,
}
