"""When is a replayed message the stored one?"""

from __future__ import annotations

import functools
import json
import sys
import types

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.core import PATIENT
from trio_sessions.core.matchers import (
    MATCHERS,
    identical,
    loose_tool_call,
    matching_prefix_length,
    role_content_only,
    strict,
)
from trio_sessions.errors import ConfigurationError, MatcherFailed
from trio_sessions.service.hooks import resolve_matcher
from trio_sessions.testing.strategies import json_values, messages, respelled

# Messages as a client might garble them: any key may hold anything.
any_messages = messages() | st.dictionaries(
    st.sampled_from(["role", "content", "reasoning_content", "tool_calls", "name"]),
    json_values(max_leaves=4)
    | st.lists(
        st.dictionaries(
            st.sampled_from(["id", "type", "function", "index"]),
            json_values(max_leaves=2)
            | st.dictionaries(st.sampled_from(["name", "arguments"]), json_values(max_leaves=3), max_size=2),
            max_size=3,
        ),
        max_size=2,
    ),
    max_size=4,
)


def _call(arguments: object, **fields: object) -> dict[str, object]:
    function = {"name": "f", "arguments": arguments}
    call = {"id": "call_0", "type": "function", "function": function, **fields}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _copy(message: object) -> object:
    return json.loads(json.dumps(message))


@pytest.mark.parametrize("matches", MATCHERS.values(), ids=MATCHERS.keys())
class TestEveryMatcher:
    @PATIENT
    @given(any_messages)
    def test_is_reflexive(self, matches, message):
        assert matches(message, _copy(message)) is True

    @settings(PATIENT, max_examples=60)
    @given(st.data(), messages())
    def test_does_not_change_what_it_compares(self, matches, data, message):
        other = data.draw(respelled(message))
        before = json.dumps([message, other])
        matches(message, other)
        assert json.dumps([message, other]) == before

    def test_white_space_is_significant(self, matches):
        assert not matches({"role": "user", "content": "a"}, {"role": "user", "content": "a "})

    def test_the_role_counts(self, matches):
        assert not matches({"role": "user", "content": "a"}, {"role": "tool", "content": "a"})

    @pytest.mark.parametrize("content", [True, 0, "1", [1], {"a": 1}, "null", " "])
    def test_types_of_content_stay_apart(self, matches, content):
        for other in (None, 1, False, ["1"], [True], {"a": True}):
            assert not matches({"role": "user", "content": content}, {"role": "user", "content": other})


@st.composite
def _changed(draw: st.DrawFn, message: dict[str, object]) -> dict[str, object]:
    changed = dict(message)
    changed[draw(st.sampled_from(["role", "content", "reasoning_content", "tool_calls"]))] = draw(
        json_values(max_leaves=3)
    )
    return changed


# To the matcher ``agent`` it matters which of the two is authoritative.
@pytest.mark.parametrize("matches", [strict, loose_tool_call, role_content_only])
@PATIENT
@given(st.data(), any_messages)
def test_is_symmetric(matches, data, message):
    other = data.draw(any_messages | respelled(message) | _changed(message))
    assert matches(message, other) is matches(other, message)


EMPTY = ["absent", None, "", []]


def _with(key: str, value: object) -> dict[str, object]:
    message: dict[str, object] = {"role": "assistant", "content": "x"}
    if value == "absent":
        message.pop(key, None)
    else:
        message[key] = value
    return message


# -- strict -------------------------------------------------------------------------------------------------------


@PATIENT
@given(st.data(), any_messages)
def test_loose_and_role_content_only_accept_all_that_strict_accepts(data, message):
    other = data.draw(any_messages | respelled(message) | _changed(message))
    if strict(message, other):
        assert loose_tool_call(message, other)
        assert role_content_only(message, other)


@pytest.mark.parametrize("key", ["content", "reasoning_content", "tool_calls"])
@pytest.mark.parametrize("left", EMPTY, ids=repr)
@pytest.mark.parametrize("right", EMPTY, ids=repr)
def test_null_empty_and_absent_are_one(key, left, right):
    assert strict(_with(key, left), _with(key, right))


@pytest.mark.parametrize("key", ["content", "reasoning_content", "tool_calls"])
@pytest.mark.parametrize("empty", EMPTY, ids=repr)
@pytest.mark.parametrize("value", [" ", "null", "[]", 0, False, {}, [[]], [None], [""]], ids=repr)
def test_nothing_else_is_empty(key, empty, value):
    for matches in (strict, loose_tool_call):
        assert not matches(_with(key, empty), _with(key, value))


