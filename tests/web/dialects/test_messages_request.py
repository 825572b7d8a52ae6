"""Messages requests are read into chat requests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.core import PATIENT
from tests.web.dialects.readings import unanswered
from trio_sessions.errors import InvalidRequest
from trio_sessions.testing.strategies import json_values
from trio_sessions.web.dialects.messages.request import MessagesRequest, read_request

ALL_ROLES = frozenset({"user", "tool", "system"})
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}


def read(messages: Any, *, roles: frozenset[str] = ALL_ROLES, **fields: Any) -> MessagesRequest:
    body = json.dumps({"model": "m", "max_tokens": 5, "messages": messages, **fields}).encode()
    return read_request(body, unanswered(roles))


def chat(*messages: Any, **fields: Any) -> list[dict[str, Any]]:
    """What messages come to."""
    return list(map(dict, read(list(messages), **fields).chat.messages))


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def result(call: str, content: Any = "done", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": content, **more}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": blocks[0] if blocks and isinstance(blocks[0], str) else list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {**user(*blocks), "role": "assistant"}


HI = user("hi")
SAID_HI = {"role": "user", "content": "hi"}


class TestSystem:
    @pytest.mark.parametrize(
        ("system", "expected"),
        [
            ("be brief", "be brief"),
            ([text("be brief"), text("be kind", cache_control={"type": "ephemeral"})], "be brief\nbe kind"),
            ([text("x-anthropic-billing-header: cc_version=2; cch=1f;"), text("be brief")], "be brief"),
        ],
    )
    def test_it_leads(self, system: Any, expected: str) -> None:
        assert chat(HI, system=system) == [{"role": "system", "content": expected}, SAID_HI]

    @pytest.mark.parametrize("system", [None, "", [], [text("x-anthropic-billing-header: a")]])
    def test_there_may_be_none(self, system: Any) -> None:
        assert chat(HI, system=system) == [SAID_HI]

    def test_one_among_the_messages_stays_what_it_is_where_the_template_knows_it(self) -> None:
        later = {"role": "system", "content": [text("a"), text("b")]}
        assert chat(HI, later)[-1] == {"role": "system", "content": "a\nb"}
        assert chat(HI, later, roles=frozenset({"user"}))[-1] == {"role": "user", "content": "a\nb"}

    def test_those_before_everything_else_are_one_whatever_the_template_knows(self) -> None:
        leading = [{"role": "system", "content": "b"}, {"role": "system", "content": "c"}]
        expected = [{"role": "system", "content": "a\nb\nc"}, SAID_HI]
        assert chat(*leading, HI, system="a", roles=frozenset()) == expected


class TestUser:
    def test_texts_are_one_message(self) -> None:
        assert chat(user(text("a"), text("b", citations=None)), user("c")) == [
            {"role": "user", "content": "a\nb"},
            {"role": "user", "content": "c"},
        ]

    def test_results_and_texts_stay_in_order(self) -> None:
        blocks = [result("1"), text("a"), text("b"), result("2", [text("c"), text("d")]), text("e")]
        assert chat(HI, user(*blocks))[1:] == [
            {"role": "tool", "tool_call_id": "1", "content": "done"},
            {"role": "user", "content": "a\nb"},
            {"role": "tool", "tool_call_id": "2", "content": "c\nd"},
            {"role": "user", "content": "e"},
        ]

    @pytest.mark.parametrize("content", [None, "", []])
    def test_a_result_that_says_nothing(self, content: Any) -> None:
        [_, fine, failed] = chat(HI, user(result("1", content), result("2", content, is_error=True)))
        assert fine["content"] == ""
        assert failed["content"] == "the tool failed and said nothing"
        assert chat(user(result("1", "why", is_error=True)))[0]["content"] == "why"

    def test_a_result_without_content(self) -> None:
        assert chat(user({"type": "tool_result", "tool_use_id": "1"}))[0]["content"] == ""

    def test_no_blocks_are_an_empty_text(self) -> None:
        assert chat({"role": "user", "content": []}) == [{"role": "user", "content": ""}]

    def test_what_cannot_be_rendered_has_something_that_stands_for_it(self) -> None:
        odd = {"type": "x y\n", "secret": "s"}
        request = read([user(text("see"), IMAGE, odd), user(result("1", [IMAGE, text("b")]))])
        assert list(request.chat.messages) == [
            {"role": "user", "content": "see\n[image omitted]\n[unknown omitted]"},
            {"role": "tool", "tool_call_id": "1", "content": "[image omitted]\nb"},
        ]
        assert list(request.dropped) == ["image block (2)", "unknown block"]

    def test_a_document_of_text_is_its_text(self) -> None:
        source = {"type": "text", "media_type": "text/plain", "data": "a page"}
        request = read([user({"type": "document", "source": source}, {"type": "document", "source": {"type": "url"}})])
        assert request.chat.messages[0]["content"] == "a page\n[document omitted]"
        assert list(request.dropped) == ["document block"]


class TestAssistant:
    def test_blocks_become_fields(self) -> None:
        blocks = [
            text(""),
            {"type": "thinking", "thinking": "let ", "signature": "s"},
            {"type": "redacted_thinking", "data": "xx"},
            {"type": "thinking", "thinking": "me", "signature": "s"},
            text("I "),
            text("do"),
            {"type": "tool_use", "id": "1", "name": "f", "input": {"b": [1, 2.5, "é"], "a": {}}, "caller": None},
            {"type": "tool_use", "id": "2", "name": "g"},
        ]
        request = read([HI, assistant(*blocks)])
        assert request.chat.messages[1] == {
            "role": "assistant",
            "content": "I do",
            "reasoning_content": "let me",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"b":[1,2.5,"é"],"a":{}}'}},
                {"id": "2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ],
        }
        assert list(request.dropped) == ["redacted_thinking block"]

    def test_one_that_says_nothing(self) -> None:
        assert chat(HI, assistant(text("")))[1] == {"role": "assistant", "content": ""}
        assert chat(HI, assistant("yes"), user("b"))[1] == {"role": "assistant", "content": "yes"}

    def test_nothing_stands_for_what_was_not_the_models_words(self) -> None:
        request = read([HI, assistant(text("a"), {"type": "server_tool_use", "id": "1", "name": "x", "input": {}})])
        assert request.chat.messages[1] == {"role": "assistant", "content": "a"}
        assert list(request.dropped) == ["server_tool_use block"]


class TestTools:
    def test_they_become_functions(self) -> None:
        tools = [
            {"name": "a", "description": "d", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}},
            {"type": "custom", "name": "b", "input_schema": {}},
            {"type": "function", "name": "c", "input_schema": {}},
        ]
        assert read([HI], tools=tools).chat.fields["tools"] == [
            {"type": "function", "function": {"name": "a", "description": "d", "parameters": SCHEMA}},
            {"type": "function", "function": {"name": "b", "parameters": {}}},
            {"type": "function", "function": {"name": "c", "parameters": {}}},
        ]

    @pytest.mark.parametrize(
        ("choice", "expected"),
        [
            ({"type": "auto"}, {"tool_choice": "auto"}),
            ({"type": "any"}, {"tool_choice": "required"}),
            ({"type": "none"}, {"tool_choice": "none"}),
            ({"type": "tool", "name": "a"}, {"tool_choice": {"type": "function", "function": {"name": "a"}}}),
            (
                {"type": "auto", "disable_parallel_tool_use": True},
                {"tool_choice": "auto", "parallel_tool_calls": False},
            ),
            ({"type": "any", "disable_parallel_tool_use": False}, {"tool_choice": "required"}),
            (None, {}),
        ],
    )
    def test_the_choice(self, choice: Any, expected: dict[str, Any]) -> None:
        fields = read([HI], tools=[{"name": "a", "input_schema": {}}], tool_choice=choice).chat.fields
        assert {name: value for name, value in fields.items() if "tool_" in name} == expected

    def test_what_only_anthropic_can_run_is_left_out(self) -> None:
        tools = [{"type": "web_search_20250305", "name": "web_search"}, {"name": "a", "input_schema": {}}]
        request = read([HI], tools=tools)
        assert [tool["function"]["name"] for tool in request.chat.fields["tools"]] == ["a"]
        assert list(request.dropped) == ["web_search_20250305 tool without input_schema"]

    @pytest.mark.parametrize("tools", [None, [], [{"type": "bash_20250124", "name": "bash"}]])
    def test_no_tools_no_fields(self, tools: Any) -> None:
        fields = read([HI], tools=tools, tool_choice={"type": "any"}).chat.fields
        assert dict(fields) == {"model": "m", "max_tokens": 5}


class TestFields:
    def test_those_that_chat_knows(self) -> None:
        fields = {"temperature": 1, "top_p": 0.5, "top_k": 3, "stop_sequences": ["a", "b"]}
        request = read([HI], **fields, stream=True)
        assert dict(request.chat.fields) == {
            "model": "m",
            "max_tokens": 5,
            "temperature": 1,
            "top_p": 0.5,
            "top_k": 3,
            "stop": ["a", "b"],
        }
        assert request.stream
        assert not request.dropped

    def test_those_that_engines_know(self) -> None:
        extra = {
            "chat_template_kwargs": {"enable_thinking": False},
            "seed": 3,
            "separate_reasoning": True,
            "skip_special_tokens": False,
        }
        assert dict(read([HI], **extra).chat.fields) == {"model": "m", "max_tokens": 5, **extra}

    def test_nothing_else_reaches_the_engine(self) -> None:
        others = {
            "metadata": {"user_id": "u"},
            "service_tier": "auto",
            "betas": [],
            "context_management": {"edits": []},
            "output_config": {"effort": "high"},
            "mcp_servers": [],
            "container": "c",
            "input_ids": [1],
            "n": 2,
            "logprobs": False,
            "a secret\n": 1,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        }
        request = read([HI], **others)
        assert dict(request.chat.fields) == {"model": "m", "max_tokens": 5}
        assert sorted(request.dropped) == [
            "container",
            "context_management",
            "input_ids",
            "logprobs",
            "mcp_servers",
            "n",
            "output_config",
            "thinking.budget_tokens",
            "unknown",
        ]

    def test_null_is_absent(self) -> None:
        names = ("system", "tools", "tool_choice", "thinking", "temperature", "stop_sequences", "stream", "seed", "x")
        request = read([HI], **dict.fromkeys(names))
        assert dict(request.chat.fields) == {"model": "m", "max_tokens": 5}
        assert not request.dropped

    def test_what_is_required_elsewhere_may_be_missing(self) -> None:
        request = read_request(b'{"messages":[{"role":"user","content":"hi"}]}', unanswered(ALL_ROLES))
        assert (dict(request.chat.fields), request.model) == ({}, "")

    @pytest.mark.parametrize(
        ("thinking", "shown"),
        [
            (None, False),
            ({"type": "disabled"}, False),
            ({"type": "enabled", "budget_tokens": 1}, True),
            ({"type": "adaptive"}, True),
        ],
    )
    def test_who_sees_the_reasoning(self, thinking: Any, shown: bool) -> None:
        assert read([HI], thinking=thinking).thinking is shown

    def test_the_log_is_told_only_so_much(self) -> None:
        request = read([HI, user(IMAGE)], **{f"field{number}": 1 for number in range(1000)})
        assert len(request.dropped) == 33
        assert request.dropped[0] == "image block"
        assert request.dropped[-1] == "others (969)"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the request body: object missing required field `messages`"),
        (b"{", "invalid JSON body: "),
        (b"[]", "the request body must be a JSON object, got a list"),
        (b"{}", "the request body: object missing required field `messages`"),
        (b'{"messages":[]}', "messages: expected `array` of length >= 1"),
        (b'{"messages":["a"]}', "messages[0]: expected `object`, got `str`"),
        (b'{"messages":[{"content":"a"}]}', "messages[0]: object missing required field `role`"),
        (b'{"messages":[{"role":"user"}]}', "messages[0]: object missing required field `content`"),
        (b'{"messages":[{"role":"tool","content":"a"}]}', "messages[0].role: must be user, assistant or system"),
        (b'{"messages":[{"role":"user","content":5}]}', "messages[0].content: expected `str | array`, got `int`"),
        (b'{"messages":[{"role":"user","content":"a"}],"max_tokens":"5"}', "max_tokens: expected `int | null`"),
        (b'{"messages":[{"role":"user","content":"a"}],"max_tokens":true}', "max_tokens: expected `int | null`"),
        (b'{"messages":[{"role":"user","content":"a"}],"max_tokens":5.5}', "max_tokens: expected `int | null`"),
        (b'{"messages":[{"role":"user","content":"a"}],"stop_sequences":[1]}', "stop_sequences[0]: expected `str`"),
        (b'{"messages":[{"role":"user","content":"a"}],"tools":[1]}', "tools[0]: expected `object`, got `int`"),
        (
            b'{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f"}}]}',
            "tools[0]: is OpenAI's form; a tool here has name, description and input_schema, and no type",
        ),
        (
            b'{"messages":[{"role":"user","content":"a"}],"tools":[{"name":"a"}]}',
            "tools[0]: object missing required field `input_schema`",
        ),
        (b'{"messages":[{"role":"user","content":"a"}],"system":[{"type":"text"}]}', "system[0]: object missing"),
        (
            b'{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},'
            b'{"role":"user","content":[{"type":"tool_result","content":[{"type":"text","text":4}]}]}]}',
            "messages[2].content[0]: object missing required field `tool_use_id`",
        ),
        (
            b'{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1",'
            b'"content":[{"type":"text","text":4}]}]}]}',
            "messages[0].content[0].content[0].text: expected `str`, got `int`",
        ),
        (b'{"messages":[{"role":"assistant","content":[{"text":"a"}]}]}', "messages[0].content[0]: object missing"),
    ],
)
def test_a_text_names_the_place(body: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_request(body, unanswered(ALL_ROLES))
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("choice", [{"type": "tool", "name": "b"}, {"type": "tool"}, {"type": "other"}])
def test_a_choice_that_is_none(choice: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"tool_choice\.(name|type): must be"):
        read([HI], tools=[{"name": "a", "input_schema": {}}], tool_choice=choice)


# -- anything ------------------------------------------------------------------------------------------------------

TYPES = st.sampled_from(["text", "tool_result", "tool_use", "thinking", "image", "document", "redacted_thinking", "x"])
KEYS = ["text", "thinking", "id", "name", "input", "tool_use_id", "content", "is_error", "source", "signature"]


def blocks(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Blocks whose members may be anything that ``values`` yields."""
    return st.builds(
        lambda kind, members: {"type": kind, **members}, TYPES, st.dictionaries(st.sampled_from(KEYS), values)
    )


