"""The numbered cases of token exactness that concern rendering; ids are what must come out."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.render.conversations import (
    PATIENT,
    assistant,
    call,
    ids_of,
    plain_texts,
    prompt_of,
    stored_after,
    terminator,
    texts,
    tool,
    user,
)
from tests.render.families import THINKING_SPECIALS, chatml, from_template, renderer_of, tokenizer_of
from tests.render.vocabularies import metaspace
from trio_sessions.errors import InvalidRequest
from trio_sessions.render.codec import TextCodec
from trio_sessions.render.jinja import ChatTemplate
from trio_sessions.render.template import TemplateRenderer

IM_START, IM_END = 151644, 151645


def extend(renderer, stored, appended, history=()):
    return renderer.extend(stored, stored_messages=history, appended=appended, tools=None, kwargs={})


def glm_ids(*names):
    return tokenizer_of("glm").convert_tokens_to_ids(list(names))


def test_case_1_a_result_after_a_stop_adds_no_second_terminator():
    renderer = renderer_of("qwen3")
    stored = stored_after(renderer, user("hello"), sampled="x", stop=IM_END)
    extension = extend(renderer, stored, [tool("42")])
    ids = prompt_of(stored, extension)
    assert ids[: len(stored)] == stored.tolist()
    newline = renderer._codec.encode("\n")
    assert ids[len(stored) :][:2] == [*newline, IM_START]
    assert renderer.decode(extension.token_ids) == (
        "\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_case_1_a_turn_cut_by_length_is_closed_and_never_glued_on():
    renderer = renderer_of("qwen3")
    stored = stored_after(renderer, user("hello"), sampled="x", stop=None)
    extension = extend(renderer, stored, [tool("42")])
    assert (extension.keep, extension.synthetic, int(extension.token_ids[0])) == (len(stored), 1, IM_END)


@pytest.mark.parametrize(("case", "role", "opener"), [(2, "tool", "<|observation|>"), (4, "user", "<|user|>")])
def test_case_2_and_4_a_stop_that_is_the_right_opener_is_kept_once(case, role, opener):
    renderer = renderer_of("glm")
    (stop,) = glm_ids(opener)
    stored = stored_after(renderer, user("hello"), sampled="x", stop=stop)
    extension = extend(renderer, stored, [tool("42") if role == "tool" else user("42")])
    ids = prompt_of(stored, extension)
    assert ids[: len(stored)] == stored.tolist()
    assert ids[len(stored) - 1 :].count(stop) == 1
    assert extension.synthetic == 0


@settings(PATIENT, max_examples=20)
@given(text=st.text(max_size=5).filter(str.isprintable))
def test_case_3_a_stop_that_is_another_opener_becomes_the_right_one(text):
    renderer = renderer_of("glm")
    observation, opener = glm_ids("<|observation|>", "<|user|>")
    stored = stored_after(renderer, user("hello"), sampled="x", stop=observation)
    extension = extend(renderer, stored, [user(text)])
    assert extension.keep == len(stored) - 1
    assert extension.synthetic == 0
    assert int(extension.token_ids[0]) == opener
    assert observation not in extension.token_ids.tolist()


def test_case_3_generating_again_replaces_the_opener_that_was_the_stop():
    renderer = renderer_of("glm")
    observation, opener = glm_ids("<|observation|>", "<|assistant|>")
    stored = stored_after(renderer, user("hello"), sampled="x", stop=observation)
    extension = extend(renderer, stored, [])
    assert (extension.keep, int(extension.token_ids[0])) == (len(stored) - 1, opener)


def test_a_stop_that_opens_nothing_is_kept_and_the_opener_follows():
    renderer = renderer_of("glm")
    end, opener = glm_ids("<|endoftext|>", "<|user|>")
    stored = stored_after(renderer, user("hello"), sampled="x", stop=end)
    extension = extend(renderer, stored, [user("more")])
    assert (extension.keep, extension.synthetic, int(extension.token_ids[0])) == (len(stored), 0, opener)


def test_an_empty_generation_does_not_lose_its_opener():
    renderer = renderer_of("glm")
    stored = stored_after(renderer, user("hello"), sampled="", stop=None)
    extension = extend(renderer, stored, [user("more")])
    assert (extension.keep, extension.synthetic) == (len(stored), 1)


def test_case_5_a_missing_close_is_synthetic():
    renderer = renderer_of("builtin")
    stored = stored_after(renderer, user("hello"), sampled="x", stop=None)
    extension = extend(renderer, stored, [user("more")])
    assert (extension.keep, extension.synthetic) == (len(stored), 1)
    assert renderer.decode(extension.token_ids[:1]) == "<|im_end|>"


@pytest.mark.parametrize("spelled", ['{"a": false}', '{"a":false}', '{ "a" : false }'])
def test_case_9_the_spelling_of_stored_arguments_cannot_reach_the_prompt(spelled):
    renderer = renderer_of("qwen3")
    text = f'<tool_call>\n{{"name": "f", "arguments": {spelled}}}\n</tool_call>'
    stored = stored_after(renderer, user("hello"), sampled=text, stop=IM_END)
    for replayed in ({"a": False}, '{"a":false}', spelled):
        extension = extend(renderer, stored, [tool("x")], [user("hello"), assistant("", call(replayed))])
        assert prompt_of(stored, extension)[: len(stored)] == stored.tolist()


@pytest.mark.parametrize("arguments", [{}, "{}", "", None])
def test_case_10_empty_arguments_render_alike(arguments):
    renderer = renderer_of("qwen3")
    history = [user("hello"), assistant("", call(arguments))]
    text = renderer.decode(renderer.canonical(history, tools=None, kwargs={}))
    assert text.endswith('{"name": "lookup", "arguments": {}}\n</tool_call><|im_end|>\n')


@pytest.mark.parametrize("name", ["llama", "mistral"])
@settings(PATIENT, max_examples=20)
@given(text=st.text(max_size=8).filter(str.isprintable))
def test_case_13_bos_stands_once_and_first(name, text):
    renderer = renderer_of(name)
    bos = tokenizer_of(name).bos_token_id
    ids = renderer.render([user(text), assistant("hello"), user("more")], tools=None, kwargs={}).tolist()
    assert ids[0] == bos
    assert ids.count(bos) == 1


def test_case_13_a_template_without_bos_gets_none():
    renderer = from_template("{% for m in messages %}[INST]{{ m.content }}</s>{% endfor %}", "mistral")
    assert tokenizer_of("mistral").bos_token_id not in renderer.render([user("a")], tools=None, kwargs={}).tolist()


@pytest.mark.parametrize("name", ["builtin", "qwen3", "chatml", "llama", "mistral", "glm"])
def test_a_whole_rendering_is_what_transformers_makes_of_it(name):
    renderer = renderer_of(name)
    messages = [user("hello"), assistant("world"), user("日本 🙂")]
    tokenizer = renderer._codec._tokenizer
    theirs = tokenizer.apply_chat_template(
        messages, chat_template=renderer._template._template, add_generation_prompt=True, tokenize=True
    )["input_ids"]
    assert renderer.render(messages, tools=None, kwargs={}).tolist() == theirs


@pytest.mark.parametrize("name", ["qwen3", "object arguments", "string arguments", "glm"])
def test_case_14_arguments_of_either_form_render_alike(name):
    renderer = renderer_of(name)
    as_object = [user("a"), assistant("", call({"query": "é", "n": 1}))]
    as_text = [user("a"), assistant("", call(json.dumps({"query": "é", "n": 1}, ensure_ascii=False)))]
    left, right = (renderer.canonical(m, tools=None, kwargs={}).tolist() for m in (as_object, as_text))
    assert left == right


@pytest.mark.parametrize("name", ["builtin", "qwen3", "object arguments", "string arguments", "glm", "parts"])
@settings(PATIENT, max_examples=30)
@given(arguments=st.text(max_size=12).filter(lambda t: not any("\ud800" <= c <= "\udfff" for c in t)))
@example(arguments="\uf900")
def test_case_14_unparsable_arguments_render_as_text(name, arguments):
    renderer = renderer_of(name)
    broken = '{"oops": ' + arguments
    text = renderer.decode(renderer.canonical([user("a"), assistant("", call(broken))], tools=None, kwargs={}))
    # A tokenizer may have a normal form of its own.
    spelled = [renderer.decode(ids_of(*renderer.encode(t))) for t in (broken, json.dumps(broken, ensure_ascii=False))]
    assert spelled[0] in text or spelled[1][1:-1] in text


@settings(PATIENT, max_examples=60)
@given(question=texts, answer=plain_texts, text=texts, role=st.sampled_from(["user", "tool"]))
def test_case_18_suffix_ids_are_the_tail_of_the_full_encoding(question, answer, text, role):
    renderer = renderer_of("mistral")
    last = assistant("", call({"query": answer})) if role == "tool" else assistant(answer)
    extra = tool(text) if role == "tool" else user(text)
    full = renderer.render([user(question), last, extra], tools=None, kwargs={}).tolist()
    stored = ids_of(0, terminator(renderer, role))
    extension = extend(renderer, stored, [extra])
    assert full[-len(extension.token_ids) :] == extension.token_ids.tolist()


@settings(PATIENT, max_examples=60)
@given(text=texts)
def test_control_tokens_in_content_encode_as_in_the_full_rendering(text):
    renderer = renderer_of("qwen3")
    stored = stored_after(renderer, user("a"), sampled="b", stop=IM_END)
    for extra in ([user(text)], [tool(text)]):
        full = renderer.render([user("a"), assistant("b"), *extra], tools=None, kwargs={}).tolist()
        extension = extend(renderer, stored, extra)
        assert full[-len(extension.token_ids) :] == extension.token_ids.tolist()


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff ok"])
def test_half_a_surrogate_pair_is_refused_in_words(text):
    renderer = renderer_of("qwen3")
    with pytest.raises(InvalidRequest, match="half of a surrogate pair"):
        renderer.render([user(text)], tools=None, kwargs={})
    with pytest.raises(InvalidRequest, match="half of a surrogate pair"):
        extend(renderer, ids_of(IM_END), [user(text)])


def test_a_conversation_nested_too_deeply_is_refused_in_words():
    nested: object = 1
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        renderer_of("qwen3").render([user("a") | {"extra": nested}], tools=None, kwargs={})


@settings(PATIENT, max_examples=40)
@given(text=plain_texts, spelled=st.booleans(), other=plain_texts)
def test_what_was_sampled_compares_as_text(text, spelled, other):
    renderer = renderer_of("builtin")
    history = [user("hello"), assistant(text)]
    expected = renderer.canonical(history, tools=None, kwargs={})
    prompt = renderer.render(history[:1], tools=None, kwargs={})
    sampled = other if spelled else text
    actual = stored_after(renderer, user("hello"), sampled=sampled, stop=terminator(renderer))
    mask = ids_of(*range(len(actual))) >= len(prompt)
    findings = renderer.compare(expected, actual, mask, kwargs={})
    assert [finding.type for finding in findings] == (["assistant_text"] if sampled != text else [])
    # A turn that was cut short differs in nothing else.
    assert renderer.compare(expected, actual[:-1], mask[:-1], kwargs={}) == findings


def test_case_6_thinking_that_the_template_drops_later_is_reported():
    renderer = renderer_of("qwen3")
    history = [user("a"), assistant("x") | {"reasoning_content": "why"}, user("b"), assistant("y")]
    first = stored_after(renderer, user("a"), sampled="<think>\nwhy\n</think>\n\nx", stop=IM_END)
    extension = extend(renderer, first, [user("b")])
    sampled = renderer._codec.encode("<think>\n\n</think>\n\ny")
    actual = ids_of(*prompt_of(first, extension), *sampled, IM_END)
    mask = ids_of(*range(len(actual))) >= len(actual) - len(sampled) - 1
    mask[len(renderer.render([user("a")], tools=None, kwargs={})) : len(first)] = True
    findings = renderer.compare(renderer.canonical(history, tools=None, kwargs={}), actual, mask, kwargs={})
    # <|im_start|>, user, <|im_end|>, line feed, <|im_start|>: the first answer is the sixth segment.
    assert [(finding.type, finding.segment_index) for finding in findings] == [("assistant_text", 5)]
    assert "why" in findings[0].actual_text
    assert "why" not in findings[0].expected_text


@given(ids=st.lists(st.integers(0, 151642), max_size=10))
@settings(PATIENT, max_examples=30)
def test_decoding_shows_special_tokens(ids):
    renderer = renderer_of("qwen3")
    assert renderer.decode(ids_of(*ids, IM_END)).endswith("<|im_end|>")


def thinking_ids(renderer):
    marks = renderer.profile.thinking
    assert marks is not None
    return marks.open_id, marks.close_id


@pytest.mark.parametrize("name", ["qwen3", "thinks"])
@settings(PATIENT, max_examples=20)
@given(thought=plain_texts, rounds=st.integers(0, 2))
def test_case_5_an_open_thought_is_closed_before_the_turn(name, thought, rounds):
    renderer = renderer_of(name)
    closed = "".join(f"<think>{thought}</think>" for _ in range(rounds))
    stored = stored_after(renderer, user("hello"), sampled="", stop=None).tolist()
    stored = ids_of(*stored, *renderer._codec.encode(f"{closed}<think>\n{thought}"))
    extension = extend(renderer, stored, [user("more")])
    close = renderer._codec.encode(renderer.profile.thinking.close)
    assert extension.keep == len(stored)
    assert extension.synthetic == len(close) + 1
    assert extension.token_ids.tolist()[: extension.synthetic] == [*close, terminator(renderer)]
    # What follows is what follows any other turn.
    other = extend(renderer, ids_of(*stored, terminator(renderer)), [user("more")])
    assert extension.token_ids.tolist()[extension.synthetic :] == other.token_ids.tolist()
    assert other.synthetic == 0


@pytest.mark.parametrize(
    ("question", "sampled"),
    [
        ("hello", "<think>\nwhy\n</think>\n\nbecau"),
        ("hello", "becau"),
        # The mark in a client's text opens no thought of the model's.
        ("what is <think>", "becau"),
    ],
)
def test_case_5_where_no_thought_is_open_only_the_turn_is_closed(question, sampled):
    renderer = renderer_of("qwen3")
    prompt = renderer.render([user(question)], tools=None, kwargs={}).tolist()
    extension = extend(renderer, ids_of(*prompt, *renderer._codec.encode(sampled)), [user("more")])
    assert (extension.synthetic, int(extension.token_ids[0])) == (1, IM_END)


def test_case_5_a_thought_that_the_template_opened_is_closed_too():
    renderer = renderer_of("opens thinking")
    prompt = renderer.render([user("hello")], tools=None, kwargs={})
    extension = extend(renderer, prompt, [user("more")])
    assert renderer.decode(extension.token_ids[: extension.synthetic]) == "\n</think>\n\n<|im_end|>"


@settings(PATIENT, max_examples=20)
@given(thought=plain_texts)
def test_case_5_a_close_is_encoded_as_it_is_behind_a_thought(thought):
    # This tokenizer starts a word at the start of a text, which the close is not.
    tokenizer = metaspace(THINKING_SPECIALS, eos="<|im_end|>", bos="<s>")
    template = chatml(
        "<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>{{ m.reasoning_content }}\n</think>\n{% endif %}"
        "{{ m.content }}<|im_end|>\n"
    )
    renderer = TemplateRenderer(ChatTemplate(tokenizer, template), TextCodec(tokenizer))
    said = f"<|im_start|>assistant\n<think>{thought}"
    extension = extend(renderer, ids_of(*renderer.encode(said)), [user("more")])
    newline, close, end = tokenizer.convert_tokens_to_ids(["\n", "</think>", "<|im_end|>"])
    assert extension.token_ids.tolist()[: extension.synthetic] == [newline, close, newline, end]
