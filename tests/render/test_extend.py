"""Properties of an extension, for every family: what was stored stays, and what follows is what the template says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.render.conversations import (
    PATIENT,
    appended,
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
from tests.render.families import APPEND_ONLY, STRICT_RESULTS, TEMPLATES, renderer_of
from trio_sessions.errors import AppendRoleNotSupported, InvalidRequest
from trio_sessions.render.template import _join

EVERY = ("builtin", "qwen3", *TEMPLATES)
RESULTS_FIRST = (STRICT_RESULTS, "three terminators")
TOOLS = [{"type": "function", "function": {"name": "lookup", "description": "d", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("name", EVERY)
@settings(PATIENT, max_examples=25)
@given(data=st.data())
def test_stored_ids_stay_id_by_id(name, data):
    renderer = renderer_of(name)
    vocabulary = len(renderer._codec._tokenizer)
    stored = ids_of(*data.draw(st.lists(st.integers(0, vocabulary - 1), min_size=1, max_size=20)))
    extra = data.draw(appended(renderer.appendable_roles({}), results_first=name in RESULTS_FIRST))
    if name == "three terminators" and [m["role"] for m in extra].count("tool") > 1:
        return
    if not extra and isinstance(renderer.profile.again, str):
        return
    extension = renderer.extend(
        stored,
        stored_messages=[user("a"), assistant("b")],
        appended=extra,
        tools=data.draw(st.sampled_from([None, TOOLS])),
        kwargs={},
    )
    assert len(stored) - renderer.max_trim_tokens <= extension.keep <= len(stored)
    assert prompt_of(stored, extension)[: extension.keep] == stored[: extension.keep].tolist()
    if extension.keep < len(stored):
        assert int(stored[-1]) in renderer.profile.replaceable_ids
    # A turn is closed by the sampler or by us, never by both and never by neither.
    if extra:
        assert (extension.synthetic == 0) == (int(stored[-1]) in renderer.profile.stop_ids)
    # More than the close itself is added only where a thought was left open.
    if extension.synthetic > 1:
        assert renderer.profile.thinking is not None
        assert renderer.profile.thinking.open_id in stored
    assert extension.token_ids.dtype == np.int32


@pytest.mark.parametrize("name", APPEND_ONLY)
@settings(PATIENT, max_examples=40)
@given(data=st.data())
def test_a_canonical_history_is_extended_to_the_full_rendering(name, data):
    renderer = renderer_of(name)
    turns = data.draw(st.lists(st.tuples(texts, plain_texts), min_size=1, max_size=3))
    history = [message for question, answer in turns for message in (user(question), assistant(answer))]
    # A result has to answer something where the template checks that.
    with_call = data.draw(st.booleans())
    if with_call:
        history[-1] = assistant("", call({"query": data.draw(plain_texts)}))
    extra = data.draw(appended(renderer.appendable_roles({}), results_first=name == STRICT_RESULTS).filter(bool))
    if name == STRICT_RESULTS and with_call != (extra[0]["role"] == "tool"):
        return
    full = renderer.render([*history, *extra], tools=None, kwargs={})
    # The stored ids end where the sampler stops: at the terminator, or (as here for GLM) at the next opener.
    junction = renderer.profile.roles[extra[0]["role"]].usual
    closed = _without_what_follows(renderer, history, full)
    stored = ids_of(*closed, junction.terminator_id)
    extension = renderer.extend(stored, stored_messages=history, appended=extra, tools=None, kwargs={})
    assert extension.keep == len(stored)
    assert extension.synthetic == 0
    assert prompt_of(stored, extension) == full.tolist()


def _without_what_follows(renderer, history, full):
    """Ids of ``history`` up to the last terminator, from the template's own rendering."""
    canonical = (
        renderer.canonical(history, tools=None, kwargs={}).tolist() if renderer is not renderer_of("mistral") else None
    )
    if canonical is None:
        # This template refuses an unanswered call at the end, so the history is found in the longer rendering.
        eos = terminator(renderer)
        wanted = sum(message["role"] == "assistant" for message in history)
        places = [i for i, token in enumerate(full.tolist()) if token == eos]
        return full.tolist()[: places[wanted - 1]]
    end = renderer.profile.separator
    trailing = len(renderer._codec.encode(end)) if end else 0
    body = canonical[: len(canonical) - trailing]
    return body[:-1] if body[-1] in renderer.profile.stop_ids else body