@st.composite
def almost_requests(draw: st.DrawFn) -> Any:
    """Requests that are as they should be here and there."""
    anything = json_values(max_leaves=3)
    content = st.text(max_size=3) | st.lists(blocks(anything | st.text(max_size=3)) | anything, max_size=3) | anything
    message = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system", "x"]), "content": content})
    tool = st.fixed_dictionaries(
        {"name": st.text(max_size=3) | anything}, optional={"type": anything, "input_schema": st.just({}) | anything}
    )
    known = ["system", "tools", "tool_choice", "thinking", "max_tokens", "stop_sequences", "stream", "seed", "model"]
    members = st.dictionaries(st.sampled_from(known) | st.text(max_size=3), anything, max_size=3)
    request: dict[str, Any] = draw(members)
    request["messages"] = draw(st.lists(message, min_size=1, max_size=4) | anything)
    if draw(st.booleans()):
        request["tools"] = draw(st.lists(tool, max_size=3))
    return request


@PATIENT
@given(body=st.binary(max_size=20) | (json_values() | almost_requests()).map(lambda value: json.dumps(value).encode()))
@example(body=b'{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"","name":"","input":1e400}]}]}')
@example(body=b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}")
def test_whatever_is_sent_is_read_or_refused(body: bytes) -> None:
    try:
        request = read_request(body, unanswered(ALL_ROLES))
    except InvalidRequest:
        return
    assert request.chat.messages
    assert all(isinstance(message["role"], str) for message in request.chat.messages)
    assert all(isinstance(message["content"], str) for message in request.chat.messages)
    assert not {"input_ids", "messages", "stream", "logprobs"} & set(request.chat.fields)


