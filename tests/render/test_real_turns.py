"""Roles that are rendered behind the session's own turns, because the template looks at them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.render.conversations import PATIENT, assistant, ids_of, plain_texts, texts, tool, user
from tests.render.families import from_template, renderer_of, turn
from trio_sessions.errors import InvalidRequest

NAMES = ("looks names up", "orders results", "counts turns", "marks the first result")
CALL_NAMES = st.sampled_from(["lookup", "search", "fetch"])


def named_call(name, call_id, text):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": {"query": text}}}


@st.composite
def rounds(draw):
    """A turn with one or two calls, and their results in any order."""
    count = draw(st.integers(1, 2))
    calls = [named_call(draw(CALL_NAMES), f"call0000{index}", draw(plain_texts)) for index in range(count)]
    results = [tool(draw(texts), f"call0000{index}") for index in draw(st.permutations(range(count)))]
    return [assistant(draw(plain_texts), *calls), *results]


earlier = st.lists(rounds() | st.builds(lambda a, u: [assistant(a), user(u)], plain_texts, texts), max_size=3)


@pytest.mark.parametrize("name", NAMES)
@PATIENT
@given(question=texts, before=earlier, last=rounds(), more=st.lists(st.sampled_from(["user", "system"]), max_size=2))
def test_what_follows_is_what_the_template_writes_behind_the_whole_history(name, question, before, last, more):
    renderer = renderer_of(name)
    history = [user(question), *(message for group in before for message in group), last[0]]
    appended = [*last[1:], *({"role": role, "content": "more"} for role in more)]
    # The template's own ids of the history; what was sampled is of no concern to what follows.
    stored = renderer.canonical(history, tools=None, kwargs={})[:-1]
    extension = renderer.extend(stored, stored_messages=history, appended=appended, tools=None, kwargs={})
    full = renderer.render([*history, *appended], tools=None, kwargs={}).tolist()
    assert [*stored[: extension.keep].tolist(), *extension.token_ids.tolist()] == full
    assert (extension.keep, extension.synthetic) == (len(stored), 0)


@pytest.mark.parametrize("name", NAMES)
def test_the_history_is_rendered_but_its_control_texts_stay_escaped(name):
    renderer = renderer_of(name)
    history = [user("<|im_end|>"), assistant("<|im_end|>", named_call("lookup", "call00000", "<|im_end|>"))]
    stored = renderer.canonical(history, tools=None, kwargs={})[:-1]
    appended = [tool("<|im_end|> zqSentinel0qz", "call00000")]
    extension = renderer.extend(stored, stored_messages=history, appended=appended, tools=None, kwargs={})
    full = renderer.render([*history, *appended], tools=None, kwargs={}).tolist()
    assert extension.token_ids.tolist() == full[len(stored) :]


def test_only_the_last_turn_is_rendered_where_that_does():
    renderer = renderer_of("orders results")
    history = [user("a"), assistant("b"), user("c"), assistant("", named_call("lookup", "call00000", "d"))]
    # A message that no template could render, far enough back not to matter.
    history[1] = {"role": "assistant", "content": 5}
    extension = renderer.extend(
        ids_of(0), stored_messages=history, appended=[tool("e", "call00000")], tools=None, kwargs={}
    )
    assert "e" in renderer.decode(extension.token_ids)
    with pytest.raises(InvalidRequest, match=r"messages\[1\]\.content must be a string"):
        renderer_of("marks the first result").extend(
            ids_of(0), stored_messages=history, appended=[tool("e", "call00000")], tools=None, kwargs={}
        )


def test_a_role_that_cannot_stand_behind_the_last_turn_says_so():
    body = (
        "{% set before = messages[loop.index0 - 1] %}{% if m.role == 'tool' %}"
        "{% if before.role == 'assistant' and not before.tool_calls %}"
        "{{ raise_exception('nothing was called') }}{% endif %}"
        "<|im_start|>{{ before.tool_calls[0].function.name if before.tool_calls }}\n{{ m.content }}<|im_end|>\n"
        "{% else %}" + turn() + "{% endif %}"
    )
    renderer = from_template("{% for m in messages %}" + body + "{% endfor %}<|im_start|>assistant\n")
    assert renderer.profile.roles["tool"].reach == {"call": "last turn"}
    with pytest.raises(InvalidRequest, match="the chat template refuses the messages: nothing was called"):
        renderer.extend(
            ids_of(0), stored_messages=[user("a"), assistant("b")], appended=[tool("c")], tools=None, kwargs={}
        )


@pytest.mark.parametrize(
    ("name", "heavy"), [("chatml", False), ("looks names up", True), ("marks the first result", True)]
)
def test_a_long_history_weighs_where_it_is_rendered(name, heavy):
    renderer = renderer_of(name)
    stored = [user("word " * 1000)]
    weight = renderer.weight([tool("x")], stored=stored, tools=None, kwargs={})
    assert (weight > 5000) is heavy


def test_a_late_result_is_looked_for_in_the_whole_history():
    renderer = renderer_of("looks names up")
    asked = assistant("", named_call("search", "call00000", "a"), named_call("fetch", "call00001", "b"))
    history = [user("go"), asked, tool("one", "call00001"), assistant("and the other?")]
    late = tool("two", "call00000")
    full = renderer.render([*history, late], tools=None, kwargs={}).tolist()
    stored = renderer.canonical(history, tools=None, kwargs={})[:-1]
    extension = renderer.extend(stored, stored_messages=history, appended=[late], tools=None, kwargs={})
    assert [*stored.tolist(), *extension.token_ids.tolist()] == full
    assert "tool search" in renderer.decode(extension.token_ids)


def test_a_call_id_that_was_used_before_is_looked_for_in_the_whole_history():
    body = (
        "{% if m.role == 'tool' %}<|im_start|>tool{% for p in messages %}{% for c in p.tool_calls or [] %}"
        "{% if c.id == m.tool_call_id %} {{ c.function.name }}{% endif %}{% endfor %}{% endfor %}\n"
        "{{ m.content }}<|im_end|>\n{% else %}" + turn() + "{% endif %}"
    )
    renderer = from_template("{% for m in messages %}" + body + "{% endfor %}<|im_start|>assistant\n")
    assert renderer.profile.roles["tool"].reach["call"] == "last turn"
    first, second = (assistant("", named_call(name, "call00000", "x")) for name in ("search", "fetch"))
    history = [user("go"), first, tool("one", "call00000"), second]
    extension = renderer.extend(
        ids_of(0), stored_messages=history, appended=[tool("two", "call00000")], tools=None, kwargs={}
    )
    assert "tool search fetch" in renderer.decode(extension.token_ids)


def test_a_suffix_behind_real_turns_is_rendered_with_the_tools():
    body = (
        "{% if m.role == 'tool' %}<|im_start|>tool {{ messages[loop.index0 - 1].role }} {{ (tools or []) | length }}\n"
        "{{ m.content }}<|im_end|>\n{% else %}" + turn() + "{% endif %}"
    )
    renderer = from_template("{% for m in messages %}" + body + "{% endfor %}<|im_start|>assistant\n")
    tools = [{"type": "function", "function": {"name": "lookup"}}]
    history = [user("go"), assistant("", named_call("lookup", "call00000", "x"))]
    extension = renderer.extend(
        ids_of(0), stored_messages=history, appended=[tool("two", "call00000")], tools=tools, kwargs={}
    )
    assert "tool assistant 1\n" in renderer.decode(extension.token_ids)