@pytest.mark.parametrize("name", ["builtin", "qwen3", "chatml", "llama", "glm", "mistral"])
@settings(PATIENT, max_examples=30)
@given(data=st.data())
def test_case_11_the_sampled_spelling_is_reused(name, data):
    renderer = renderer_of(name)
    sampled = data.draw(plain_texts)
    stored = stored_after(renderer, user("hello"), sampled=sampled, stop=terminator(renderer))
    canonical = stored_after(renderer, user("hello"), sampled="", stop=None).tolist() + renderer._codec.encode(sampled)
    extra = [user(data.draw(texts))]
    extension = renderer.extend(
        stored, stored_messages=[user("hello"), assistant(sampled)], appended=extra, tools=None, kwargs={}
    )
    assert prompt_of(stored, extension)[: len(stored)] == stored.tolist()
    # What follows is the same whichever way the turn was spelled.
    other = ids_of(*canonical, terminator(renderer))
    again = renderer.extend(
        other, stored_messages=[user("hello"), assistant(sampled)], appended=extra, tools=None, kwargs={}
    )
    assert again.token_ids.tolist() == extension.token_ids.tolist()


@pytest.mark.parametrize("name", ["builtin", "qwen3", "chatml", "llama", "mistral", "glm"])
@settings(PATIENT, max_examples=20)
@given(text=texts, sampled=plain_texts)
def test_case_1_and_5_a_turn_that_was_cut_short_is_closed_once(name, text, sampled):
    renderer = renderer_of(name)
    cut = stored_after(renderer, user("hello"), sampled=sampled, stop=None)
    stopped = ids_of(*cut, terminator(renderer))
    where = {
        "stored_messages": [user("hello"), assistant(sampled)],
        "appended": [user(text)],
        "tools": None,
        "kwargs": {},
    }
    closed, regular = renderer.extend(cut, **where), renderer.extend(stopped, **where)
    assert (closed.synthetic, regular.synthetic) == (1, 0)
    assert prompt_of(cut, closed) == prompt_of(stopped, regular)


class _Poison(dict):
    """A message that must not be looked at."""

    def _refuse(self, *_args, **_kwargs):
        raise AssertionError("history was read")

    __getitem__ = __iter__ = __contains__ = __len__ = get = keys = values = items = _refuse


@pytest.mark.parametrize("name", ["builtin", "qwen3", "llama", "mistral", "glm"])
def test_history_is_neither_read_nor_rendered(name, monkeypatch):
    """Of the stored messages only the last one is looked at: whether it ends with a call."""
    renderer = renderer_of(name)
    encoded: list[int] = []
    rendered: list[int] = []
    encode, render = renderer._codec.encode, renderer._template.render
    monkeypatch.setattr(renderer._codec, "encode", lambda text: (encoded.append(len(text)), encode(text))[1])
    monkeypatch.setattr(
        renderer._template,
        "render",
        lambda messages, **rest: (rendered.append(len(messages)), render(messages, **rest))[1],
    )
    for turns in (2, 400):
        stored = stored_after(renderer, user("x"), sampled="y" * turns, stop=terminator(renderer))
        encoded.clear()
        rendered.clear()
        history = [*([_Poison()] * turns), assistant("y")]
        renderer.extend(stored, stored_messages=history, appended=[user("z" * 50)], tools=TOOLS, kwargs={})
        assert rendered == [3]
        assert len(encoded) == 1
        assert encoded[0] < 200


