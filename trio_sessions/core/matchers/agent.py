"""The matcher for what real agents send back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trio_sessions.core.matchers.calls import same_calls, same_function
from trio_sessions.core.matchers.content import same_content, text_of
from trio_sessions.core.matchers.equality import present, same
from trio_sessions.core.matchers.reasoning import may_hold_reasoning, reasoning_of, same_reasoning, says_with_reasoning
from trio_sessions.core.matchers.smolagents import may_list_calls, says_calls

__all__ = ["agent"]

_SYSTEM_ROLES: Final = frozenset({"system", "developer"})


def agent(stored: Mapping[str, Any], replayed: Mapping[str, Any]) -> bool:
    """Whether ``replayed`` is what one of the agents that are known makes of ``stored``.

    Arguments may be spelled anew, also by way of doubles; content may be text or text parts; reasoning may be left
    out, renamed or written before the text; calls are joined on their ids, and may be listed as text the way
    smolagents does it; keys that a client adds are ignored. Another role, text, tool, argument, call or tool result is
    never a match, and neither is reasoning that was not there. What is authoritative and what came back are not
    interchangeable here.
    """
    if stored is replayed:
        return True
    # A tree asks about many messages that differ in their text.
    said, said_again = stored.get("content"), replayed.get("content")
    if type(said) is str and type(said_again) is str:
        if said != said_again:
            if not ("tool_calls" in stored or "reasoning_content" in stored or "reasoning" in stored):
                return False
            if not may_hold_reasoning(said_again) and not may_list_calls(said_again):
                return False
        elif len(stored) == len(replayed) == 2 and "role" in stored and "role" in replayed:
            return _same_role(stored["role"], replayed["role"])
    if not _same_role(stored.get("role"), replayed.get("role")) or not _same_call_answered(stored, replayed):
        return False
    reasoning = reasoning_of(stored)
    if not same_reasoning(reasoning, reasoning_of(replayed)):
        return False
    if not same_function(stored.get("function_call"), replayed.get("function_call")):
        return False
    calls, calls_again = stored.get("tool_calls"), replayed.get("tool_calls")
    role = stored.get("role")
    if same_content(said, said_again, without_billing=isinstance(role, str) and role in _SYSTEM_ROLES):
        return same_calls(calls, calls_again)
    text, text_again = text_of(said), text_of(said_again)
    if text is None or text_again is None:
        return False
    if reasoning and says_with_reasoning(text_again, text, reasoning):
        return same_calls(calls, calls_again)
    return present(calls_again) is None and says_calls(text_again, text, calls)


def _same_role(stored: Any, replayed: Any) -> bool:
    if isinstance(stored, str) and isinstance(replayed, str):
        return stored == replayed or (stored in _SYSTEM_ROLES and replayed in _SYSTEM_ROLES)
    return same(stored, replayed)


def _same_call_answered(stored: Mapping[str, Any], replayed: Mapping[str, Any]) -> bool:
    """Of two messages of the same role, whether they answer the same call as far as both say which."""
    if stored.get("role") != "tool":
        return True
    answered, answered_again = present(stored.get("tool_call_id")), present(replayed.get("tool_call_id"))
    return answered is None or answered_again is None or same(answered, answered_again)