@pytest.mark.parametrize("key", ["reasoning_content", "tool_calls"])
def test_strict_compares_reasoning_and_calls_and_role_content_only_does_not(key):
    left, right = _with(key, [{"id": "a"}]), _with(key, [{"id": "b"}])
    assert not strict(left, right)
    assert not loose_tool_call(left, right)
    assert role_content_only(left, right)


@PATIENT
@given(
    st.text(max_size=5).filter(lambda key: key not in {"role", "content", "reasoning_content", "tool_calls"}),
    json_values(),
)
def test_every_other_key_of_a_message_is_ignored(key, value):
    message = {"role": "user", "content": "x"}
    assert strict(message, {**message, key: value})


@PATIENT
@given(json_values(max_leaves=2), json_values(max_leaves=2))
def test_index_is_ignored_in_a_call_and_only_there(left, right):
    assert strict(_call("{}", index=left), _call("{}", index=right))
    assert strict(_call("{}", index=left), _call("{}"))
    inside_left, inside_right = _call("{}"), _call("{}")
    inside_left["tool_calls"][0]["function"]["index"] = 1
    for matches in (strict, loose_tool_call):
        assert not matches(inside_left, inside_right)


@pytest.mark.parametrize(
    ("left", "right"),
    [("{}", ""), ("{}", {}), ('{"a":1}', '{"a": 1}'), ('{"a":1,"b":2}', '{"b":2,"a":1}'), (None, "")],
)
def test_strict_tells_spellings_of_arguments_apart(left, right):
    assert not strict(_call(left), _call(right))
    assert loose_tool_call(_call(left), _call(right))


# -- loose --------------------------------------------------------------------------------------------------------


@settings(PATIENT, max_examples=150)
@given(st.data(), any_messages)
def test_another_spelling_is_the_same_message(data, message):
    assert loose_tool_call(message, data.draw(respelled(message)))


@settings(PATIENT, max_examples=50)
@given(st.data(), messages())
def test_two_other_spellings_are_the_same_message(data, message):
    assert loose_tool_call(data.draw(respelled(message)), data.draw(respelled(message)))


