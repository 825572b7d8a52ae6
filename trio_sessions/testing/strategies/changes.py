"""The same message but for one thing that matters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from trio_sessions.testing.strategies.values import Message

__all__ = ["changed_meaning", "changed_reasoning"]


@st.composite
def changed_meaning(draw: st.DrawFn, message: Mapping[str, Any]) -> Message:
    """``message`` with exactly one other role, text, tool, call id, argument, call, or call that is answered.

    No matcher may call it the same but ``role_content_only``, which does not look at calls; nor may ``agent`` when
    an agent spells the changed message anew. The change is one that no agent undoes: of a number that went through
    a double, digits that a double does not have are not changed, and text gets no white space at ends that are
    stripped. ``tool_call_id`` matters to ``agent`` alone.

    Args:
        message: a legal message.
    """
    kinds = [_other_role, _other_text, _one_image_more]
    calls = message.get("tool_calls")
    if calls:
        kinds += [_other_function, _other_id, _other_arguments, _fewer_calls]
    if message.get("role") == "assistant":
        kinds.append(_more_calls)
    if message.get("role") == "tool" and message.get("tool_call_id"):
        kinds.append(_other_call_answered)
    return {**message, **draw(draw(st.sampled_from(kinds))(message))}


@st.composite
def changed_reasoning(draw: st.DrawFn, message: Mapping[str, Any]) -> Message:
    """``message`` with other reasoning, or with some where it had none. An agent that drops reasoning undoes it.

    Args:
        message: a legal assistant message.
    """
    before = message.get("reasoning_content") or ""
    others = [f"{before}x", f"x {before}", *([before.strip()[:-1]] if len(before.strip()) > 1 else [])]
    return {**message, "reasoning_content": draw(st.sampled_from(others).filter(lambda other: other.strip()))}


Change = st.SearchStrategy[Message]


def _other_role(message: Mapping[str, Any]) -> Change:
    roles = [{"system", "developer"}, {"user"}, {"assistant"}, {"tool"}]
    return st.sampled_from([{"role": min(names)} for names in roles if message["role"] not in names])


def _other_text(message: Mapping[str, Any]) -> Change:
    content = message.get("content") or ""
    if isinstance(content, list):
        first, *rest = content
        return _other_word(first["text"], ends_count=True).map(
            lambda text: {"content": [{**first, "text": text}, *rest]}
        )
    return _other_word(content, ends_count=message["role"] != "assistant").map(lambda text: {"content": text})


def _other_word(text: str, *, ends_count: bool) -> st.SearchStrategy[str]:
    others = [f"{text}x", f"x{text}", f"x {text}", text.swapcase()]
    if ends_count:
        others += [f"{text} ", f"\n{text}", text[:-1], f" {text}"]
    elif len(text.strip()) > 1:
        others.append(text.strip()[:-1])
    return st.sampled_from(others).filter(lambda other: other != text)


def _one_image_more(message: Mapping[str, Any]) -> Change:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    content = message.get("content") or []
    said = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return st.just({"content": [*said, image]})


# -- calls ----------------------------------------------------------------------------------------------------------


def _with_call(message: Mapping[str, Any], at: int, **fields: Any) -> Message:
    calls = list(message["tool_calls"])
    calls[at] = {**calls[at], **fields}
    return {"tool_calls": calls}


def _places(message: Mapping[str, Any]) -> st.SearchStrategy[int]:
    return st.integers(0, len(message["tool_calls"]) - 1)


def _other_function(message: Mapping[str, Any]) -> Change:
    def renamed(at: int) -> Message:
        function = message["tool_calls"][at]["function"]
        return _with_call(message, at, function={**function, "name": f"{function['name']}_2"})

    return _places(message).map(renamed)


def _other_id(message: Mapping[str, Any]) -> Change:
    return _places(message).map(lambda at: _with_call(message, at, id=f"{message['tool_calls'][at]['id']}_2"))


@st.composite
def _other_arguments(draw: st.DrawFn, message: Mapping[str, Any]) -> Message:
    at = draw(_places(message))
    function = message["tool_calls"][at]["function"]
    before = function.get("arguments")
    value = _parsed(before)
    if isinstance(value, dict):
        changed = draw(_other_value(value, top=True))
        after = json.dumps(changed) if isinstance(before, str) or draw(st.booleans()) else changed
    else:
        after = f"{before}x"
    return _with_call(message, at, function={**function, "arguments": after})


def _fewer_calls(message: Mapping[str, Any]) -> Change:
    calls = message["tool_calls"]
    return _places(message).map(lambda at: {"tool_calls": calls[:at] + calls[at + 1 :]})


def _more_calls(message: Mapping[str, Any]) -> Change:
    calls = list(message.get("tool_calls") or [])
    call = {"id": "call_more", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return st.just({"tool_calls": [*calls, call]})


def _other_call_answered(message: Mapping[str, Any]) -> Change:
    return st.just({"tool_call_id": f"{message['tool_call_id']}_2"})


# -- arguments ------------------------------------------------------------------------------------------------------


def _parsed(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return None


@st.composite
def _other_value(draw: st.DrawFn, value: Any, *, top: bool = False) -> Any:
    """Another value of JSON; an object stays one at the ``top``."""
    if isinstance(value, dict):
        if not value or draw(st.integers(0, 3)) == 0:
            return {**value, _new_key(value): None}
        key = draw(st.sampled_from(list(value)))
        if draw(st.integers(0, 3)) == 0:
            return {name: child for name, child in value.items() if name != key}
        return {**value, key: draw(_other_value(value[key]))}
    if isinstance(value, list) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], draw(_other_value(value[at])), *value[at + 1 :]]
    assert not top
    return draw(st.sampled_from(_others(value)))


def _new_key(value: Mapping[str, Any]) -> str:
    key = "new"
    while key in value:
        key += "_"
    return key


def _others(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value, int(value), str(value).lower()]
    if value is None:
        return ["null", False, 0, ""]
    if isinstance(value, str):
        return [f"{value} ", f"x{value}", [value]]
    if isinstance(value, list):
        return [[value], [*value, None]]
    # Not the next number, which may be the same double.
    return [0.5 if abs(value) > 1 else 2.5, str(value), [value], *([bool(value)] if value in (0, 1) else [])]
