"""Hypothesis strategies for what a gateway sees: chat requests, engine answers, token lineages.

Every strategy yields plain JSON-like Python values or the bytes of a body, so that they can drive the pure core, a
running server or your own agent alike. Text and numbers are hostile by default: non-ASCII, control characters,
integers beyond 64 bits.
"""

try:
    import hypothesis  # noqa: F401
except ImportError as error:  # pragma: no cover - the suite itself needs hypothesis
    raise ImportError("trio_sessions.testing.strategies needs Hypothesis: pip install 'trio-sessions[test]'") from error

from trio_sessions.testing.strategies.agents import AGENTS, AgentHabits, agent_replays, replay_of
from trio_sessions.testing.strategies.answers import BrokenAnswer, BrokenRule, broken_engine_answers, engine_answers
from trio_sessions.testing.strategies.bodies import chat_bodies
from trio_sessions.testing.strategies.changes import changed_meaning, changed_reasoning
from trio_sessions.testing.strategies.conversations import (
    conversations,
    messages,
    replays,
    tool_calls,
    tool_definitions,
)
from trio_sessions.testing.strategies.odd_json import odd_json
from trio_sessions.testing.strategies.raw_http import RawRequest, raw_requests, twisted_targets
from trio_sessions.testing.strategies.spellings import respelled
from trio_sessions.testing.strategies.tokens import Extend, lineages, token_ids
from trio_sessions.testing.strategies.values import json_values

__all__ = [
    "AGENTS",
    "AgentHabits",
    "BrokenAnswer",
    "BrokenRule",
    "Extend",
    "RawRequest",
    "agent_replays",
    "broken_engine_answers",
    "changed_meaning",
    "changed_reasoning",
    "chat_bodies",
    "conversations",
    "engine_answers",
    "json_values",
    "lineages",
    "messages",
    "odd_json",
    "raw_requests",
    "replay_of",
    "replays",
    "respelled",
    "token_ids",
    "tool_calls",
    "tool_definitions",
    "twisted_targets",
]
