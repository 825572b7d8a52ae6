"""Messages, tools and legal conversations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from trio_sessions.testing.strategies.spellings import respelled
from trio_sessions.testing.strategies.values import Message, json_objects, json_values

__all__ = ["assistant_messages", "conversations", "messages", "replays", "tool_calls", "tool_definitions"]


def tool_definitions() -> st.SearchStrategy[list[dict[str, Any]]]:
    """The ``tools`` of a chat request: distinct functions with a JSON schema of their parameters."""
    return st.lists(
        st.fixed_dictionaries(
            {
                "type": st.just("function"),
                "function": st.fixed_dictionaries(
                    {
                        "name": _function_names(),
                        "parameters": st.fixed_dictionaries(
                            {
                                "type": st.just("object"),
                                "properties": st.dictionaries(
                                    st.sampled_from(["path", "query", "größe"]),
                                    st.sampled_from([{"type": "string"}, {"type": "integer"}, {"type": "object"}]),
                                    max_size=3,
                                ),
                            }
                        ),
                    },
                    optional={"description": st.text(max_size=12), "strict": st.booleans()},
                ),
            }
        ),
        min_size=1,
        max_size=3,
        unique_by=lambda tool: str(tool["function"]["name"]),
    )


def _function_names() -> st.SearchStrategy[str]:
    return st.sampled_from(["search", "read_file", "f"])


@st.composite
def tool_calls(draw: st.DrawFn) -> list[dict[str, Any]]:
    """The ``tool_calls`` of an assistant message, at least one; arguments as text, as an object, or empty."""
    calls = []
    for position in range(draw(st.integers(1, 3))):
        arguments = draw(json_objects())
        call: dict[str, Any] = {
            "id": f"call_{position}",
            "type": "function",
            "function": {
                "name": draw(_function_names()),
                "arguments": draw(
                    st.sampled_from([arguments, json.dumps(arguments), json.dumps(arguments, ensure_ascii=False)])
                    | st.sampled_from(["", "{}", None, {}])
                ),
            },
        }
        if draw(st.booleans()):
            call["index"] = position
        calls.append(call)
    return calls


def _contents() -> st.SearchStrategy[str]:
    return st.sampled_from(["", "hello", "hello ", "  \n", "null", "<|im_end|>", "größe 😀"]) | st.text(max_size=10)


def _user_messages() -> st.SearchStrategy[Message]:
    parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": _contents()}), min_size=1, max_size=2)
    return st.fixed_dictionaries({"role": st.just("user"), "content": _contents() | parts}, optional=_unread())


def _system_messages() -> st.SearchStrategy[Message]:
    return st.fixed_dictionaries({"role": st.just("system"), "content": _contents()})


def _unread() -> dict[str, st.SearchStrategy[Any]]:
    """Keys that no built-in matcher reads."""
    return {"name": st.sampled_from(["alice", "bob"]), "x_extra": json_values(max_leaves=2)}


@st.composite
def assistant_messages(draw: st.DrawFn, *, with_calls: bool | None = None) -> Message:
    message: Message = {"role": "assistant"}
    if draw(st.booleans()) if with_calls is None else with_calls:
        message["tool_calls"] = draw(tool_calls())
        message["content"] = draw(st.none() | _contents())
    else:
        message["content"] = draw(_contents())
    if draw(st.booleans()):
        message["reasoning_content"] = draw(st.none() | _contents())
    return message


def _tool_results(call: Mapping[str, Any]) -> st.SearchStrategy[Message]:
    return st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": st.just(call["id"]), "content": _contents()})


def messages() -> st.SearchStrategy[Message]:
    """One legal message of any role: system, user (text or parts), assistant with or without calls, tool result."""
    return st.one_of(
        _user_messages(),
        assistant_messages(),
        _tool_results({"id": "call_0"}),
        _system_messages(),
    )


@st.composite
def conversations(draw: st.DrawFn, *, max_exchanges: int = 3) -> list[Message]:
    """A legal chat history that waits for the assistant: it ends with a user message or with tool results.

    An optional system message comes first. Every call of an assistant is answered by one tool result, in order.

    Args:
        max_exchanges: how many assistant messages it holds at most.
    """
    history = [draw(_system_messages())] if draw(st.booleans()) else []
    history.append(draw(_user_messages()))
    for _ in range(draw(st.integers(0, max_exchanges))):
        assistant = draw(assistant_messages())
        history.append(assistant)
        if assistant.get("tool_calls"):
            history.extend(draw(_tool_results(call)) for call in assistant["tool_calls"])
        else:
            history.append(draw(_user_messages()))
    return history


@st.composite
def replays(draw: st.DrawFn, stored: Sequence[Mapping[str, Any]]) -> list[Message]:
    """A request of a client that has seen ``stored``: it repeats some of it in its own spelling, then goes on.

    It may be an extension, the stored messages once more, a retry of an earlier turn, an edit of an old message or a
    conversation of its own. Nothing is promised about which; compare it with ``stored`` to find out.

    Args:
        stored: the messages that the server holds.
    """
    kept = draw(
        st.sampled_from([len(stored), max(len(stored) - 1, 0), max(len(stored) - 2, 0)]) | st.integers(0, len(stored))
    )
    request = [draw(respelled(message)) for message in stored[:kept]]
    request += draw(st.lists(messages(), max_size=2))
    return request or [draw(_user_messages())]
