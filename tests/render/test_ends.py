"""How a turn ends: templates that close it in more than one way, and what a model then leaves to be added."""

from __future__ import annotations

import pytest

from tests.render.conversations import assistant, call, ids_of, tool, user
from tests.render.vocabularies import byte_level
from trio_sessions.errors import ConfigurationError, InvalidRequest
from trio_sessions.render.codec import TextCodec
from trio_sessions.render.jinja import ChatTemplate
from trio_sessions.render.template import TemplateRenderer
from trio_sessions.render.verify import verify_renderer

MARKS = ("<|turn|>", "<|turn_end|>", "<|answer_end|>", "<|await|>", "<|call|>", "<|result|>", "<|done|>")
CALLS = "{% for c in m.tool_calls or [] %}<|call|>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"
OPENER = "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"


def renderer_with(body, *stops, opener=OPENER):
    """A renderer of a template that writes every message with ``body``; the model stops at ``stops``."""
    tokenizer = byte_level(MARKS, eos=stops[0])
    codec = TextCodec(tokenizer, eos_ids=[tokenizer.convert_tokens_to_ids(stop) for stop in stops])
    return TemplateRenderer(ChatTemplate(tokenizer, "{% for m in messages %}" + body + "{% endfor %}" + opener), codec)


def next_prompt(renderer, sampled, *appended, last=None):
    """Text of the next prompt when ``sampled`` was said and ``appended`` is sent."""
    question = user("hello")
    prompt = renderer.render([question], tools=None, kwargs={}).tolist()
    stored = ids_of(*prompt, *renderer.encode(sampled))
    history = [question, last or assistant("Hello")]
    extension = renderer.extend(stored, stored_messages=history, appended=appended, tools=None, kwargs={})
    ids = [*stored[: extension.keep].tolist(), *extension.token_ids.tolist()]
    assert extension.keep == len(stored) or renderer.max_trim_tokens == 1
    return renderer.decode(ids_of(*ids)).removeprefix(renderer.decode(ids_of(*prompt))), extension


def passes(renderer):
    report = verify_renderer(renderer)
    assert report.passed, str(report)
    return report


ANSWER = (
    "<|turn|>{{ m.role }}\n{{ m.content }}"
    + CALLS
    + "{% if m.role == 'assistant' %}<|answer_end|>{% endif %}<|turn_end|>"
)


def test_a_turn_ends_where_the_model_stops_and_not_at_the_first_mark():
    renderer = renderer_with(ANSWER, "<|turn_end|>")
    text, extension = next_prompt(renderer, "Hello<|answer_end|><|turn_end|>", user("more"))
    assert text == "Hello<|answer_end|><|turn_end|><|turn|>user\nmore<|turn_end|><|turn|>assistant\n"
    assert extension.synthetic == 0
    passes(renderer)


def test_without_a_known_stop_the_first_mark_is_as_good_as_any():
    renderer = renderer_with(ANSWER, "<|done|>")
    assert renderer.profile.roles["user"].usual.terminator == "<|answer_end|>"


@pytest.mark.parametrize("stop", ["<|answer_end|>", "<|answer_end|>\n<|turn_end|>"])
def test_two_stops_in_a_row_are_not_doubled(stop):
    body = (
        "<|turn|>{{ m.role }}\n{{ m.content }}"
        + CALLS
        + "{{ '<|answer_end|>\n<|turn_end|>' if m.role == 'assistant' }}"
    )
    renderer = renderer_with(body, "<|answer_end|>", "<|turn_end|>")
    text, _ = next_prompt(renderer, "Hello" + stop, user("more"))
    assert text == "Hello<|answer_end|>\n<|turn_end|><|turn|>user\nmore<|turn|>assistant\n"
    passes(renderer)


def test_an_end_that_a_final_text_leaves_out_is_still_no_opener():
    body = (
        "{% if m.role == 'tool' %}<|result|>{{ m.content }}{% else %}<|turn|>{{ m.role }}\n{{ m.content }}"
        + CALLS
        + "{% if m.role == 'assistant' and (m.tool_calls or not loop.last) %}<|turn_end|>{% endif %}{% endif %}"
    )
    renderer = renderer_with(body, "<|turn_end|>")
    assert renderer.max_trim_tokens == 0
    called = assistant("", call({"query": "x"}))
    text, _ = next_prompt(renderer, '<|call|>lookup {"query": "x"}<|turn_end|>', tool("42"), last=called)
    assert text == '<|call|>lookup {"query": "x"}<|turn_end|><|result|>42<|turn|>assistant\n'
    # Generating again: the sampled stop stays, and the opener is still due.
    text, _ = next_prompt(renderer, "Hello<|turn_end|>")
    assert text == "Hello<|turn_end|><|turn|>assistant\n"
    passes(renderer)