SENT_TEXT = st.builds(text, st.text(max_size=4))
CONTENT = st.text(max_size=4) | st.lists(SENT_TEXT, max_size=2)
SAID = st.lists(
    st.one_of(
        SENT_TEXT,
        st.builds(lambda said: {"type": "thinking", "thinking": said, "signature": "s"}, st.text(max_size=4)),
        st.builds(lambda id_: {"type": "tool_use", "id": id_, "name": "f", "input": {}}, st.text(max_size=2)),
    ),
    max_size=3,
)
MESSAGES = st.one_of(
    st.builds(lambda content: {"role": "user", "content": content}, CONTENT),
    st.builds(lambda content: {"role": "system", "content": content}, CONTENT),
    st.builds(
        lambda content: {"role": "user", "content": content}, st.lists(SENT_TEXT | st.builds(result, st.just("1")))
    ),
    st.builds(lambda content: {"role": "assistant", "content": content}, SAID),
)


@PATIENT
@given(before=st.lists(MESSAGES, max_size=4), after=st.lists(MESSAGES, max_size=3), knows_system=st.booleans())
def test_messages_that_are_appended_change_none_before_them(before: Any, after: Any, knows_system: bool) -> None:
    roles = ALL_ROLES if knows_system else frozenset({"user", "tool"})
    earlier = chat(HI, *before, roles=roles)
    assert chat(HI, *before, *after, roles=roles)[: len(earlier)] == earlier


@PATIENT
@given(before=st.lists(MESSAGES, max_size=3), results=st.integers(1, 3), said=st.text(max_size=4))
def test_a_text_behind_a_tool_result_is_appended(before: Any, results: int, said: str) -> None:
    """Claude Code asks for a summary like that."""
    last = [result(str(number)) for number in range(results)]
    earlier = chat(HI, *before, user(*last))
    assert chat(HI, *before, user(*last, text(said))) == [*earlier, {"role": "user", "content": said}]
