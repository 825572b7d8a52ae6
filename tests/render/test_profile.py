"""What the probe finds, template by template."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.render.conversations import assistant, call, tool, user
from tests.render.families import TEMPLATES, chatml, from_template, renderer_of, tokenizer_of, turn
from trio_sessions.errors import ConfigurationError
from trio_sessions.render.codec import TextCodec
from trio_sessions.render.jinja import ChatTemplate
from trio_sessions.render.template import TemplateRenderer


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("builtin", {"user", "tool", "system"}),
        ("qwen3", {"user", "tool", "system"}),
        ("chatml", {"user", "tool", "system", "developer"}),
        ("llama", {"user", "tool", "system", "developer"}),
        ("mistral", {"user", "tool"}),
        ("glm", {"user", "tool", "system"}),
        ("hoists system", {"user", "tool", "developer"}),
        ("drops developer", {"user", "tool", "system"}),
        ("counts turns", {"user", "tool", "system", "developer"}),
        ("looks names up", {"user", "tool", "system", "developer"}),
        ("no opener after system", {"user", "tool", "developer"}),
        ("tools before user", {"user", "tool", "system", "developer"}),
        ("parts", {"user", "tool", "system", "developer"}),
    ],
)
def test_appendable_roles(name, roles):
    assert renderer_of(name).appendable_roles({}) == roles


@pytest.mark.parametrize(
    ("name", "role", "reason"),
    [
        ("hoists system", "system", "moves the message before the assistant turn"),
        ("drops developer", "developer", "drops the message"),
        ("qwen3", "developer", "drops the message"),
        ("no opener after system", "system", "no generation opener follows"),
        ("mistral", "system", "roles must be user, assistant or tool"),
    ],
)
def test_a_refused_role_has_its_reason(name, role, reason):
    assert reason in renderer_of(name).profile.refused[role]


@pytest.mark.parametrize("name", ["builtin", "qwen3", "drops developer", "glm", "chatml", "llama", "parts"])
def test_a_developers_instructions_are_never_lost(name):
    """Agents send them to models of any kind; where the template has no such role they are the system's."""
    renderer = renderer_of(name)
    instructions = {"role": "developer", "content": "Be brief."}
    for method in (renderer.render, renderer.canonical):
        text = renderer.decode(method([instructions, user("hi"), assistant("ok"), user("more")], tools=None, kwargs={}))
        as_system = [{**instructions, "role": "system"}, user("hi"), assistant("ok"), user("more")]
        assert text.count("Be brief.") == 1
        known = name in ("chatml", "llama", "parts")
        assert (text == renderer.decode(method(as_system, tools=None, kwargs={}))) is not known


@pytest.mark.parametrize(
    ("name", "arguments", "string_arguments"),
    [
        ("qwen3", "object", True),
        ("chatml", "object", True),
        ("object arguments", "object", False),
        ("string arguments", "string", True),
    ],
)
def test_argument_form(name, arguments, string_arguments):
    form = renderer_of(name).profile.form
    assert (form.arguments, form.string_arguments) == (arguments, string_arguments)


def test_a_template_that_prints_an_object_as_python_does_gets_json_text():
    body = turn("{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}")
    assert from_template(chatml(body)).profile.form.arguments == "string"


def test_content_form():
    assert renderer_of("parts").profile.form.content == "parts"
    assert renderer_of("chatml").profile.form.content == "string"


def test_tool_form():
    assert renderer_of("bare functions").profile.tools == "function"
    assert renderer_of("qwen3").profile.tools == "wrapper"


def test_tools_are_left_out_of_a_suffix_that_does_not_show_them():
    assert not renderer_of("qwen3").profile.suffix_reads_tools
    assert renderer_of("tools before user").profile.suffix_reads_tools


@pytest.mark.parametrize("name", [*sorted(set(TEMPLATES) - {"glm"}), "builtin", "qwen3"])
def test_nothing_is_trimmed_where_the_stop_is_unambiguous(name):
    assert renderer_of(name).max_trim_tokens == 0


def test_the_next_opener_as_stop_is_ambiguous():
    renderer = renderer_of("glm")
    assert renderer.max_trim_tokens == 1
    named = {renderer.decode([i]) for i in renderer.profile.replaceable_ids}
    assert named == {"<|user|>", "<|observation|>", "<|system|>"}


