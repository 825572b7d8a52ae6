"""What side requests are for, told from the words of agents, and what is none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_sessions.core.purpose import purpose_of
from trio_sessions.core.request import ChatBody

TOOLS = [{"type": "function", "function": {"name": "f"}}]


def chat(*messages: dict[str, Any], tools: Any = None) -> ChatBody:
    return ChatBody(fields={} if tools is None else {"tools": tools}, messages=messages)


def system(text: Any) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


SIDE_REQUESTS = [
    ("title", chat(system("You are a title generator. You output ONLY a thread title."), user("fix it"))),
    ("title", chat(system("Generate a concise, sentence-case title (3-7 words)."), user("fix it"))),
    ("title", chat(user([{"type": "text", "text": "fix it"}, {"type": "text", "text": "Write a short title."}]))),
    ("summary", chat(system("You are tasked with summarizing conversations."), user("..."))),
    ("summary", chat(user("hi"), user("Your task is to create a detailed summary of the conversation so far"))),
    ("summary", chat(user("You are performing a CONTEXT CHECKPOINT COMPACTION. Write a handoff."))),
    ("summary", chat(user("word " * 5000 + "\nProvide a summary of our conversation above."))),
    ("summary", chat(user("Summarize the conversation so far."), tools=TOOLS)),
]
TURNS = [
    chat(user("fix it")),
    chat(user("Write a page with a title."), tools=TOOLS),
    chat(system("You can generate a title with the tool."), user("fix it"), tools=TOOLS),
    chat(user("Rename the table `entitled`, and summarize the diff.")),
    chat(user("word " * 5000 + "\nProvide a summary of our conversation above."), tools=TOOLS),
    chat(system("You are a title generator."), user("x"), {"role": "tool", "content": "y"}),
    chat(user(None)),
    chat(user([{"type": "image"}])),
]


@pytest.mark.parametrize(("purpose", "request_"), SIDE_REQUESTS)
def test_side_requests(purpose: str, request_: ChatBody) -> None:
    assert purpose_of(request_) == purpose


@pytest.mark.parametrize("request_", TURNS)
def test_turns_of_the_task(request_: ChatBody) -> None:
    assert purpose_of(request_) is None


_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
)


@given(st.lists(st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": _values}), min_size=1))
def test_nothing_that_a_message_holds_is_too_odd(messages: list[dict[str, Any]]) -> None:
    assert purpose_of(chat(*messages)) in (None, "title", "summary")