def _spelled_differently(value: object) -> object:
    """Something that is never equal to ``value`` as JSON, though Python may think so."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float):
        return bool(value) if value in (0, 1) else str(value)
    if value is None:
        return "null"
    if isinstance(value, str):
        return value + " "
    return [value]


@PATIENT
@given(st.dictionaries(st.text(max_size=3), json_values(max_leaves=3), min_size=1, max_size=3), st.data())
def test_a_changed_argument_is_another_call(arguments, data):
    key = data.draw(st.sampled_from(sorted(arguments)))
    changed = {**arguments, key: _spelled_differently(arguments[key])}
    fewer = {name: value for name, value in arguments.items() if name != key}
    for other in (changed, fewer):
        for left in (arguments, json.dumps(arguments)):
            for right in (other, json.dumps(other)):
                assert not loose_tool_call(_call(left), _call(right))


OBJECTS = ["{}", " { } ", "", None, {}]


@pytest.mark.parametrize("left", OBJECTS, ids=repr)
@pytest.mark.parametrize("right", OBJECTS, ids=repr)
def test_arguments_that_say_nothing_are_one(left, right):
    assert loose_tool_call(_call(left), _call(right))
    absent = _call(left)
    del absent["tool_calls"][0]["function"]["arguments"]
    assert loose_tool_call(absent, _call(right))
    assert loose_tool_call(_call(right), absent)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ('{"a":false}', {"a": False}),
        ('{"a": 1.0}', '{"a":1}'),
        ('{"a": 0.1}', {"a": 0.1}),
        ('{"a": 1e2}', {"a": 100}),
        ('{"a":12345678901234567890123456789}', {"a": 12345678901234567890123456789}),
        ('{"a":"\\u00e9"}', '{"a":"é"}'),
        ('{"a":[{"b":1,"c":2}]}', {"a": [{"c": 2, "b": 1}]}),
        ('{"a":-0.0}', '{"a":0}'),
    ],
)
def test_one_object_in_two_spellings(left, right):
    assert loose_tool_call(_call(left), _call(right))
    assert loose_tool_call(_call(right), _call(left))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ('{"a":true}', '{"a":1}'),
        ({"a": True}, {"a": 1}),
        ({"a": False}, {"a": 0}),
        ('{"a":1}', '{"a":"1"}'),
        ({"a": 1}, {"a": "1"}),
        ("null", None),
        ("null", "{}"),
        ("null", ""),
        ({"a": None}, {"a": "null"}),
        ({"a": None}, {}),
        ('{"a":""}', '{"a":null}'),
        ('{"a":[]}', '{"a":null}'),
        ('{"a":[1,2]}', '{"a":[2,1]}'),
        ({"a": [1, 2]}, '{"a":[2,1]}'),
        ('{"a":1,"a":1}', '{"a":1}'),
        ('{"a":1,"a":1}', '{"a":1, "a":1}'),
        ('{"a":{"b":1,"b":2}}', {"a": {"b": 2}}),
        ('{"a":NaN}', '{"a": NaN}'),
        ('{"a":Infinity}', '{"a": Infinity}'),
        ("[]", ""),
        ("[]", "{}"),
        ([], {}),
        ([], None),
        ("[1]", "[ 1]"),
        ("[1]", [1]),
        ("1", 1),
        (True, 1),
        ("{", "{ "),
        (" ", ""),
        ('{"a":"x"}', '{"a":"x "}'),
        ('{"a":0.1}', '{"a":0.1000000000000000055511151231257827}'),
        ('{"a":12345678901234567890}', '{"a":12345678901234567891}'),
        ('{"a":9007199254740993}', '{"a":9007199254740992.0}'),
        ({"a": 9007199254740993}, {"a": 9007199254740992.0}),
    ],
)
def test_different_arguments(left, right):
    assert not loose_tool_call(_call(left), _call(right))
    assert not loose_tool_call(_call(right), _call(left))


@pytest.mark.parametrize("raw", ['{"a":NaN}', '{"a":1,"a":2}', "{", "[1]", "null", "\ud800", '{"a":1}}', "{'a':1}"])
def test_text_that_is_not_one_object_matches_itself(raw):
    assert loose_tool_call(_call(raw), _call(raw))
    assert loose_tool_call(_call(raw), _call(raw, index=1))


@pytest.mark.parametrize(
    "change",
    [{"id": "call_1"}, {"type": "other"}, {"x_unknown": 1}, {"x_unknown": None}, {"function": None}, {"function": "f"}],
)
def test_ids_types_names_and_unknown_fields_of_a_call_compare(change):
    for arguments in ("{}", {"a": 1}):
        assert not loose_tool_call(_call(arguments), _call(arguments, **change))
        assert not loose_tool_call(_call(arguments, **change), _call(arguments))
    named, extra = _call({}), _call({})
    named["tool_calls"][0]["function"]["name"] = "g"
    extra["tool_calls"][0]["function"]["x_unknown"] = None
    assert not loose_tool_call(_call({}), named)
    assert not loose_tool_call(_call({}), extra)


def test_numbers_in_text_have_no_limit_of_digits():
    digits = "9" * 5_000
    assert loose_tool_call(_call(f'{{"a":{digits}}}'), _call(f'{{ "a":{digits}}}'))
    assert not loose_tool_call(_call(f'{{"a":{digits}}}'), _call(f'{{"a":{digits[:-1]}8}}'))


def test_calls_keep_their_order_and_number():
    one, two = _call("{}", id="1")["tool_calls"], _call("", id="2")["tool_calls"]
    message = {"role": "assistant", "tool_calls": one + two}
    assert loose_tool_call(message, message)
    for other in (two + one, one, one + two + two):
        assert not loose_tool_call(message, {**message, "tool_calls": other})


@pytest.mark.parametrize("depth", [100, 300, 480, 600, 900, 5_000])
@pytest.mark.parametrize(("opener", "closer"), [('{"a":', "}"), ('{"a":[', "]}")], ids=["objects", "both"])
def test_deep_arguments_are_compared_and_never_blow_the_stack(depth, opener, closer):
    """Arguments are text, so the limit on the body's nesting does not see into them."""
    text = opener * depth + "1" + closer * depth
    assert loose_tool_call(_call(text), _call(text))
    assert loose_tool_call(_call(text), _call(" " + text)) in (True, False)
    assert not loose_tool_call(_call(text), _call(text.replace("1", "2")))


# -- the prefix ---------------------------------------------------------------------------------------------------


@settings(PATIENT, max_examples=60)
@given(st.lists(messages(), max_size=4), st.lists(messages(), max_size=4), st.integers(0, 4))
def test_the_prefix_is_counted_message_by_message(stored, tail, kept):
    replayed = stored[:kept] + tail
    wanted = 0
    for left, right in zip(stored, replayed, strict=False):
        if not strict(left, right):
            break
        wanted += 1
    assert matching_prefix_length(stored, replayed, strict) == wanted
    assert matching_prefix_length(replayed, stored, strict) == wanted


def test_a_later_match_does_not_count_after_a_difference():
    a, b = {"role": "user", "content": "a"}, {"role": "user", "content": "b"}
    assert matching_prefix_length([a, a, a], [a, b, a], strict) == 1


