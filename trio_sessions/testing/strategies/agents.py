"""What real agents make of a message when they send it back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from math import isfinite
from typing import Any, Final, Literal

from hypothesis import strategies as st

from trio_sessions.testing.strategies.values import Message, json_values

__all__ = ["AGENTS", "AgentHabits", "agent_replays", "replay_of"]

ArgumentsAs = Literal["exact", "compact", "spaced", "javascript", "object"]
ReasoningAs = Literal["kept", "dropped", "renamed", "tagged", "newline"]
EmptyAs = Literal["kept", "missing", "null", "text"]
TextAs = Literal["kept", "part", "parts", "string"]


@dataclass(frozen=True, slots=True)
class AgentHabits:
    """How one agent spells what it sends back; each habit is independent of the others.

    Attributes:
        arguments: the text as it was, compact or spaced JSON of Python's, compact JSON of JavaScript's, or an object.
        wraps_under: the key under which text that is no JSON object is put into one; None leaves the text.
        reasoning: kept, left out, called ``reasoning``, written in ``<think>`` tags before the text, or kept with a
            newline before the text.
        empty: what becomes of the content of an assistant that says nothing.
        text: what becomes of text: kept, one text part, several, or text parts made one string.
        added: keys that every assistant message gets.
        added_to_calls: keys that every tool call gets.
        drops_type: whether tool calls lose their ``type``.
        marks_cache: whether parts get ``cache_control``.
        bills: whether a system message gets a billing block.
        lists_calls: whether tool calls are listed in the text instead.
    """

    arguments: ArgumentsAs = "exact"
    wraps_under: str | None = None
    reasoning: ReasoningAs = "kept"
    empty: EmptyAs = "kept"
    text: TextAs = "kept"
    added: Mapping[str, Any] | None = None
    added_to_calls: Mapping[str, Any] | None = None
    drops_type: bool = False
    marks_cache: bool = False
    bills: bool = False
    lists_calls: bool = False


_OPENAI: Final[Mapping[str, Any]] = {
    "refusal": None,
    "annotations": [],
    "audio": None,
    "function_call": None,
    "parsed": None,
}

AGENTS: Final[Mapping[str, AgentHabits]] = {
    "openai": AgentHabits(empty="null", added=_OPENAI),
    "litellm": AgentHabits(
        empty="missing",
        added={"function_call": None, "provider_specific_fields": {"refusal": None}, "citations": None},
        added_to_calls={"index": 0, "provider_specific_fields": None},
    ),
    "openai-agents": AgentHabits(reasoning="dropped", drops_type=True),
    "codex": AgentHabits(text="part", added={"phase": "commentary", "status": "completed"}),
    "claude-code": AgentHabits(
        arguments="object", wraps_under="arguments", text="parts", marks_cache=True, bills=True, drops_type=True
    ),
    "opencode": AgentHabits(arguments="javascript", empty="text", marks_cache=True),
    "qwen-code": AgentHabits(arguments="javascript", text="part"),
    "pi": AgentHabits(arguments="javascript", empty="null", text="part", marks_cache=True),
    "mini-swe-agent": AgentHabits(empty="missing", text="parts", marks_cache=True, added={"extra": {"cost": 0.1}}),
    "pydantic-ai": AgentHabits(arguments="compact", wraps_under="INVALID_JSON", reasoning="tagged", empty="null"),
    "pydantic-ai, same provider": AgentHabits(arguments="compact", reasoning="renamed", empty="null"),
    "langchain": AgentHabits(arguments="spaced", reasoning="dropped", text="string"),
    "strands": AgentHabits(arguments="spaced", reasoning="dropped", empty="missing", text="part"),
    "inspect": AgentHabits(arguments="spaced", reasoning="newline", empty="text"),
    "smolagents": AgentHabits(reasoning="dropped", text="part", lists_calls=True),
}


def agent_replays(
    message: Mapping[str, Any], *, agents: Mapping[str, AgentHabits] = AGENTS
) -> st.SearchStrategy[Message]:
    """``message`` as one of ``agents`` sends it back, or as one with habits of several would.

    The matcher ``agent`` must call it the same. A tool call that smolagents cannot list as a Python literal is left.

    Args:
        message: a legal message, as it was served or sent before.
        agents: by name, whose habits to draw from.
    """
    return (st.sampled_from(list(agents.values())) | _mixtures(list(agents.values()))).flatmap(
        lambda habits: replay_of(message, habits)
    )


def _mixtures(agents: Sequence[AgentHabits]) -> st.SearchStrategy[AgentHabits]:
    def one_of(field: str) -> st.SearchStrategy[Any]:
        return st.sampled_from([getattr(habits, field) for habits in agents])

    return st.builds(AgentHabits, **{field.name: one_of(field.name) for field in fields(AgentHabits)})


@st.composite
def replay_of(draw: st.DrawFn, message: Mapping[str, Any], habits: AgentHabits) -> Message:
    """``message`` as an agent with these habits sends it back; what the habits leave open is drawn.

    Args:
        message: a legal message, as it was served or sent before.
        habits: what the agent does.
    """
    new: Message = dict(message)
    if new.get("role") in ("system", "developer"):
        new["role"] = draw(st.sampled_from(["system", "developer"]))
    if new.get("role") == "assistant":
        _reason(new, habits.reasoning)
        if habits.lists_calls and new.get("tool_calls") and (listed := _listed(message)) is not None:
            new["content"] = listed
            del new["tool_calls"]
        if not new.get("content"):
            _leave_empty(new, habits.empty)
        new.update(habits.added or {})
        if draw(st.booleans()):
            new["x_added"] = draw(json_values(max_leaves=2))
        if calls := new.get("tool_calls"):
            again = [_call(call, habits) for call in calls]
            new["tool_calls"] = draw(st.permutations(again) | st.just(again))
    if new.get("content"):
        new["content"] = draw(_respoken(new["content"], habits))
    if habits.bills and new.get("role") in ("system", "developer"):
        _bill(new, draw(st.sampled_from(["a1", "b2"])))
    return new


# -- reasoning and text ---------------------------------------------------------------------------------------------


def _reason(message: Message, habit: ReasoningAs) -> None:
    reasoning = message.get("reasoning_content")
    if habit == "kept" or not reasoning:
        return
    text = message.get("content") or ""
    match habit:
        case "dropped":
            del message["reasoning_content"]
        case "renamed":
            message["reasoning"] = message.pop("reasoning_content")
        case "tagged":
            del message["reasoning_content"]
            message["content"] = _behind(f"<think>\n{reasoning}\n</think>" + ("\n\n" if text else ""), text)
        case "newline":
            message["content"] = _behind("\n", text)


def _behind(before: str, content: Any) -> Any:
    return [{"type": "text", "text": before}, *content] if isinstance(content, list) else before + content


def _leave_empty(message: Message, habit: EmptyAs) -> None:
    match habit:
        case "missing":
            message.pop("content", None)
        case "null":
            message["content"] = None
        case "text":
            message["content"] = ""
        case "kept":
            pass


@st.composite
def _respoken(draw: st.DrawFn, content: Any, habits: AgentHabits) -> Any:
    if isinstance(content, list):
        if habits.text == "string" and all(part.get("type") == "text" for part in content):
            return "".join(part["text"] for part in content)
        parts = [dict(part) for part in content]
    elif habits.text in ("part", "parts") and isinstance(content, str):
        cut = draw(st.integers(0, len(content))) if habits.text == "parts" else 0
        kind = draw(st.sampled_from(["text", "text", "input_text", "output_text"]))
        parts = [{"type": kind, "text": text} for text in (content[:cut], content[cut:]) if text]
    else:
        return content
    if habits.marks_cache and parts:
        draw(st.sampled_from(parts))["cache_control"] = {"type": "ephemeral"}
    return parts


def _bill(message: Message, digest: str) -> None:
    block = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={digest};"}
    content = message.get("content") or []
    said = [{"type": "text", "text": content}] if isinstance(content, str) else content
    message["content"] = [block, *said]


# -- calls ----------------------------------------------------------------------------------------------------------


def _call(call: Mapping[str, Any], habits: AgentHabits) -> dict[str, Any]:
    new = {key: value for key, value in call.items() if key != "type" or not habits.drops_type}
    new["function"] = {**call["function"], "arguments": _arguments(call["function"].get("arguments"), habits)}
    new.update(habits.added_to_calls or {})
    return new


def _arguments(arguments: Any, habits: AgentHabits) -> Any:
    if habits.arguments == "exact":
        return arguments
    value = _parsed(arguments)
    if not isinstance(value, dict):
        if habits.wraps_under is None:
            return arguments
        value = {habits.wraps_under: arguments}
    if habits.arguments in ("javascript", "object"):
        value = _through_doubles(value)
    return value if habits.arguments == "object" else _WRITERS[habits.arguments](value)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_WRITERS: Final[Mapping[str, Callable[[Any], str]]] = {
    "compact": _compact,
    "javascript": _compact,
    "spaced": json.dumps,
}


def _parsed(arguments: Any) -> Any:
    """The value that a client parses, nothing being an empty object; None where it cannot."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        return json.loads(arguments or "{}", parse_constant=_refuse_constant)
    except ValueError:
        return None


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def _through_doubles(value: Any) -> Any:
    """As JavaScript parses and writes it: every number a double, the keys that are indices first."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (0, int(key)) if key.isascii() and key.isdigit() else (1, 0))
        return {key: _through_doubles(value[key]) for key in keys}
    if isinstance(value, list):
        return [_through_doubles(item) for item in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    shortest = Decimal(repr(float(value)))
    return int(shortest) if shortest == shortest.to_integral_value() and abs(shortest) < 10**21 else float(value)


def _listed(message: Mapping[str, Any]) -> str | None:
    """The text that smolagents makes of a message with calls; None where it is no Python literal."""
    if isinstance(message.get("content"), list):
        return None
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {
                "name": call["function"]["name"],
                "arguments": _unfolded(_loaded(call["function"].get("arguments"))),
            },
        }
        for call in sorted(message["tool_calls"], key=lambda call: str(call["id"]))
    ]
    if not _all_finite(calls):
        return None
    said = message.get("content")
    return ("" if said is None else f"{said.strip()}\n") + f"Calling tools:\n{calls}"


def _loaded(text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError):
        return text


def _unfolded(value: Any) -> Any:
    if isinstance(value, str):
        if not (value.startswith("{") and value.endswith("}")) and not (value.startswith("[") and value.endswith("]")):
            return value
        loaded = _loaded(value)
        return value if loaded is value else _unfolded(loaded)
    if isinstance(value, dict):
        return {key: _unfolded(child) for key, child in value.items()}
    return [_unfolded(item) for item in value] if isinstance(value, list) else value


def _all_finite(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_all_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or isfinite(value)
