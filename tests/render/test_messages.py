from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.render.conversations import PATIENT, assistant, call, user
from trio_sessions.errors import InvalidRequest
from trio_sessions.render.messages import MessageForm, normalize_messages, text_weight

FORMS = [
    MessageForm(arguments, content, string_arguments)
    for arguments in ("object", "string")
    for content in ("string", "parts")
    for string_arguments in (True, False)
]
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_content = (
    st.none() | st.text() | st.lists(st.builds(lambda text: {"type": "text", "text": text}, st.text()), max_size=3)
)
_arguments = _json | st.text() | st.builds(json.dumps, _json)
_messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool"])},
        optional={
            "content": _content,
            "tool_calls": st.none() | st.lists(st.builds(call, _arguments), max_size=2),
            "x": _json,
        },
    ),
    max_size=4,
)


@pytest.mark.parametrize("form", FORMS)
@PATIENT
@given(messages=_messages)
def test_the_result_has_the_form_and_the_input_stays(form, messages):
    before = copy.deepcopy(messages)
    out = normalize_messages(messages, form)
    assert repr(messages) == repr(before)
    assert [message["role"] for message in out] == [message["role"] for message in messages]
    for message in out:
        assert isinstance(message["content"], str if form.content == "string" else list)
        assert message.get("tool_calls", "absent") not in (None, [])
        for found in message.get("tool_calls", ()):
            arguments = found["function"]["arguments"]
            if form.arguments == "string":
                assert isinstance(arguments, str)
            elif not form.string_arguments:
                assert isinstance(arguments, dict)
            else:
                assert isinstance(arguments, str | dict)


@PATIENT
@given(arguments=st.dictionaries(st.text(), st.integers() | st.text() | st.booleans()))
def test_arguments_survive_the_way_there_and_back(arguments):
    to_text, to_object = MessageForm("string"), MessageForm("object")
    text = normalize_messages([assistant("", call(arguments))], to_text)
    assert json.loads(text[0]["tool_calls"][0]["function"]["arguments"]) == arguments
    assert normalize_messages(text, to_object) == normalize_messages([assistant("", call(arguments))], to_object)


def test_json_text_is_not_respelled_where_text_is_wanted():
    (message,) = normalize_messages([assistant("", call('{"a":1}'))], MessageForm("string"))
    assert message["tool_calls"][0]["function"]["arguments"] == '{"a":1}'


@pytest.mark.parametrize("arguments", ["[1]", "5", "true", '"x"', "{", "1" * 5000, "[" * 100_000])
def test_what_is_no_json_object_stays_text(arguments):
    (message,) = normalize_messages([assistant("", call(arguments))], MessageForm("object"))
    assert message["tool_calls"][0]["function"]["arguments"] == arguments
    (message,) = normalize_messages([assistant("", call(arguments))], MessageForm("object", string_arguments=False))
    assert message["tool_calls"][0]["function"]["arguments"] == {"arguments": arguments}


def test_parts_are_joined_without_anything_between():
    parts = [{"type": "text", "text": "a"}, "b", {"text": "c"}]
    assert normalize_messages([{"role": "user", "content": parts}], MessageForm())[0]["content"] == "abc"


def test_a_call_in_the_old_style_keeps_its_place():
    (message,) = normalize_messages([assistant("", {"name": "f", "arguments": "{}"})], MessageForm())
    assert message["tool_calls"] == [{"name": "f", "arguments": {}}]


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"role": "user", "content": 5}, "messages[7].content must be a string, a list of parts or null, got a number"),
        (
            {"role": "user", "content": {}},
            "messages[7].content must be a string, a list of parts or null, got an object",
        ),
        ({"role": "user", "content": [5]}, "messages[7].content[0] must be an object, got a number"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            "messages[7].content[0] is not a text part, and only text can be rendered",
        ),
        ({"role": "assistant", "tool_calls": {"a": 1}}, "messages[7].tool_calls must be a list, got an object"),
        ({"role": "assistant", "tool_calls": ["x"]}, "messages[7].tool_calls[0] must be an object, got a string"),
        (
            {"role": "assistant", "tool_calls": [{"function": True}]},
            "messages[7].tool_calls[0].function must be an object, got a boolean",
        ),
    ],
)
def test_odd_shapes_are_refused_by_place(message, complaint):
    with pytest.raises(InvalidRequest) as caught:
        normalize_messages([message], MessageForm(), first_index=7)
    assert str(caught.value) == complaint


@PATIENT
@given(messages=_messages)
def test_weight_accepts_anything(messages):
    assert text_weight(messages) >= 0


def test_weight_counts_text():
    assert text_weight([user("abcd"), assistant("ef", call('{"a": 1}'))]) >= 14