def test_a_user_behind_a_call_and_behind_a_text():
    body = "<|turn|>{{ m.role }}\n{{ m.content }}" + CALLS + "{{ '<|await|>' if m.tool_calls else '<|turn_end|>' }}"
    renderer = renderer_with(body, "<|turn_end|>", "<|await|>")
    ends = {kind: junction.terminator for kind, junction in renderer.profile.roles["user"].junctions.items()}
    assert ends == {"text": "<|turn_end|>", "call": "<|await|>"}
    called = assistant("", call({"query": "x"}))
    for sampled, last in (("Hello<|turn_end|>", None), ('<|call|>lookup {"query": "x"}<|await|>', called)):
        text, _ = next_prompt(renderer, sampled, user("more"), last=last)
        assert text == sampled + "<|turn|>user\nmore<|turn_end|><|turn|>assistant\n"
    passes(renderer)


def test_a_turn_that_stays_open_behind_a_call():
    body = (
        "{% if m.role == 'tool' %}[{{ m.content }}]{% else %}"
        "{% if not loop.index0 or messages[loop.index0 - 1].role != 'tool' %}<|turn|>{{ m.role }}\n{% endif %}"
        "{{ m.content }}" + CALLS + "{{ '<|await|>' if m.tool_calls else '<|turn_end|>' }}{% endif %}"
    )
    renderer = renderer_with(
        body, "<|turn_end|>", opener="{% if messages[-1].role != 'tool' %}" + OPENER + "{% endif %}"
    )
    called = assistant("", call({"query": "x"}))
    text, _ = next_prompt(renderer, '<|call|>lookup {"query": "x"}<|await|>', tool("42"), last=called)
    assert text.startswith('<|call|>lookup {"query": "x"}<|await|>[42]')


def test_a_result_that_cannot_be_joined_to_a_text_is_joined_to_a_call_alone():
    body = (
        "{% if m.role == 'tool' %}[{{ m.content }}]{% else %}<|turn|>{{ m.role }}\n{{ m.content }}"
        + CALLS
        + "{{ '<|await|>' if m.tool_calls }}{% endif %}"
    )
    renderer = renderer_with(body, "<|done|>", "<|await|>")
    called = assistant("", call({"query": "x"}))
    text, _ = next_prompt(renderer, '<|call|>lookup {"query": "x"}<|await|>', tool("42"), last=called)
    assert text == '<|call|>lookup {"query": "x"}<|await|>[42]<|turn|>assistant\n'
    with pytest.raises(
        InvalidRequest, match=r"messages\[2\] has role 'tool', which cannot follow this turn: no control"
    ):
        next_prompt(renderer, "Hello<|done|>", tool("42"))


def test_a_result_is_refused_where_no_call_can_be_written():
    body = "{% if m.tool_calls %}{{ raise_exception('no calls') }}{% endif %}" + ANSWER
    profile = renderer_with(body, "<|turn_end|>").profile
    assert "no calls" in profile.refused["tool"]
    assert profile.appendable_roles == {"user", "system", "developer"}


def test_a_call_that_a_template_leaves_out_does_not_refuse_its_result():
    body = "{% if not m.tool_calls %}<|turn|>{{ m.role }}\n{{ m.content }}<|turn_end|>{% endif %}"
    assert "tool" in renderer_with(body, "<|turn_end|>").profile.appendable_roles


def test_a_role_that_is_moved_behind_some_histories_is_refused():
    body = (
        "{% if loop.first %}{% for s in messages if s.role == 'system' and messages[0].role != 'system' %}"
        "<|turn|>system\n{{ s.content }}<|turn_end|>{% endfor %}{% endif %}"
        "{% if m.role != 'system' or messages[0].role == 'system' %}"
        "<|turn|>{{ m.role }}\n{{ m.content }}" + CALLS + "<|turn_end|>{% endif %}"
    )
    assert "moves the message" in renderer_with(body, "<|turn_end|>").profile.refused["system"]