def test_one_opener_that_is_the_stop_is_not_ambiguous_but_still_due_after_another_stop():
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}<|assistant|>"
        "{% elif m.role == 'assistant' %}{{ m.content }}{% else %}{{ raise_exception('no') }}{% endif %}{% endfor %}"
    )
    renderer = from_template(template, "glm")
    assert renderer.appendable_roles({}) == {"user"}
    assert renderer.max_trim_tokens == 0
    assert renderer.profile.roles["user"].usual.opens_next
    # Nothing follows an assistant turn when nothing is appended.
    assert isinstance(renderer.profile.again, str)


def test_a_final_turn_without_a_terminator_does_not_hide_it():
    ending = "{% if not loop.last or add_generation_prompt %}<|im_end|>\n{% endif %}"
    body = "<|im_start|>{{ m.role }}\n{{ m.content }}" + ending
    profile = from_template(chatml(body)).profile
    assert profile.roles["user"].usual.terminator == "<|im_end|>"
    assert not profile.roles["user"].usual.opens_next


def test_a_final_turn_with_another_terminator_keeps_both_as_stops():
    body = (
        "<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% if m.role == 'assistant' and loop.last %}<|endoftext|>{% else %}<|im_end|>\n{% endif %}"
    )
    renderer = from_template(chatml(body, opener="{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"))
    assert {renderer.decode([i]) for i in renderer.profile.stop_ids} == {"<|im_end|>", "<|endoftext|>"}


def test_a_call_with_a_terminator_of_its_own():
    profile = renderer_of("three terminators").profile
    assert profile.roles["tool"].usual.terminator == "<|call|>"
    assert {kind: j.terminator for kind, j in profile.roles["user"].junctions.items()} == {
        "text": "<|im_end|>",
        "call": "<|call|>",
    }
    assert profile.max_trim_tokens == 0
    # A turn that ends with a call may be followed by a user: whatever stop was sampled is kept.
    assert profile.appendable_roles == {"user", "tool", "system", "developer"}
    named = {renderer_of("three terminators").decode([i]) for i in profile.stop_ids}
    assert named == {"<|im_end|>", "<|call|>", "<|endoftext|>"}


@pytest.mark.parametrize(
    ("template", "fact"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "no control token"),
        (
            "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }} END OF TURN{% endfor %}",
            "ordinary text ('END OF TURN') ends the assistant turn",
        ),
        ("{{ raise_exception('never') }}", "never"),
        ("{{ messages[0].content }}", "cannot render a conversation"),
        ("{% for m in messages %}{{ m.content }", "cannot be used"),
        (
            "{% for m in messages if m.role != 'assistant' or not loop.last %}{{ m.content }}{% endfor %}",
            "cannot be used",
        ),
    ],
)
def test_a_template_without_a_clean_cut_is_refused_with_the_fact(template, fact):
    with pytest.raises(ConfigurationError) as caught:
        from_template(template)
    assert fact in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_base_of_a_result_is_a_call_where_the_template_insists():
    profile = renderer_of("mistral").profile
    assert list(profile.roles["tool"].junctions) == ["call"]
    assert list(profile.roles["user"].junctions) == ["text", "call"]
    assert profile.roles["tool"].usual.terminator == "</s>"


def test_a_template_for_which_a_result_behind_a_text_looks_different():
    body = (
        "{% set before = messages[loop.index0 - 1] %}"
        "{% if m.role == 'tool' and not before.tool_calls and before.role != 'tool' %}"
        "<|im_start|>stray {{ m.content }}<|im_end|>\n{% else %}" + turn() + "{% endif %}"
    )
    renderer = from_template(chatml(body))
    assert renderer.profile.roles["tool"].junctions.keys() == {"text", "call"}
    history = [user("hello"), assistant("", call({"query": "x"}))]
    stored = renderer.canonical(history, tools=None, kwargs={})[:-1]
    extension = renderer.extend(stored, stored_messages=history, appended=[tool("y")], tools=None, kwargs={})
    full = renderer.render([*history, tool("y")], tools=None, kwargs={})
    assert [*stored[: extension.keep].tolist(), *extension.token_ids.tolist()][-10:] == full[-10:].tolist()