@pytest.mark.parametrize("name", ["builtin", "qwen3", "chatml", "llama", "glm"])
def test_generating_again_on_top_adds_only_the_opener(name):
    renderer = renderer_of(name)
    history = [user("hello"), assistant("world")]
    stored = stored_after(renderer, user("hello"), sampled="world", stop=terminator(renderer))
    extension = renderer.extend(stored, stored_messages=history, appended=[], tools=None, kwargs={})
    text = renderer.decode(ids_of(*prompt_of(stored, extension)))
    assert text.endswith(renderer.profile.generation_opener)
    assert text == renderer.decode(stored[: extension.keep]) + renderer.decode(extension.token_ids)
    tail = renderer.render(history, tools=None, kwargs={})
    assert tail.tolist()[-len(extension.token_ids) :] == extension.token_ids.tolist()


@settings(PATIENT, max_examples=60)
@given(numbers=st.sets(st.integers(0, 40)), rest=texts)
def test_the_sentinel_in_the_text_of_a_user(numbers, rest):
    renderer = renderer_of("chatml")
    text = " ".join(f"zqSentinel{number}qz" for number in sorted(numbers)) + rest
    stored = stored_after(renderer, user("a"), sampled="b", stop=terminator(renderer))
    extension = renderer.extend(
        stored, stored_messages=[user("a"), assistant("b")], appended=[user(text)], tools=None, kwargs={}
    )
    full = renderer.render([user("a"), assistant("b"), user(text)], tools=None, kwargs={})
    assert full.tolist()[-len(extension.token_ids) :] == extension.token_ids.tolist()
    assert extension.token_ids[0] == renderer._codec.encode("\n")[0]


def test_the_sentinel_in_tools_and_kwargs_is_no_cut_either():
    renderer = renderer_of("tools before user")
    tools = [{"type": "function", "function": {"name": "zqSentinel0qz", "description": "zqSentinel1qz"}}]
    stored = stored_after(renderer, user("a"), sampled="b", stop=terminator(renderer))
    extension = renderer.extend(
        stored,
        stored_messages=[],
        appended=[user("zqSentinel2qz")],
        tools=tools,
        kwargs={"zqSentinel3qz": "zqSentinel4qz"},
    )
    text = renderer.decode(extension.token_ids)
    assert text.startswith("\n<|im_start|>tools\n")
    assert all(f"zqSentinel{n}qz" in text for n in range(3))


def test_a_stop_id_other_than_the_terminator_is_kept():
    renderer = renderer_of("qwen3")
    tokenizer = renderer._codec._tokenizer
    other = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    profile = replace(renderer.profile, stop_ids=renderer.profile.stop_ids | {other})
    junction = profile.roles["user"].usual
    extension = _join(ids_of(1, 2, other), [junction.terminator_id, 7, 8], junction, profile)
    assert (extension.keep, extension.token_ids.tolist(), extension.synthetic) == (3, [7, 8], 0)


@pytest.mark.parametrize("role", ["developer", "critic"])
def test_a_role_that_cannot_be_appended(role):
    renderer = renderer_of("qwen3")
    with pytest.raises(AppendRoleNotSupported) as caught:
        renderer.extend(
            ids_of(1, 2),
            stored_messages=[user("a"), assistant("b")],
            appended=[{"role": role, "content": "x"}],
            tools=None,
            kwargs={},
        )
    assert str(caught.value).startswith(f"messages[2] has role {role!r}")


def test_case_15_an_appended_sequence_is_rendered_as_a_whole():
    renderer = renderer_of("qwen3")
    history = [user("hello"), assistant("", call({"query": "x"}), call({"query": "y"}, "call00002"))]
    stored = stored_after(renderer, user("hello"), sampled="<tool_call>", stop=terminator(renderer))
    extra = [tool("1"), tool("2"), user("and"), tool("3")]
    extension = renderer.extend(stored, stored_messages=history, appended=extra, tools=None, kwargs={})
    assert renderer.decode(extension.token_ids) == (
        "\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nand<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_case_15_an_error_in_an_appended_sequence_reaches_the_client():
    renderer = renderer_of("mistral")
    with pytest.raises(InvalidRequest, match="the chat template refuses the messages: nothing was called"):
        renderer.extend(
            ids_of(1, terminator(renderer)),
            stored_messages=[user("hello"), assistant("world")],
            appended=[user("a"), tool("b")],
            tools=None,
            kwargs={},
        )