def test_only_the_first_of_several_calls_is_written():
    body = (
        "<|turn|>{{ m.role }}{% if m.role == 'tool' %} {{ messages[loop.index0 - 1].tool_calls[0].function.name "
        "if messages[loop.index0 - 1].tool_calls }}{% endif %}\n{{ m.content }}"
        "{% for c in (m.tool_calls or [])[:1] %}<|call|>{{ c.function.arguments | tojson }}{% endfor %}<|turn_end|>"
    )
    renderer = renderer_with(body, "<|turn_end|>")
    called = assistant("", call({"query": "x"}), call({"query": "y"}, "call00002"))
    text, _ = next_prompt(renderer, '<|call|>{"query": "x"}<|turn_end|>', tool("42"), last=called)
    assert text == '<|call|>{"query": "x"}<|turn_end|><|turn|>tool lookup42<|turn_end|><|turn|>assistant\n'
    passes(renderer)


def test_what_closes_a_call_may_show_its_id():
    body = (
        "<|turn|>{{ m.role }}{{ ' ' + messages[loop.index0 - 1].role if m.role == 'tool' }}\n{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<|call|>{{ c.function.arguments | tojson }} {{ c.id }}{% endfor %}"
        "<|turn_end|>"
    )
    renderer = renderer_with(body, "<|turn_end|>")
    called = assistant("", call({"query": "x"}, "another id"))
    text, _ = next_prompt(renderer, "<|call|>x<|turn_end|>", tool("42", "another id"), last=called)
    assert text == "<|call|>x<|turn_end|><|turn|>tool assistant\n42<|turn_end|><|turn|>assistant\n"
    passes(renderer)


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        # An empty turn gets no end.
        (
            "<|turn|>{{ m.role }}\n{{ m.content }}"
            + CALLS
            + "{% if m.content or m.tool_calls or m.role != 'assistant' %}<|turn_end|>{% endif %}",
            "the template writes no terminator behind such a turn",
        ),
        # A text beside calls is written behind them, and behind their results.
        (
            "{% set before = messages[loop.index0 - 1] %}<|turn|>{{ m.role }}\n"
            "{% if m.role != 'assistant' or not m.tool_calls %}{{ m.content }}{% endif %}" + CALLS + "<|turn_end|>"
            "{% if m.role == 'tool' and before.tool_calls and before.content %}{{ before.content }}{% endif %}",
            "the template writes the text of a turn behind its calls",
        ),
    ],
)
def test_an_oddity_of_a_template_is_a_remark(body, remark):
    report = passes(renderer_with(body, "<|turn_end|>"))
    assert any(remark in case.detail for case in report.cases)


def test_a_stop_inside_a_turn_is_part_of_what_was_said():
    body = (
        "<|turn|>{{ m.role }}\n{{ m.content }}<|turn_end|>"
        "{% for c in m.tool_calls or [] %}<|turn|>call\n{{ c.function.arguments | tojson }}<|turn_end|>{% endfor %}"
    )
    passes(renderer_with(body, "<|turn_end|>"))


def test_white_space_before_an_end_that_a_final_turn_leaves_out():
    body = (
        "<|turn|>{{ m.role }}\n{{ m.content }}"
        + CALLS
        + "{% if not loop.last or m.role != 'assistant' %}\n<|turn_end|>{% endif %}"
    )
    passes(renderer_with(body, "<|turn_end|>"))


def test_an_end_of_text_instead_of_an_opener():
    opener = "{{ '<|turn|>assistant\n' if add_generation_prompt else '<|done|>' }}"
    body = "<|turn|>{{ m.role }}\n{{ m.content }}" + CALLS + "<|turn_end|>"
    renderer = renderer_with(body, "<|done|>", "<|turn_end|>", opener=opener)
    assert renderer.profile.generation_opener == "<|turn|>assistant\n"
    report = passes(renderer)
    assert not any("rewrites" in case.detail for case in report.cases if case.name == "user turns")


def test_roles_that_must_alternate_are_skipped_and_do_not_end_the_run():
    body = (
        "{% if m.role == 'user' and loop.index0 and messages[loop.index0 - 1].role in ('user', 'tool') %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}" + ANSWER
    )
    report = passes(renderer_with(body, "<|turn_end|>"))
    assert any("roles must alternate" in case.detail for case in report.cases if case.outcome == "skipped")


def test_a_template_that_cannot_do_without_tools_is_refused_with_its_own_words():
    with pytest.raises(ConfigurationError, match="not iterable"):
        renderer_with("{% for t in tools %}{{ t | tojson }}{% endfor %}" + ANSWER, "<|turn_end|>")
