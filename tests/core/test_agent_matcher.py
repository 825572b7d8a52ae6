"""The matcher ``agent``: all that real agents do to a message, and nothing that changes what it says."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.core import PATIENT
from tests.core.test_history import checkpoint_of
from tests.core.test_matchers import any_messages
from trio_sessions.core.history import LinearHistory, TreeHistory
from trio_sessions.core.matchers import agent, loose_tool_call
from trio_sessions.errors import RollbackRefused
from trio_sessions.testing.strategies import (
    AGENTS,
    agent_replays,
    changed_meaning,
    changed_reasoning,
    conversations,
    json_values,
    messages,
    replay_of,
    respelled,
)

MANY = settings(PATIENT, max_examples=150)


def assistant(content="", *calls, **fields):
    message = {"role": "assistant", "content": content, **fields}
    return {**message, "tool_calls": list(calls)} if calls else message


def call(arguments="{}", name="f", key="c1", **fields):
    return {"id": key, "type": "function", "function": {"name": name, "arguments": arguments}, **fields}


def with_arguments(arguments):
    return assistant("", call(arguments))


# -- what is replayed ---------------------------------------------------------------------------------------------

# Arguments that models write and that no dict gives: digits beyond a double, repeated keys, text that is no object.
ODD_ARGUMENTS = [
    '{"n":12345678901234567890, "x": 1.0, "y": 0.10000000000000000555}',
    '{"n": -0.0, "e": 1E2, "tiny": 5e-324, "huge": 1.7976931348623157e308}',
    '{"a":1,"a":2}',
    '{"a":{"b":1,"b":[2]},"a":{"b":[3, 3]}}',
    '{"10":1,"9":{"b":1,"0":2}}',
    '{"s":"[1, {\\"a\\": 2.50}]", "t": "{}", "u": "[x]"}',
    "{'a': 1}",
    '{"a":',
    "[1, 2]",
    '"x"',
    "null",
    "x y",
]


@st.composite
def served(draw):
    """Any legal message; assistants call with odd arguments as well, and think what looks like a tag."""
    message = draw(messages())
    if message.get("tool_calls") and draw(st.booleans()):
        calls = [dict(each) for each in message["tool_calls"]]
        at = draw(st.integers(0, len(calls) - 1))
        function = {**calls[at]["function"], "arguments": draw(st.sampled_from(ODD_ARGUMENTS))}
        calls[at]["function"] = function
        message = {**message, "tool_calls": calls}
    if message.get("reasoning_content") and draw(st.booleans()):
        message = {
            **message,
            "reasoning_content": draw(st.sampled_from(["<think>", "a\n</think>\n", "\n\n a\n\n\nb "])),
        }
    return message


@pytest.mark.parametrize("habits", AGENTS.values(), ids=AGENTS.keys())
@PATIENT
@given(st.data(), served())
def test_what_an_agent_sends_back_matches(habits, data, message):
    assert agent(message, data.draw(replay_of(message, habits))) is True


@MANY
@given(st.data(), served())
def test_habits_of_several_agents_match(data, message):
    assert agent(message, data.draw(agent_replays(message))) is True


@MANY
@given(st.data(), served())
def test_another_meaning_never_matches(data, message):
    changed = data.draw(changed_meaning(message))
    assert agent(message, changed) is False
    if changed.get("tool_call_id") == message.get("tool_call_id"):
        assert loose_tool_call(message, changed) is False


@settings(PATIENT, max_examples=300)
@given(st.data(), served())
def test_another_meaning_in_an_agents_spelling_never_matches(data, message):
    changed = data.draw(changed_meaning(message))
    assert agent(message, data.draw(agent_replays(changed))) is False


KEEPING_REASONING = {name: habits for name, habits in AGENTS.items() if habits.reasoning != "dropped"}


@MANY
@given(st.data(), served().filter(lambda message: message["role"] == "assistant"))
def test_other_or_invented_reasoning_never_matches(data, message):
    changed = data.draw(changed_reasoning(message))
    assert agent(message, changed) is False
    assert agent(message, data.draw(agent_replays(changed, agents=KEEPING_REASONING))) is False


@MANY
@given(any_messages | served())
def test_every_message_matches_itself(message):
    assert agent(message, message) is True
    assert agent(message, json.loads(json.dumps(message))) is True


@MANY
@given(st.data(), served())
def test_what_loose_tool_call_accepts_of_a_spelling_is_accepted(data, message):
    other = data.draw(respelled(message))
    assert loose_tool_call(message, other)
    assert agent(message, other) is True


call_like = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from(["a", "b", "", None, 1]) | json_values(max_leaves=2),
        "type": st.sampled_from(["function", None]) | json_values(max_leaves=2),
        "function": json_values(max_leaves=2)
        | st.fixed_dictionaries(
            {},
            optional={
                "name": st.sampled_from(["f", None]) | json_values(max_leaves=2),
                "arguments": json_values(max_leaves=3) | json_values(max_leaves=3).map(json.dumps) | st.text(),
            },
        ),
        "arguments": json_values(max_leaves=2),
        "custom": json_values(max_leaves=2),
    },
)
part_like = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["text", "input_text", "image_url", []]),
        "text": st.text() | json_values(max_leaves=2),
        "cache_control": json_values(max_leaves=1),
    },
)
texts = st.sampled_from(
    [
        "",
        "\n",
        "<think>",
        "<think>a</think>",
        "Calling tools:\n",
        "Calling tools:\n[]",
        "Calling tools:\n[{'id': 'a', 'type': 'function', 'function': {'name': 'f', 'arguments': None}}]",
        "Calling tools:\n[{[]: 1}, {1}, b'', 1j]",
        "\nCalling tools:\n" + "[" * 300,
        "Calling tools:\n" + "-" * 20_000 + "1",
        "Calling tools:\n['\ud800', '\0']",
    ]
)
message_like = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["assistant", "user", "tool", "system"]) | json_values(max_leaves=2),
        "content": texts | json_values(max_leaves=3) | st.lists(part_like | json_values(max_leaves=2), max_size=3),
        "reasoning_content": texts | json_values(max_leaves=2),
        "reasoning": texts | json_values(max_leaves=2),
        "tool_calls": json_values(max_leaves=2) | st.lists(call_like | json_values(max_leaves=2), max_size=3),
        "tool_call_id": json_values(max_leaves=2),
        "function_call": json_values(max_leaves=2) | call_like,
    },
)


@settings(PATIENT, max_examples=250)
@given(message_like | any_messages | served(), message_like | any_messages | served())
@example({"role": {}}, {"role": []})
def test_any_two_messages_are_told_apart_or_not_and_nothing_is_raised(stored, replayed):
    assert agent(stored, replayed) in (True, False)
    assert agent(stored, dict(stored)) is True


@MANY
@given(json_values(), json_values())
def test_any_two_arguments_are_told_apart_or_not(stored, replayed):
    for said in (stored, json.dumps(stored)):
        for again in (replayed, json.dumps(replayed)):
            assert agent(with_arguments(said), with_arguments(again)) in (True, False)


# -- one example of every agent -----------------------------------------------------------------------------------

ASKED = '{"path": "/a b", "limit": 10}'
COMPACT = '{"path":"/a b","limit":10}'
THOUGHT = assistant("Let me look.", call(ASKED), reasoning_content="They want a.\n")
SILENT = assistant("", call(ASKED), reasoning_content="They want a.\n")
LISTED = "[{'id': 'c1', 'type': 'function', 'function': {'name': 'f', 'arguments': {'path': '/a b', 'limit': 10}}}]"


def like(message, **fields):
    """``message`` with other fields; None takes one away."""
    return {key: value for key, value in {**message, **fields}.items() if value is not None}


BY_AGENT = {
    "openai": [
        (SILENT, {**SILENT, "content": None, "refusal": None, "annotations": [], "audio": None, "function_call": None}),
        (SILENT, like(SILENT, tool_calls=[call(ASKED, index=0)], parsed={"a": 1})),
    ],
    "litellm": [
        (SILENT, like(SILENT, content=None, provider_specific_fields={"a": 1}, citations=[])),
    ],
    "openai_agents": [(THOUGHT, like(THOUGHT, reasoning_content=None))],
    "codex": [
        (
            THOUGHT,
            like(
                THOUGHT,
                content=[{"type": "output_text", "text": "Let me look.", "annotations": []}],
                phase="commentary",
                status="completed",
            ),
        ),
        ({"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be brief."}),
        ({"role": "developer", "content": "Hi"}, {"role": "system", "content": [{"type": "input_text", "text": "Hi"}]}),
    ],
    "claude_code": [
        (
            {
                "role": "system",
                "content": [
                    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1;"},
                    {"type": "text", "text": "You are", "cache_control": {"type": "ephemeral"}},
                    {"type": "text", "text": " an agent."},
                ],
            },
            {
                "role": "system",
                "content": [
                    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=2;"},
                    {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
                ],
            },
        ),
        (
            assistant("", call("cut {"), call('{"n": 12345678901234567890}', key="c2")),
            assistant(
                None, call({"n": 12345678901234567000}, key="c2"), call({"arguments": "cut {"}), cache_control={"a": 1}
            ),
        ),
        (
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
            {
                "role": "tool",
                "tool_call_id": "c1",
                "name": "f",
                "content": [{"type": "text", "text": "done", "cache_control": {"type": "ephemeral"}}],
            },
        ),
    ],
    "opencode": [(SILENT, like(SILENT, content="", tool_calls=[call(COMPACT)]))],
    "qwen_code": [
        ({"role": "user", "content": "Hi"}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}),
        (
            {"role": "tool", "tool_call_id": "c1", "content": "4\n"},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "4\n"}]},
        ),
        (SILENT, {**SILENT, "content": None, "tool_calls": [call(COMPACT)]}),
    ],
    "pi": [
        (with_arguments('{"n":1.0,"m":12345678901234567890}'), with_arguments('{"n":1,"m":12345678901234567000}')),
        (with_arguments('{"m":12345678901234567890}'), with_arguments('{"m":1.2345678901234567e19}')),
    ],
    "mini_swe_agent": [
        (
            THOUGHT,
            like(
                THOUGHT,
                content=[{"type": "text", "text": "Let me "}, {"type": "text", "text": "look.", "cache_control": {}}],
                extra={"cost": 1},
            ),
        ),
    ],
    "pydantic_ai": [
        (THOUGHT, like(THOUGHT, reasoning_content=None, reasoning="They want a.", tool_calls=[call(COMPACT)])),
        (
            THOUGHT,
            like(THOUGHT, reasoning_content=None, content="<think>\nThey want a.\n\n</think>\n\nLet me look."),
        ),
        (SILENT, like(SILENT, reasoning_content=None, content="<think>\nThey want a.\n\n</think>")),
        (with_arguments("cut {"), with_arguments('{"INVALID_JSON":"cut {"}')),
        (with_arguments(" "), with_arguments('{"INVALID_JSON":" "}')),
    ],
    "langchain": [
        (
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "user", "content": "Hi"},
        ),
        (
            assistant("x", call('{"a":"é","b":[1]}'), reasoning_content="r"),
            assistant("x", call('{"a": "\\u00e9", "b": [1]}')),
        ),
    ],
    "strands": [
        (
            THOUGHT,
            {"role": "assistant", "content": [{"text": "Let me look.", "type": "text"}], "tool_calls": [call(ASKED)]},
        ),
        (SILENT, {"role": "assistant", "tool_calls": [call(ASKED)]}),
    ],
    "inspect": [
        (THOUGHT, like(THOUGHT, content="\nLet me look.")),
        (SILENT, like(SILENT, content="\n")),
        (THOUGHT, like(THOUGHT, reasoning_content=None, content="\n<think>\nThey want a.\n</think>\n\nLet me look.")),
    ],
    "smolagents": [
        (SILENT, assistant([{"type": "text", "text": f"\nCalling tools:\n{LISTED}"}])),
        (with_arguments(""), assistant(f"\nCalling tools:\n{[call({})]}")),
        (like(SILENT, content=None), assistant(f"Calling tools:\n{LISTED}")),
        (like(THOUGHT, content=" Let me look.\n"), assistant(f"Let me look.\nCalling tools:\n{LISTED}")),
        (
            assistant("", call('{"a": "[1]"}', key="b"), call("", key="a"), call('"[x', key="c")),
            assistant(
                "\nCalling tools:\n[{'id': 'a', 'type': 'function', 'function': {'name': 'f', 'arguments': ''}}, "
                "{'id': 'b', 'type': 'function', 'function': {'name': 'f', 'arguments': {'a': [1]}}}, "
                "{'id': 'c', 'type': 'function', 'function': {'name': 'f', 'arguments': '\"[x'}}]"
            ),
        ),
    ],
}


@pytest.mark.parametrize("name", BY_AGENT)
def test_examples_of(name):
    for stored, replayed in BY_AGENT[name]:
        assert agent(stored, replayed) is True, replayed


# -- what is something else ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "replayed"),
    [
        ('{"a":true}', '{"a":1}'),
        ('{"a":1}', '{"a":"1"}'),
        ({"a": 1}, {"a": True}),
        ('{"a":null}', "{}"),
        ("{}", '{"a":null}'),
        ('{"a":""}', '{"a":null}'),
        ('{"a":{}}', '{"a":null}'),
        ('{"a":[1,2]}', '{"a":[2,1]}'),
        ('{"a":"x"}', '{"a":"x "}'),
        ('{"a":1,"a":2}', '{"a":1}'),
        ('{"n":12345678901234567890}', '{"n":12345678901234567891}'),
        ('{"n":12345678901234567000}', '{"n":12345678901234567890}'),
        ('{"n":12345678901234567890}', '{"n":12345678901234568000}'),
        ('{"n":0.1}', '{"n":0.10000000000000001}'),
        ('{"n":1e400}', '{"n":null}'),
        ("{", "{ "),
        ("[1]", "[ 1]"),
        ("[1]", [1]),
        ("x", '{"arguments":"y"}'),
        ("x", '{"arguments":"x","b":1}'),
        ("x", '{"other":"x"}'),
        ('{"a":1}', {"arguments": '{"a":1}'}),
        ("", {"arguments": ""}),
        ("null", "{}"),
        ("null", None),
    ],
)
def test_other_arguments(stored, replayed):
    assert agent(with_arguments(stored), with_arguments(replayed)) is False


@pytest.mark.parametrize("left", ["{}", " { } ", "", None, {}], ids=repr)
@pytest.mark.parametrize("right", ["{}", " { } ", "", None, {}], ids=repr)
def test_arguments_that_say_nothing_are_one(left, right):
    absent = {"id": "c1", "function": {"name": "f"}}
    assert agent(with_arguments(left), with_arguments(right))
    assert agent(with_arguments(left), assistant("", absent))
    assert agent(assistant("", absent), with_arguments(left))


ONE, TWO = call('{"n":1}', key="c1"), call('{"n":2}', key="c2")


def without_id(each):
    return {key: value for key, value in each.items() if key != "id"}


@pytest.mark.parametrize(
    ("stored", "replayed", "matches"),
    [
        ([ONE, TWO], [TWO, ONE], True),
        ([ONE, TWO], [{**ONE, "id": "c2"}, {**TWO, "id": "c1"}], False),
        ([ONE, TWO], [without_id(ONE), without_id(TWO)], True),
        ([ONE, TWO], [without_id(TWO), without_id(ONE)], False),
        ([ONE, TWO], [without_id(ONE), TWO], True),
        ([ONE, TWO], [without_id(ONE), {**TWO, "id": "c3"}], False),
        ([ONE, {**TWO, "id": "c1"}], [ONE, {**TWO, "id": "c1"}], True),
        ([ONE, {**TWO, "id": "c1"}], [{**TWO, "id": "c1"}, ONE], False),
        ([without_id(ONE)], [ONE], True),
        ([ONE], [{**ONE, "id": "c2"}], False),
        ([ONE], [{**ONE, "type": "custom"}], False),
        ([ONE], [{key: ONE[key] for key in ("id", "function")}], True),
        ([ONE], [ONE, TWO], False),
        ([ONE, TWO], [ONE], False),
        ([ONE], [ONE, ONE], False),
        ([ONE], None, False),
        ([ONE], [], False),
        (None, [ONE], False),
        ([{"id": "c1", "type": "custom", "custom": {"name": "f", "input": "a"}}],) * 2 + (True,),
        (
            [{"id": "c1", "type": "custom", "custom": {"name": "f", "input": "a"}}],
            [{"id": "c1", "type": "custom", "custom": {"name": "f", "input": "b"}}],
            False,
        ),
        ([{"name": "f", "arguments": {"a": 1}}], [{"name": "f", "arguments": {"a": 2}}], False),
    ],
)
def test_calls_are_joined_on_their_ids(stored, replayed, matches):
    assert agent({**assistant(), "tool_calls": stored}, {**assistant(), "tool_calls": replayed}) is matches


def test_a_function_call_of_the_old_kind_counts():
    old = {**assistant(None), "function_call": {"name": "f", "arguments": '{"a":1}'}}
    assert agent(old, {**old, "function_call": {"name": "f", "arguments": '{"a": 1}'}})
    assert not agent(old, {**old, "function_call": {"name": "f", "arguments": '{"a": 2}'}})
    assert not agent(old, assistant(None))
    assert not agent(assistant(None), old)


TOOL = {"role": "tool", "tool_call_id": "c1", "content": "done"}


@pytest.mark.parametrize(
    ("stored", "replayed"),
    [
        (TOOL, {**TOOL, "tool_call_id": "c2"}),
        (TOOL, {**TOOL, "content": "done "}),
        (TOOL, {**TOOL, "role": "user"}),
        (TOOL, {**TOOL, "content": "\ndone"}),
        (assistant("a"), assistant("\na")),
        (assistant("a"), assistant("a", reasoning_content="r")),
        (assistant("a"), assistant("a", reasoning="r")),
        (assistant("a"), assistant("<think>\nr\n</think>\n\na")),
        (assistant("a", reasoning_content="r"), assistant("a", reasoning_content="s")),
        (assistant("a", reasoning_content="r"), assistant("a", reasoning_content="r", reasoning="s")),
        (assistant("a", reasoning_content="r"), assistant("<think>\ns\n</think>\n\na")),
        (assistant("a", reasoning_content="r"), assistant("<think>\nr\n</think>\n\nb")),
        (assistant("a", reasoning_content="r"), assistant("<think>\nr\n</think>\n\n a")),
        (assistant("a", reasoning_content="r"), assistant("<think>\nr\na")),
        (assistant("a", reasoning_content="r"), assistant("<think>\nr\n</THINK>\n\na")),
        (assistant("a", reasoning_content="r"), assistant("\n\na")),
        (assistant("a", reasoning_content="r"), assistant("a\n")),
        ({"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "a "}]}),
        ({"role": "user", "content": "a\nb"}, {"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}),
        ({"role": "user", "content": "a"}, {"role": "system", "content": "a"}),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "b"}}]},
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
            {"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "a"}]},
        ),
        (
            {
                "role": "user",
                "content": [{"type": "text", "text": t} for t in ("a", "b x-anthropic-billing-header: 1")],
            },
            {"role": "user", "content": "a"},
        ),
        (
            {"role": "user", "content": "a x-anthropic-billing-header: 1"},
            {"role": "user", "content": [{"type": "text", "text": "a "}]},
        ),
    ],
)
def test_something_else(stored, replayed):
    assert agent(stored, replayed) is False


@pytest.mark.parametrize("content", [None, "", [], [{"type": "text", "text": ""}]], ids=repr)
@pytest.mark.parametrize("again", ["absent", None, "", [], [{"type": "text", "text": ""}]], ids=repr)
def test_content_that_says_nothing_is_one(content, again):
    replayed = {"role": "user"} if again == "absent" else {"role": "user", "content": again}
    assert agent({"role": "user", "content": content}, replayed)
    assert agent(replayed, {"role": "user", "content": content})


def test_a_part_that_is_no_text_may_get_cache_control():
    image = {"type": "image_url", "image_url": {"url": "a"}}
    stored = {"role": "user", "content": [{"type": "text", "text": "a"}, image]}
    assert agent(stored, {"role": "user", "content": [{"type": "text", "text": "a"}, {**image, "cache_control": {}}]})


@pytest.mark.parametrize(
    "listed",
    [
        LISTED.replace("10", "11"),
        LISTED.replace("10", "'10'"),
        LISTED.replace("c1", "c2"),
        LISTED.replace("'f'", "'g'"),
        LISTED.replace("'path'", "b'path'"),
        LISTED.replace("10", "(10+0j)"),
        LISTED.replace("[", "(").replace("]", ",)"),
        f"[{LISTED[1:-1]}, {LISTED[1:-1].replace('c1', 'c2')}]",
        f"{LISTED} ok",
        "[{[]: 1}]",
        f"{LISTED} # and more",
        f"{LISTED}\n",
        f" {LISTED}",
        LISTED.replace("'f'", "'' 'f'"),
        LISTED.replace(", ", ",  ", 1),
        LISTED + " " * 5_000,
        "[]",
        "[",
        "",
    ],
)
def test_other_calls_as_text(listed):
    for before in ("", "\n"):
        assert agent(SILENT, assistant(f"{before}Calling tools:\n{listed}")) is False


def test_calls_as_text_only_instead_of_calls_and_behind_the_same_text():
    text = f"Let me look.\nCalling tools:\n{LISTED}"
    assert agent(THOUGHT, assistant(text))
    assert not agent(THOUGHT, assistant(text, call(ASKED)))
    assert not agent(THOUGHT, assistant(f"Let me see.\nCalling tools:\n{LISTED}"))
    assert not agent(THOUGHT, assistant(f"Calling tools:\n{LISTED}"))
    assert not agent(THOUGHT, assistant("Let me look."))
    assert not agent(SILENT, assistant(text))
    assert not agent(assistant("Let me look."), assistant(text))


@pytest.mark.parametrize(("lines", "compared"), [(20_000, True), (50_000, False)])
def test_long_calls_as_text(lines, compared):
    """What is longer than 256 KiB is not parsed, even where it lists these very calls."""
    arguments = json.dumps({"text": "line\n" * lines})
    listed = f"\nCalling tools:\n{[call(json.loads(arguments))]}"
    assert agent(with_arguments(arguments), assistant(listed)) is compared
    assert not agent(with_arguments(arguments), assistant(listed.replace("line", "LINE", 1)))


@pytest.mark.parametrize("text", ["-" * 100_000 + "1", "1" + "+1" * 50_000, "[" * 1_000, "f" + "()" * 50_000, "\0"])
def test_text_that_python_cannot_parse(text):
    stored = with_arguments(json.dumps({"text": "line\n" * 20_000}))
    for listed in (text, f"[{text}]", f"[{text}"):
        assert not agent(stored, assistant(f"\nCalling tools:\n{listed}"))


@pytest.mark.parametrize("number", ["9" * 5_000, "0x" + "f" * 5_000])
def test_numbers_that_python_does_not_print(number):
    text = f'{{"a":{"9" * 5_000}}}'
    listed = f"[{{'id': 'c1', 'type': 'function', 'function': {{'name': 'f', 'arguments': {{'a': {number}}}}}}}]"
    assert not agent(with_arguments(text), assistant(f"\nCalling tools:\n{listed}"))


@pytest.mark.parametrize("depth", [100, 300, 900, 5_000])
@pytest.mark.parametrize(("opener", "closer"), [('{"a":', "}"), ('{"a":[', "]}")], ids=["objects", "both"])
def test_deep_arguments_never_blow_the_stack(depth, opener, closer):
    text = opener * depth + "1" + closer * depth
    assert agent(with_arguments(text), with_arguments(text))
    assert agent(with_arguments(text), with_arguments(" " + text)) in (True, False)
    assert not agent(with_arguments(text), with_arguments(text.replace("1", "2")))
    listed = f"[{{'id': 'c1', 'type': 'function', 'function': {{'name': 'f', 'arguments': {text}}}}}]"
    assert agent(with_arguments(text), assistant(f"\nCalling tools:\n{listed}")) in (True, False)
    assert not agent(with_arguments(text), assistant(f"\nCalling tools:\n{LISTED}"))


def test_numbers_have_no_limit_of_digits():
    digits = "9" * 5_000
    assert agent(with_arguments(f'{{"b":1,"a":{digits}}}'), with_arguments(f'{{ "a":{digits},"b":1}}'))
    assert not agent(with_arguments(f'{{"a":{digits}}}'), with_arguments(f'{{"a":{digits[:-1]}8}}'))


# -- histories ----------------------------------------------------------------------------------------------------


def grown(history, conversation):
    """``history`` with every assistant message of ``conversation`` sampled; the checkpoints, in order."""
    checkpoints = []
    for index, message in enumerate(conversation):
        if message["role"] == "assistant":
            attachment = history.attach(conversation[:index], agent)
            history.commit(attachment, checkpoint_of(attachment, message))
            checkpoints.append(history.active)
    return checkpoints


@st.composite
def talks(draw):
    """A conversation of at least one exchange, odd arguments included."""
    conversation = draw(conversations())
    return [
        draw(served().filter(lambda new: new["role"] == "assistant"))
        if message["role"] == "assistant" and "tool_calls" not in message and draw(st.booleans())
        else message
        for message in conversation
    ]


@pytest.mark.parametrize("kind", [LinearHistory, TreeHistory])
@PATIENT
@given(st.data(), talks())
def test_a_replayed_conversation_attaches_where_the_original_does(kind, data, conversation):
    history = kind()
    checkpoints = grown(history, conversation)
    replayed = [data.draw(agent_replays(message)) for message in conversation]
    new = {"role": "user", "content": "and now?"}
    attachment = history.attach([*replayed, new], agent)
    assert attachment.base is (checkpoints[-1] if checkpoints else None)
    assert attachment.base is history.attach([*conversation, new], agent).base
    assert attachment.discards == 0


@pytest.mark.parametrize("kind", [LinearHistory, TreeHistory])
@PATIENT
@given(st.data(), talks())
def test_a_changed_conversation_never_attaches_behind_the_change(kind, data, conversation):
    history = kind()
    grown(history, conversation)
    at = data.draw(st.integers(0, len(conversation) - 1))
    changed = [*conversation[:at], data.draw(changed_meaning(conversation[at])), *conversation[at + 1 :]]
    replayed = [data.draw(agent_replays(message)) for message in changed]
    try:
        base = history.attach(replayed, agent).base
    except RollbackRefused:
        assert kind is LinearHistory
    else:
        assert base is None or base.message_count <= at
