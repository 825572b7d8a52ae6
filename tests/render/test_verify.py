"""The matrix passes for renderers that are right, and finds each way to be wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.render.conversations import PATIENT
from tests.render.families import TEMPLATES, from_template, renderer_of, tokenizer_of
from trio_sessions.core.tokens import as_token_ids
from trio_sessions.errors import InvalidRequest, TokenizationFailed
from trio_sessions.render.codec import TextCodec
from trio_sessions.render.jinja import ChatTemplate
from trio_sessions.render.template import TemplateRenderer
from trio_sessions.render.verify import CaseReport, VerifyReport, verify_renderer


@pytest.mark.parametrize("name", ["builtin", "qwen3", *TEMPLATES])
def test_a_renderer_that_is_right_passes(name):
    report = verify_renderer(renderer_of(name))
    assert report.passed, str(report)
    assert report.count("passed") > report.count("skipped")


@settings(PATIENT, max_examples=10)
@given(seed=st.integers(0, 2**32), name=st.sampled_from(["qwen3", "glm", "mistral", "llama"]))
def test_no_segmentation_makes_a_difference(seed, name):
    assert verify_renderer(renderer_of(name), seed=seed) == verify_renderer(renderer_of(name))


def test_what_is_skipped_has_its_reason():
    cases = {case.name: case for case in verify_renderer(renderer_of("qwen3")).cases}
    case = cases["a developer message appended"]
    assert (case.outcome, case.detail) == (
        "skipped",
        "role developer cannot be appended: the template drops the message",
    )


class Sabotaged(TemplateRenderer):
    """A renderer whose extension is spoilt on the way out."""

    def __init__(self, name, spoil):
        tokenizer = tokenizer_of(name)
        super().__init__(ChatTemplate(tokenizer, TEMPLATES[name]), TextCodec(tokenizer))
        self._spoil = spoil

    def extend(self, stored_ids, **where):
        return self._spoil(super().extend(stored_ids, **where), self, where)


def failures(name, spoil):
    report = verify_renderer(Sabotaged(name, spoil))
    assert not report.passed
    return [case.detail for case in report.cases if case.outcome == "failed"]


def with_ids(extension, ids):
    return replace(extension, token_ids=as_token_ids(ids))


def test_a_second_terminator_is_found():
    def spoil(extension, renderer, _):
        end = renderer.profile.roles["user"].usual.terminator_id
        return extension if extension.synthetic else with_ids(extension, [end, *extension.token_ids.tolist()])

    details = failures("chatml", spoil)
    assert any("what follows the turn differs at its id 1" in detail for detail in details)


def test_a_missing_terminator_is_found():
    def spoil(extension, *_):
        if not extension.synthetic:
            return extension
        return replace(with_ids(extension, extension.token_ids[1:]), synthetic=0)

    assert any("0 ids close the turn although" in detail for detail in failures("chatml", spoil))


def test_a_close_that_is_not_declared_is_found():
    details = failures("chatml", lambda extension, *_: replace(extension, synthetic=0))
    assert all("0 ids close the turn although" in detail for detail in details)


def test_more_given_up_than_declared_is_found():
    details = failures("chatml", lambda extension, *_: replace(extension, keep=extension.keep - 1))
    assert all("1 stored ids are given up, 0 declared" in detail for detail in details)


def test_an_id_given_up_that_was_sampled_text_is_found():
    def spoil(extension, *_):
        return replace(extension, keep=extension.keep - 1) if extension.synthetic else extension

    assert any("no stop to replace" in detail for detail in failures("glm", spoil))


@pytest.mark.parametrize("position", [0, 3, -1])
def test_another_id_in_what_follows_is_found_and_shown(position):
    def spoil(extension, *_):
        ids = extension.token_ids.tolist()
        ids[position] = ids[position] + 1
        return with_ids(extension, ids)

    details = failures("llama", spoil)
    assert any("expected" in detail and "found" in detail for detail in details)
    assert all(len(detail) < 600 for detail in details)


def test_an_extension_that_raises_is_a_failure_where_the_template_can_render():
    def spoil(*_):
        raise InvalidRequest("no")

    assert "the template renders the conversation, but it cannot be extended: no" in failures("chatml", spoil)


def test_a_junction_that_cannot_be_cut_is_a_failure():
    def spoil(*_):
        raise TokenizationFailed("not on a token boundary")

    assert set(failures("chatml", spoil)) == {"not on a token boundary"}


def test_text_that_nobody_sampled_and_the_template_does_not_write_is_found():
    class Forgetful(TemplateRenderer):
        """Serves prompts that the template would not have written."""

        def render(self, messages, *, tools, kwargs):
            changed = [{**messages[0], "content": f"{messages[0]['content']}!"}, *messages[1:]]
            return super().render(changed, tools=tools, kwargs=kwargs)

    tokenizer = tokenizer_of("chatml")
    report = verify_renderer(Forgetful(ChatTemplate(tokenizer, TEMPLATES["chatml"]), TextCodec(tokenizer)))
    assert not report.passed


def test_a_template_that_rewrites_history_passes_with_a_remark():
    body = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}"
        "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    cases = {case.name: case for case in verify_renderer(from_template(body)).cases}
    assert cases["reasoning"].outcome == "passed"
    assert cases["reasoning"].detail == "the template rewrites history (assistant_text)"
    assert cases["user turns"].detail == ""


def test_a_report_prints_and_becomes_json():
    report = VerifyReport((CaseReport("a", "passed", 2), CaseReport("b", "skipped", 1, "because")))
    assert str(report) == "passed  a\nskipped b: because\n1 passed, 0 failed, 1 skipped"
    assert json.loads(json.dumps(report.to_json()))["cases"][1]["detail"] == "because"
    assert report.passed


@pytest.mark.parametrize("outcome", ["skipped", "failed"])
def test_a_report_in_which_nothing_passed_has_not_passed(outcome):
    assert not VerifyReport((CaseReport("a", outcome, 1, "x"),)).passed


@pytest.mark.parametrize("name", ["chatml", "mistral"])
def test_a_token_is_split_into_pairs_that_spell_it(name):
    codec = TextCodec(tokenizer_of(name))
    splits = 0
    for token_id in range(len(tokenizer_of(name))):
        for pair in codec.split(token_id):
            splits += 1
            assert token_id not in codec.added_text
            assert codec.decode([token_id, *pair, token_id]) == codec.decode([token_id] * 3)
    assert splits > 100
    assert np.all([codec.split(token_id) == [] for token_id in codec.added_text])
