"""The built-in tokenizer loses nothing, and its template only ever appends."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError
from transformers import AutoTokenizer

from trio_sessions.data import builtin_tokenizer_path

_SIGNS = st.characters(exclude_categories=["Cs"])
_TEXT = st.text(alphabet=_SIGNS, max_size=60)
_ARGUMENTS = st.dictionaries(_TEXT, st.one_of(_TEXT, st.integers(), st.booleans(), st.none()), max_size=3)
_CALL = st.builds(
    lambda name, arguments: {"type": "function", "function": {"name": name, "arguments": arguments}},
    _TEXT,
    st.one_of(_ARGUMENTS, st.just('{"a": 1}')),
)
_ASSISTANT = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.one_of(_TEXT, st.none())},
    optional={"reasoning_content": _TEXT, "tool_calls": st.lists(_CALL, max_size=2)},
)
_OTHER = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "tool"]), "content": _TEXT})
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@cache
def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(str(builtin_tokenizer_path()), local_files_only=True)


def _render(messages: list[dict[str, Any]], **kwargs: Any) -> str:
    text: str = _tokenizer().apply_chat_template(messages, tokenize=False, **kwargs)
    return text


@given(st.text(alphabet=_SIGNS, max_size=300))
def test_any_text_survives(text: str) -> None:
    ids = _tokenizer().encode(text, add_special_tokens=False)
    assert _tokenizer().decode(ids) == text


def test_markup_is_one_id_each_and_only_chatml_is_special() -> None:
    added = {token.content: token.special for token in _tokenizer().added_tokens_decoder.values()}
    assert added == {
        "<|endoftext|>": True,
        "<|im_start|>": True,
        "<|im_end|>": True,
        "<think>": False,
        "</think>": False,
        "<tool_call>": False,
        "</tool_call>": False,
        "<tool_response>": False,
        "</tool_response>": False,
    }
    for text in added:
        assert len(_tokenizer().encode(text, add_special_tokens=False)) == 1
    assert _tokenizer().eos_token == "<|im_end|>"
    assert len(_tokenizer()) == 8192


def test_digits_stand_alone() -> None:
    assert len(_tokenizer().encode("1234", add_special_tokens=False)) == 4


@settings(deadline=None)
@given(
    st.lists(st.one_of(_OTHER, _ASSISTANT), max_size=4),
    _ASSISTANT,
    st.one_of(_OTHER, _ASSISTANT),
    st.booleans(),
    st.booleans(),
)
def test_appending_never_changes_what_is_there(
    before: list[dict[str, Any]], last: dict[str, Any], appended: dict[str, Any], thinking: bool, tools: bool
) -> None:
    kwargs = {"enable_thinking": thinking, "tools": [_TOOL] if tools else None}
    history = [*before, last]
    longer = _render([*history, appended], **kwargs)
    assert longer.startswith(_render(history, **kwargs))
    assert longer != _render(history, **kwargs)


@pytest.mark.parametrize("thinking", [True, False])
def test_an_answer_in_words_continues_the_generation_prompt(thinking: bool) -> None:
    asked = [{"role": "user", "content": "hello"}]
    prompt = _render(asked, add_generation_prompt=True, enable_thinking=thinking)
    answered = _render([*asked, {"role": "assistant", "content": "hi"}], enable_thinking=thinking)
    assert answered == prompt + "hi<|im_end|>\n"


def test_each_part_of_a_turn_is_rendered() -> None:
    text = _render(
        [
            {
                "role": "assistant",
                "reasoning_content": "so",
                "content": "x",
                "tool_calls": [{"function": {"name": "f", "arguments": {"a": "é<"}}}, {"name": "g", "arguments": ""}],
            },
            {"role": "tool", "content": "r"},
        ]
    )
    assert text == (
        "<|im_start|>assistant\n<think>\nso\n</think>\n\nx\n"
        '<tool_call>\n{"name": "f", "arguments": {"a": "é<"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n<tool_response>\nr\n</tool_response><|im_end|>\n"
    )


def test_tools_are_rendered_as_lines_of_json() -> None:
    text = _render([{"role": "user", "content": "u"}], tools=[_TOOL])
    assert '\n{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}\n' in text


@pytest.mark.parametrize("message", [{"role": "wizard", "content": "x"}, {"role": "user", "content": 1}])
def test_what_it_cannot_render_it_refuses(message: dict[str, Any]) -> None:
    with pytest.raises(TemplateError):
        _render([message])


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert _render([{"role": "user", "content": parts}]) == "<|im_start|>user\nab<|im_end|>\n"