def test_the_matcher_is_given_stored_then_replayed():
    seen = []

    def record(stored, replayed):
        seen.append((stored["n"], replayed["n"]))
        return True

    assert matching_prefix_length([{"n": 1}, {"n": 2}], [{"n": 3}, {"n": 4}, {"n": 5}], record) == 2
    assert seen == [(1, 3), (2, 4)]


# -- identical ----------------------------------------------------------------------------------------------------


@PATIENT
@given(json_values(), st.data())
@example({"a": 1, "b": 2}, None)
def test_identical_is_same_text_but_for_the_order_of_keys(value, data):
    other = {"b": 2, "a": 1} if data is None else data.draw(json_values() | st.just(_copy(value)))
    assert identical(value, other) is (json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True))


@pytest.mark.parametrize(
    ("left", "right"), [(1, True), (1, 1.0), (0.0, -0.0), ([0.0], [-0.0]), ("", None), ([], None), ({"a": None}, {})]
)
def test_not_identical(left, right):
    assert not identical(left, right)
    assert not identical(right, left)


# -- from an import path ------------------------------------------------------------------------------------------


@pytest.fixture
def module(monkeypatch):
    module = types.ModuleType("matchers_of_a_user")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def _resolved(module, matcher):
    module.matcher = matcher
    return resolve_matcher("matchers_of_a_user.matcher")


@pytest.mark.parametrize("name", ["strict", "loose_tool_call", "role_content_only", "agent"])
def test_built_in_names(name):
    assert resolve_matcher(name) is MATCHERS[name]


def test_a_users_function_decides(module):
    matches = _resolved(module, lambda stored, replayed: stored["content"].strip() == replayed["content"].strip())
    assert matches({"content": "a"}, {"content": "a "}) is True
    assert matches({"content": "a"}, {"content": "b"}) is False


@pytest.mark.parametrize(
    "error", [ValueError("broken"), AssertionError("broken"), KeyError("broken"), StopIteration("broken")]
)
def test_a_matcher_that_raises_is_never_a_match(module, error):
    def broken(stored, replayed):
        raise error

    with pytest.raises(MatcherFailed, match=rf"matchers_of_a_user\.matcher raised {type(error).__name__}: '?broken"):
        _resolved(module, broken)({}, {})


@pytest.mark.parametrize("answer", [None, 1, 0, "", "yes", [], pytest.param(object(), id="an object")], ids=repr)
def test_an_answer_that_is_no_bool_is_never_a_match(module, answer):
    with pytest.raises(MatcherFailed, match=f"must return a bool, got {type(answer).__name__}"):
        _resolved(module, lambda stored, replayed: answer)({}, {})


def test_cancellation_is_not_swallowed(module):
    def interrupted(stored, replayed):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _resolved(module, interrupted)({}, {})


async def _async_matcher(stored, replayed):
    return True


class _AsyncCallable:
    async def __call__(self, stored, replayed):
        return True


@pytest.mark.parametrize(
    "matcher",
    [_async_matcher, _AsyncCallable(), functools.partial(_async_matcher, {}), _AsyncCallable().__call__],
    ids=["function", "callable object", "partial", "method"],
)
def test_async_matchers_are_refused(module, matcher):
    with pytest.raises(ConfigurationError, match="is async; a matcher is synchronous"):
        _resolved(module, matcher)


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (
            "nonsense",
            r"unknown message matcher 'nonsense': use strict, loose_tool_call, role_content_only, agent, or a dotted",
        ),
        ("", "unknown message matcher ''"),
        ("no_such_module_at_all.f", r"cannot import message matcher 'no_such_module_at_all\.f'"),
        ("json.no_such_function", r"cannot import message matcher 'json\.no_such_function'"),
        ("json.decoder.NaN", "is not callable"),
        (".f", "unknown message matcher"),
        ("json.", "cannot import message matcher"),
        ("json..loads", "cannot import message matcher"),
        (".json.loads", r"cannot import message matcher '\.json\.loads'"),
        ("..f", r"cannot import message matcher '\.\.f'"),
    ],
)
def test_what_cannot_be_resolved_is_a_configuration_error(selector, text):
    with pytest.raises(ConfigurationError, match=text):
        resolve_matcher(selector)


@pytest.mark.parametrize("source", ["1 / 0", "raise RuntimeError('at import')", "def f(:"])
def test_a_module_that_fails_to_import_is_a_configuration_error(tmp_path, monkeypatch, source):
    (tmp_path / "broken_matcher_module.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"cannot import message matcher 'broken_matcher_module\.f'"):
        resolve_matcher("broken_matcher_module.f")
