from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.render.conversations import PATIENT, assistant, ids_of, stored_after, terminator, user
from tests.render.families import TEMPLATES, from_template, renderer_of
from trio_sessions.errors import ConfigurationError, InvalidRequest
from trio_sessions.render.load import load_renderer

RESERVED = [
    "messages",
    "tools",
    "add_generation_prompt",
    "tokenize",
    "chat_template",
    "return_dict",
    "bos_token",
    "eos_token",
]


@pytest.mark.parametrize("name", RESERVED)
def test_names_that_are_not_options(name):
    with pytest.raises(InvalidRequest, match="chat_template_kwargs") as caught:
        renderer_of("qwen3").effective_kwargs({name: 1})
    assert name in str(caught.value)
    with pytest.raises(ConfigurationError, match="chat_template_kwargs"):
        from_template(TEMPLATES["chatml"], defaults={name: 1})


def test_tools_belong_elsewhere():
    with pytest.raises(InvalidRequest) as caught:
        renderer_of("qwen3").effective_kwargs({"tools": []})
    assert str(caught.value) == "tools belongs at the top level of the request, not in chat_template_kwargs"


@PATIENT
@given(
    defaults=st.dictionaries(st.sampled_from("abc"), st.integers()),
    own=st.dictionaries(st.sampled_from("abcd"), st.integers()),
)
def test_the_request_wins(defaults, own):
    renderer = renderer_of("chatml")
    with patch.object(renderer, "_launch", defaults):
        effective = renderer.effective_kwargs(own)
    assert effective == defaults | own


def test_a_kwarg_of_one_turn_reaches_its_suffix():
    renderer = renderer_of("qwen3")
    stored = stored_after(renderer, user("a"), sampled="b", stop=terminator(renderer))
    for kwargs, opener in (({}, "assistant\n"), ({"enable_thinking": False}, "assistant\n<think>\n\n</think>\n\n")):
        extension = renderer.extend(stored, stored_messages=[], appended=[user("c")], tools=None, kwargs=kwargs)
        assert renderer.decode(extension.token_ids).endswith("<|im_start|>" + opener)


def test_a_kwarg_that_changes_the_terminator_changes_the_cut():
    renderer = renderer_of("switches terminator")
    history = [user("a"), assistant("b")]
    end, other = renderer._codec._tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    stored = stored_after(renderer, user("a"), sampled="b", stop=None)
    for kwargs, closing in (({}, end), ({"short": True}, other), ({"short": False}, end)):
        where = {"stored_messages": history, "appended": [user("c")], "tools": None, "kwargs": kwargs}
        assert renderer.extend(stored, **where).token_ids[0] == closing
        assert renderer.extend(ids_of(*stored, closing), **where).synthetic == 0


def test_kwargs_under_which_nothing_can_be_appended():
    template = "{% if odd is defined %}{{ raise_exception('odd') }}{% endif %}" + TEMPLATES["chatml"]
    renderer = from_template(template)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=r"chat_template_kwargs do not fit the chat template: .*odd"):
            renderer.extend(ids_of(1), stored_messages=[], appended=[user("c")], tools=None, kwargs={"odd": 1})


def test_a_kwarg_that_the_template_does_not_mention_costs_no_probe(monkeypatch):
    renderer = renderer_of("qwen3")
    monkeypatch.setattr("trio_sessions.render.template.probe_template", lambda *_: pytest.fail("probed"))
    renderer.extend(ids_of(1), stored_messages=[], appended=[user("c")], tools=None, kwargs={"unheard_of": object()})


def test_profiles_are_bounded():
    renderer = from_template(TEMPLATES["switches terminator"])
    for value in range(40):
        renderer.extend(ids_of(1), stored_messages=[], appended=[user("c")], tools=None, kwargs={"short": value})
    assert len(renderer._profiles) <= 32


def test_a_default_that_the_template_refuses():
    with pytest.raises(ConfigurationError, match="chat template"):
        from_template("{{ raise_exception('odd') if odd }}" + TEMPLATES["chatml"], defaults={"odd": True})


def test_load_passes_the_defaults_on():
    renderer = load_renderer("builtin", chat_template_kwargs={"enable_thinking": False})
    assert renderer.effective_kwargs({}) == {"enable_thinking": False}
    assert renderer.decode(renderer.render([user("a")], tools=None, kwargs=renderer.effective_kwargs({}))).endswith(
        "<think>\n\n</think>\n\n"
    )
