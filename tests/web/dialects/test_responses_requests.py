"""Requests of the Responses API as chat requests."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.web.dialects.readings import unanswered
from tests.web.dialects.responses_support import CUSTOM, FUNCTION, NAMESPACE, TOOLS
from tests.web.support import assistant, user
from trio_sessions.errors import InvalidRequest
from trio_sessions.service.dialect import Exchange
from trio_sessions.web.dialects.responses import ResponsesDialect

ANYWHERE = frozenset({"user", "tool", "system"})
FIRST_ALONE = frozenset({"user", "tool"})


def read(body: Any, *, roles: frozenset[str] = ANYWHERE) -> Exchange:
    """``body`` in a session where nothing was answered."""
    return ResponsesDialect().read(body if isinstance(body, bytes) else json.dumps(body).encode(), unanswered(roles))


def messages(*items: Any, roles: frozenset[str] = ANYWHERE, **fields: Any) -> list[Any]:
    return list(read({"input": list(items), **fields}, roles=roles).chat.messages)


def fields(**asked: Any) -> dict[str, Any]:
    return dict(read({"input": "hi", **asked}).chat.fields)


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def tool(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": call_id}


def chat_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
        **more,
    }


def thought(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}], **more}


def called(call_id: str, name: str = "run", arguments: str = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **more}


def returned(call_id: str, output: Any = "r", **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output, **more}


def test_a_string_is_one_user_message() -> None:
    assert read({"input": "hi"}).chat.messages == [user("hi")]
    assert read({"input": "hi", "instructions": "Be kind."}).chat.messages == [system("Be kind."), user("hi")]
    assert read({"input": "hi", "instructions": ""}).chat.messages == [user("hi")]


@pytest.mark.parametrize("kind", [{}, {"type": "message"}])
@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
def test_messages(kind: dict[str, str], role: str) -> None:
    expected = {"role": "system" if role == "developer" else role, "content": "ab"}
    for content in (
        "ab",
        [{"type": "input_text", "text": "ab"}],
        [{"type": "output_text", "text": "a", "annotations": []}, {"type": "text", "text": "b"}],
        [{"type": "refusal", "refusal": "ab"}],
    ):
        assert messages({**kind, "role": role, "content": content}) == [expected]


def test_what_belongs_to_one_answer_is_one_message() -> None:
    assert messages(
        user("q"),
        thought("hm"),
        said("I run."),
        called("c0", arguments='{"a":  1}'),
        called("c1"),
        returned("c0"),
        returned("c1", [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]),
        said("Done."),
    ) == [
        user("q"),
        assistant(
            "I run.",
            reasoning_content="hm",
            tool_calls=[chat_call("c0", "run", '{"a":  1}'), chat_call("c1", "run", "{}")],
        ),
        tool("c0", "r"),
        tool("c1", "ab"),
        assistant("Done."),
    ]


def test_a_text_behind_calls_without_results_belongs_to_them() -> None:
    assert messages(called("c0"), said("I run."), returned("c0")) == [
        assistant("I run.", tool_calls=[chat_call("c0", "run", "{}")]),
        tool("c0", "r"),
    ]


def test_ids_keep_answers_apart_and_together() -> None:
    one, other = "1" * 32, "2" * 32
    assert messages(said("a", id=f"msg_{one}"), thought("hm", id=f"rs_{other}"), said("b", id=f"msg_{other}")) == [
        assistant("a"),
        assistant("b", reasoning_content="hm"),
    ]
    # Results in between do not end an answer, but a user does.
    assert messages(
        called("c0", id=f"fc_{one}_0"), returned("c0"), called("c1", id=f"fc_{one}_1"), returned("c1"), user("q")
    ) == [
        assistant("", tool_calls=[chat_call("c0", "run", "{}"), chat_call("c1", "run", "{}")]),
        tool("c0", "r"),
        tool("c1", "r"),
        user("q"),
    ]
    assert messages(said("a", id=f"msg_{one}"), user("q"), said("a", id=f"msg_{one}")) == [
        assistant("a"),
        user("q"),
        assistant("a"),
    ]

    # What has no id joins what has one.
    assert messages(said("I run."), called("c0", id=f"fc_{one}_0"), returned("c0"), called("c1", id=f"fc_{one}_1")) == [
        assistant("I run.", tool_calls=[chat_call("c0", "run", "{}"), chat_call("c1", "run", "{}")]),
        tool("c0", "r"),
    ]


def test_several_thoughts_before_one_text() -> None:
    assert messages(user("q"), thought("a"), thought("b"), said("c")) == [
        user("q"),
        assistant("c", reasoning_content="ab"),
    ]


def test_reasoning_is_its_content_and_otherwise_its_summary() -> None:
    summary = [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]
    for item, text in (
        (thought("hm", encrypted_content="x"), "hm"),
        ({"type": "reasoning", "summary": summary}, "a\n\nb"),
        ({"type": "reasoning", "summary": summary, "content": []}, "a\n\nb"),
        ({"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAA"}, None),
    ):
        expected = {} if text is None else {"reasoning_content": text}
        assert messages(user("q"), item, said("a")) == [user("q"), assistant("a", **expected)]


def test_instructions_in_the_middle_are_the_systems_where_the_template_has_them_there() -> None:
    items = [user("q"), {"role": "developer", "content": "Be brief."}]
    assert messages(*items) == [user("q"), system("Be brief.")]
    assert messages(*items, roles=FIRST_ALONE) == [user("q"), user("Be brief.")]


def test_instructions_at_the_head_are_one_message_where_the_template_has_one_place() -> None:
    items = [{"role": "developer", "content": "b"}, {"role": "system", "content": "c"}, user("q")]
    assert messages(*items, instructions="a") == [system("a"), system("b"), system("c"), user("q")]
    parts = [{"type": "text", "text": text} for text in ("a", "\n\nb", "\n\nc")]
    assert messages(*items, instructions="a", roles=FIRST_ALONE) == [{"role": "system", "content": parts}, user("q")]
    assert messages(items[0], user("q"), roles=FIRST_ALONE) == [system("b"), user("q")]


def test_what_cannot_be_shown_leaves_a_word_in_its_place() -> None:
    exchange = read(
        {
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "see "},
                        {"type": "input_image", "image_url": "data:secret"},
                        {"type": "input_file", "file_id": "secret"},
                        {"type": "input_audio", "input_audio": {}},
                        {"type": "new_kind"},
                    ],
                },
                called("c0"),
                returned("c0", [{"type": "input_image", "image_url": "data:secret"}]),
            ]
        }
    )
    assert exchange.chat.messages[0] == user("see [image omitted][file omitted][audio omitted][content omitted]")
    assert exchange.chat.messages[2] == tool("c0", "[image omitted]")
    assert list(exchange.dropped) == ["input_image part (2)", "input_file part", "input_audio part", "new_kind part"]


def test_calls_of_built_in_tools_are_left_out() -> None:
    exchange = read(
        {
            "input": [
                user("q"),
                {"type": "web_search_call", "id": "ws_1", "status": "completed"},
                {"type": "local_shell_call", "id": "x"},
                {"type": "web_search_call", "id": "ws_2"},
                {"type": "what somebody said"},
            ]
        }
    )
    assert exchange.chat.messages == [user("q")]
    assert list(exchange.dropped) == [
        "web_search_call item (2)",
        "local_shell_call item",
        "unknown item",
    ]


def test_fields_that_are_passed_on() -> None:
    passed = {
        "model": "m",
        "temperature": 0.5,
        "top_p": 0.5,
        "seed": 1,
        "stop": ["x"],
        "chat_template_kwargs": {"a": 1},
        "separate_reasoning": False,
        "skip_special_tokens": False,
    }
    assert fields(**passed) == passed
    assert fields(max_output_tokens=7) == {"max_tokens": 7}
    assert fields(temperature=None, max_output_tokens=None, text=None, tools=None) == {}
    ignored = {
        "background": False,
        "client_metadata": {"a": "b"},
        "conversation": None,
        "include": ["reasoning.encrypted_content"],
        "input_ids": [1],
        "logprobs": False,
        "max_tokens": 1,
        "messages": [],
        "metadata": {"a": "b"},
        "n": 2,
        "prompt_cache_key": "k",
        "reasoning": {"summary": "auto"},
        "service_tier": "flex",
        "store": False,
        "stream_options": {"include_obfuscation": False},
        "truncation": "disabled",
        "user": "u",
        "what": "ever",
    }
    exchange = read({"input": "hi", **ignored})
    assert dict(exchange.chat.fields) == {}
    assert list(exchange.dropped) == []


@pytest.mark.parametrize(
    ("asked", "dropped"),
    [
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_tool_calls": 2}, "max_tool_calls"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [{"type": "web_search", "external_web_access": True}]}, "web_search tool"),
        ({"tools": [{"type": "what somebody said"}]}, "unknown tool"),
    ],
)
def test_what_cannot_be_honoured_is_named(asked: dict[str, Any], dropped: str) -> None:
    exchange = read({"input": "hi", **asked})
    assert list(exchange.dropped) == [dropped]
    assert exchange.chat.fields.keys() <= {"tools"}


def test_response_formats() -> None:
    schema = {"type": "object"}
    given = {"type": "json_schema", "name": "out", "schema": schema, "strict": True, "description": None}
    assert fields(text={"format": given})["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "out", "schema": schema, "strict": True},
    }
    assert fields(text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}
    assert fields(text={"format": {"type": "text"}}) == {}


def test_tools_are_functions() -> None:
    bare = {"type": "function", "name": "bare", "parameters": None, "strict": None}
    passed = fields(tools=[*TOOLS, bare], parallel_tool_calls=False, tool_choice="required")
    text = {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": False,
    }
    assert [one["function"] for one in passed["tools"]] == [
        {"name": "run", "description": "Runs.", "parameters": {"type": "object"}, "strict": True},
        {"name": "agents__run"},
        {"name": "agents__tell", "description": "", "parameters": text},
        {
            "name": "patch",
            "description": "Patches.\n\nThe input is text of this lark grammar:\nstart: /.+/",
            "parameters": text,
        },
        {"name": "bare"},
    ]
    assert all(one["type"] == "function" for one in passed["tools"])
    assert (passed["parallel_tool_calls"], passed["tool_choice"]) == (False, "required")


@pytest.mark.parametrize("tools", [None, [], [{"type": "web_search"}]])
def test_without_tools_there_is_nothing_about_tools(tools: Any) -> None:
    assert fields(tools=tools, parallel_tool_calls=True, tool_choice="auto") == {}


@pytest.mark.parametrize(
    ("choice", "passed"),
    [
        ("none", "none"),
        ({"type": "function", "name": "run"}, "run"),
        ({"type": "custom", "name": "patch"}, "patch"),
        ({"type": "function", "name": "run", "namespace": "agents"}, "agents__run"),
    ],
)
def test_tool_choice(choice: Any, passed: str) -> None:
    expected = passed if isinstance(choice, str) else {"type": "function", "function": {"name": passed}}
    assert fields(tools=TOOLS, tool_choice=choice)["tool_choice"] == expected


def test_names_that_would_be_the_same_become_others_and_lead_back() -> None:
    nested = [{"type": "function", "name": "b"}]
    tools = [
        {"type": "namespace", "name": "a", "description": "", "tools": nested},
        {"type": "namespace", "name": "a__", "description": "", "tools": nested},
        {"type": "function", "name": "a__b"},
    ]
    asked = [
        called("c0", "b", namespace="a"),
        called("c1", "b", namespace="a__"),
        called("c2", "a__b"),
        called("c3", "b", namespace="elsewhere"),
    ]
    exchange = read({"input": [user("q"), *asked], "tools": tools})
    names = ["a__b_2", "a__b_3", "a__b"]
    assert [one["function"]["name"] for one in exchange.chat.fields["tools"]] == names
    calls = exchange.chat.messages[1]["tool_calls"]
    assert [one["function"]["name"] for one in calls] == [*names, "elsewhere__b"]


def test_a_name_that_is_there_twice_is_the_first_of_them() -> None:
    exchange = read({"input": [user("q"), called("c0")], "tools": [FUNCTION, {**CUSTOM, "name": "run"}]})
    assert [one["function"]["name"] for one in exchange.chat.fields["tools"]] == ["run", "run_2"]
    assert exchange.chat.messages[1]["tool_calls"][0]["function"]["name"] == "run"


def test_the_work_of_naming_tools_grows_with_their_number_alone() -> None:
    """Many of one name, and some that have the names that are then tried."""

    def work(number: int) -> int:
        tools = [{**FUNCTION, "name": "run"}] * number + [{**FUNCTION, "name": f"run_{2 * at}"} for at in range(number)]
        names = []
        lines = lines_run(lambda: names.extend(read({"input": "q", "tools": tools}).chat.fields["tools"]))
        assert len({one["function"]["name"] for one in names}) == 2 * number
        return lines

    assert work(400) < 3 * work(200)


def lines_run(doing: Callable[[], object]) -> int:
    """How many lines of the package are run."""
    lines = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if not frame.f_globals.get("__name__", "").startswith("trio_sessions."):
            return None
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        doing()
    finally:
        sys.settrace(before)
    return lines


def test_custom_calls_are_calls_with_an_input() -> None:
    asked = {"type": "custom_tool_call", "call_id": "c0", "name": "patch", "input": '*** "é"'}
    output = {"type": "custom_tool_call_output", "call_id": "c0", "output": "done"}
    assert messages(user("q"), asked, output, tools=[CUSTOM]) == [
        user("q"),
        assistant("", tool_calls=[chat_call("c0", "patch", '{"input":"*** \\"é\\""}')]),
        tool("c0", "done"),
    ]


FOUND_NO_ITEM = " not found. The session does not have it, or no longer: send the item itself"
WRONG: list[tuple[Any, str]] = [
    (b"{", "invalid JSON body: "),
    (b"[]", "the request body must be a JSON object, got a list"),
    (b"", "input must be a string or a list with at least one item"),
    ({"input": []}, "input must be a string or a list with at least one item"),
    ({"input": 1}, "input: expected `str | array | null`, got `int`"),
    ({"input": "a", "instructions": ["b"]}, "instructions: expected `str | null`, got `array`"),
    ({"input": "a", "model": 1}, "model: expected `str | null`, got `int`"),
    ({"input": "a", "previous_response_id": 1}, "previous_response_id: expected `str | null`, got `int`"),
    ({"input": "a", "background": True}, "background responses are not supported"),
    ({"input": "a", "conversation": "conv_1"}, "conversations are not supported"),
    ({"input": "a", "prompt": {"id": "p"}}, "stored prompts are not supported"),
    ({"input": "a", "include": "x"}, "include: expected `array | null`, got `str`"),
    ({"input": "a", "text": "x"}, "text: expected `object | null`, got `str`"),
    ({"input": "a", "text": {"format": {}}}, "text.format: object missing required field `type`"),
    ({"input": "a", "text": {"format": {"type": "json_schema"}}}, "text.format: object missing required field `name`"),
    ({"input": ["a"]}, "input[0]: expected `object`, got `str`"),
    ({"input": [user("q"), {"type": 1}]}, "input[1].type: expected `str | null`, got `int`"),
    ({"input": [{"type": "message"}]}, "input[0]: object missing required field `role`"),
    ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role: must be user, assistant, system or developer"),
    ({"input": [{"role": "user", "content": 1}]}, "input[0].content: expected `str | array | null`, got `int`"),
    ({"input": [{"role": "user", "content": ["a"]}]}, "input[0].content[0]: expected `object`, got `str`"),
    ({"input": [{"role": "user", "content": [{}]}]}, "input[0].content[0]: object missing required field `type`"),
    (
        {"input": [user("q"), user("q"), {"role": "user", "content": [{"type": "input_text"}]}]},
        "input[2].content[0]: object missing required field `text`",
    ),
    (
        {"input": [{"role": "assistant", "content": [{"type": "refusal", "refusal": 1}]}]},
        "input[0].content[0].refusal: expected `str`, got `int`",
    ),
    ({"input": [{"type": "reasoning", "content": "a"}]}, "input[0].content: expected `array | null`, got `str`"),
    ({"input": [{"type": "reasoning", "summary": [{}]}]}, "input[0].summary[0]: object missing required field `text`"),
    ({"input": [{"type": "function_call"}]}, "input[0]: object missing required field `call_id`"),
    ({"input": [called("c0", arguments=1)]}, "input[0].arguments: expected `str`, got `int`"),  # type: ignore[arg-type]
    (
        {"input": [{"type": "custom_tool_call", "call_id": "c0", "name": "patch"}]},
        "input[0]: object missing required field `input`",
    ),
    ({"input": [returned("c0", {"a": 1})]}, "input[0].output: expected `str | array | null`, got `object`"),
    ({"input": [returned(1)]}, "input[0].call_id: expected `str | null`, got `int`"),  # type: ignore[arg-type]
    ({"input": [{"type": "item_reference"}]}, "input[0]: object missing required field `id`"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, f"input[0]: Item with id 'msg_1'{FOUND_NO_ITEM}"),
    ({"input": [{"id": "rs_" + "0" * 32}]}, f"input[0]: Item with id 'rs_{'0' * 32}'{FOUND_NO_ITEM}"),
    (
        {"input": [user("q"), {"id": "fc_1", "call_id": "c0", "name": "run", "arguments": "{}"}]},
        "input[1]: a reference to an item has an id and nothing else, and an item that says something has its type",
    ),
    (
        {"input": [{"type": "item_reference", "id": "msg_1", "content": "a"}]},
        "input[0]: a reference to an item has an id and nothing else",
    ),
    # What says nothing is not there.
    (
        {"input": [{"type": "item_reference", "id": "msg_1", "status": None}]},
        f"input[0]: Item with id 'msg_1'{FOUND_NO_ITEM}",
    ),
    ({"input": "a", "tools": {}}, "tools: expected `array | null`, got `object`"),
    ({"input": "a", "tools": [FUNCTION, 1]}, "tools[1]: expected `object`, got `int`"),
    ({"input": "a", "tools": [{}]}, "tools[0]: object missing required field `type`"),
    ({"input": "a", "tools": [{"type": "function"}]}, "tools[0]: object missing required field `name`"),
    ({"input": "a", "tools": [{**FUNCTION, "description": 1}]}, "tools[0].description: expected `str | null`"),
    ({"input": "a", "tools": [{**NAMESPACE, "tools": None}]}, "tools[0].tools: expected `array`, got `null`"),
    ({"input": "a", "tools": [{**NAMESPACE, "tools": [{}]}]}, "tools[0].tools[0]: object missing required field"),
    (
        {"input": "a", "tools": [FUNCTION], "tool_choice": {"type": "function", "name": "f", "namespace": 1}},
        "tool_choice.namespace: expected `str | null`, got `int`",
    ),
    # What would reach the engine, or be taken for what it is not.
    ({"input": "a", "max_output_tokens": "many"}, "max_output_tokens: expected `int | null`, got `str`"),
    ({"input": "a", "max_output_tokens": "5"}, "max_output_tokens: expected `int | null`, got `str`"),
    ({"input": "a", "max_output_tokens": True}, "max_output_tokens: expected `int | null`, got `bool`"),
    ({"input": "a", "temperature": [1]}, "temperature: expected `"),
    ({"input": "a", "top_p": "1"}, "top_p: expected `"),
    ({"input": "a", "stream": "false"}, "stream: expected `bool | null`, got `str`"),
    ({"input": "a", "stop": [1]}, "stop[0]: expected `str`, got `int`"),
    ({"input": "a", "seed": "x"}, "seed: expected `int | null`, got `str`"),
    ({"input": "a", "separate_reasoning": "no"}, "separate_reasoning: expected `bool | null`, got `str`"),
    ({"input": "a", "chat_template_kwargs": []}, "chat_template_kwargs: expected `object | null`, got `array`"),
    ({"input": "a", "tools": [FUNCTION], "tool_choice": 1}, "tool_choice: expected `str | object | null`, got `int`"),
    ({"input": "a", "parallel_tool_calls": 1}, "parallel_tool_calls: expected `bool | null`, got `int`"),
]


@pytest.mark.parametrize(("body", "text"), WRONG)
def test_what_is_wrong_is_named_with_its_place(body: Any, text: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read(body)
    assert str(raised.value).startswith(text)