def test_a_terminator_that_is_a_token_only_on_its_own_is_no_cut():
    inner = Tokenizer.from_str(tokenizer_of("chatml").backend_tokenizer.to_str())
    # Behind a word it is part of the word; at the start of a text it is the token.
    inner.add_tokens([AddedToken("END", single_word=True, normalized=False)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>")
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}END\n{% endfor %}"
    with pytest.raises(ConfigurationError, match="nothing can be appended"):
        TemplateRenderer(ChatTemplate(tokenizer, template), TextCodec(tokenizer))


def test_what_follows_must_encode_as_it_does_in_its_place(monkeypatch):
    codec = TextCodec(tokenizer_of("chatml"))
    encode = codec.encode
    # A tokenizer that spells the start of a text in another way than its middle.
    monkeypatch.setattr(codec, "encode", lambda text: encode(text) + ([] if text.startswith("<|im_end|>") else [5]))
    with pytest.raises(ConfigurationError, match="encodes differently on its own than in its place"):
        TemplateRenderer(ChatTemplate(tokenizer_of("chatml"), TEMPLATES["chatml"]), codec)


@pytest.mark.parametrize(
    ("name", "close", "past", "keeps"),
    [
        ("thinks", "</think>", "dropped", {"preserve_thinking": True}),
        ("opens thinking", "\n</think>\n\n", "never written", {}),
        ("qwen3", "\n</think>\n\n", "dropped", {}),
        ("chatml", None, "never written", {}),
    ],
)
def test_how_a_template_treats_thinking(name, close, past, keeps):
    profile = renderer_of(name).profile
    assert (profile.thinking.close if profile.thinking else None) == close
    assert profile.past_thinking == past
    assert profile.keeps_thinking == keeps


def test_thinking_that_is_kept_needs_no_kwarg():
    renderer = from_template(TEMPLATES["thinks"], "thinks", defaults={"preserve_thinking": True})
    assert renderer.profile.past_thinking == "kept"
    assert renderer.profile.keeps_thinking == {}


def test_a_thought_in_a_format_of_its_own_has_no_mark_to_close():
    body = (
        "<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<|call|>{{ m.reasoning_content }}"
        "<|endoftext|>final{% endif %}{{ m.content }}<|im_end|>\n"
    )
    assert from_template(chatml(body)).profile.thinking is None


def test_a_template_that_reads_the_clock():
    assert renderer_of("reads the clock").profile.reads_clock
    assert not renderer_of("chatml").profile.reads_clock


@pytest.mark.parametrize(
    ("name", "reaches"),
    [
        ("chatml", {}),
        ("looks names up", {"tool": {"call": "last turn"}}),
        ("orders results", {"tool": {"call": "last turn"}}),
        ("counts turns", {"system": {"text": "history", "call": "history"}}),
        ("marks the first result", {"tool": {"text": "history", "call": "history"}}),
    ],
)
def test_how_far_back_a_role_looks(name, reaches):
    profile = renderer_of(name).profile
    assert {role: dict(facts.reach) for role, facts in profile.roles.items() if facts.reach} == reaches
    assert profile.looks_back is bool(reaches)


@pytest.mark.parametrize(
    ("name", "rewritten"),
    [
        ("chatml", set()),
        ("glm", set()),
        ("thinks", {"thinking"}),
        ("qwen3", {"text", "thinking", "calls"}),
        ("tools before user", set()),
    ],
)
def test_what_of_the_history_is_rewritten(name, rewritten):
    assert renderer_of(name).profile.rewritten == rewritten


def test_a_terminator_of_the_last_turn_alone_is_an_alternate():
    profile = renderer_of("three terminators").profile
    assert {renderer_of("three terminators").decode([i]) for i in profile.alternate_ids} == {"<|endoftext|>"}
    assert renderer_of("chatml").profile.alternate_ids == set()


@pytest.mark.parametrize("name", ["chatml", "glm", "qwen3"])
def test_texts_that_would_become_control_ids(name):
    renderer = renderer_of(name)
    added = renderer._codec.added_text
    assert set(renderer.profile.injection) == {text for text in added.values() if text.strip()}
    for text in renderer.profile.injection:
        assert added[renderer.encode(f"a{text}b")[1]] == text
