"""Engine answers: recorded exactly, or refused with the text of the contract."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.core import PATIENT
from trio_sessions.core.completion import Completion, extract_completion
from trio_sessions.errors import BadEngineAnswer
from trio_sessions.testing.strategies import broken_engine_answers, engine_answers, json_values, token_ids

NO_META = "meta_info and output_token_logprobs must be in choice (requires logprobs=True)"


def _answer(entries: object = ((-0.5, 7),), *, message: object = None, count: object = 1, **choice: object) -> bytes:
    meta = {"output_token_logprobs": entries, "completion_tokens": count}
    message = {"role": "assistant", "content": "x"} if message is None else message
    return json.dumps({"choices": [{"message": message, "meta_info": meta, **choice}]}).encode()


def _check_exact(completion: Completion, body: bytes) -> None:
    answer = json.loads(body)
    choice = answer["choices"][0]
    entries = choice["meta_info"]["output_token_logprobs"]
    assert completion.token_ids.dtype == np.int32
    assert completion.log_probs.dtype == np.float64
    assert completion.token_ids.shape == completion.log_probs.shape == (len(entries),)
    assert completion.token_ids.tolist() == [entry[1] for entry in entries]
    # Bit by bit: the nearest double of what was written, which is what the standard library reads.
    assert completion.log_probs.tobytes() == np.array([float(entry[0]) for entry in entries]).tobytes()
    assert not completion.token_ids.flags.writeable
    assert not completion.log_probs.flags.writeable
    assert dict(completion.message) == {"role": "assistant", **choice["message"]}
    assert completion.message["content"] is not None
    finish_reason, response_id = choice.get("finish_reason"), answer.get("id")
    assert completion.finish_reason == (finish_reason if isinstance(finish_reason, str) else None)
    assert completion.response_id == (response_id if isinstance(response_id, str) else None)


@PATIENT
@given(engine_answers())
def test_a_legal_answer_is_taken_to_the_bit(body):
    completion = extract_completion(body)
    _check_exact(completion, body)


@settings(PATIENT, max_examples=150)
@given(broken_engine_answers())
def test_a_broken_answer_is_refused_in_the_words_of_the_rule(broken):
    with pytest.raises(BadEngineAnswer) as caught:
        extract_completion(broken.body)
    assert broken.text in str(caught.value)


@pytest.mark.parametrize("rule", ["no_meta_info", "no_log_probs"])
@settings(PATIENT, max_examples=10)
@given(st.data())
def test_the_text_about_meta_info_is_whole(rule, data):
    broken = data.draw(broken_engine_answers(rule=rule))
    with pytest.raises(BadEngineAnswer) as caught:
        extract_completion(broken.body)
    assert str(caught.value) == NO_META


@st.composite
def half_answers(draw: st.DrawFn) -> bytes:
    """The right skeleton with arbitrary JSON in one or two places."""
    answer = json.loads(draw(engine_answers()))
    choice = answer["choices"][0]
    message, meta = choice["message"], choice["meta_info"]
    places = [
        (answer, "choices"),
        (answer, "id"),
        (choice, "message"),
        (choice, "meta_info"),
        (choice, "finish_reason"),
        (choice, "prompt_token_ids"),
        (message, "content"),
        (message, "role"),
        (meta, "output_token_logprobs"),
        (meta, "completion_tokens"),
        (meta, "prompt_tokens"),
    ]
    for _ in range(draw(st.integers(1, 2))):
        holder, key = draw(st.sampled_from(places))
        holder[key] = draw(
            json_values() | st.lists(st.lists(json_values(max_leaves=1), max_size=3), max_size=2) | st.integers(0, 3)
        )
    return json.dumps(answer).encode()


@st.composite
def damaged_answers(draw: st.DrawFn) -> bytes:
    body = draw(engine_answers())
    at = draw(st.integers(0, len(body) - 1))
    return body[:at] + draw(st.binary(max_size=2) | st.sampled_from([b"\\ud800", b"1e999", b"\xff"])) + body[at + 1 :]


@settings(PATIENT, max_examples=150)
@given(half_answers() | damaged_answers() | st.binary())
@example(b'{"choices":' + b"[" * 100_000)
@example(b"[" * 100_000 + b"]" * 100_000)
@example(_answer()[:-3] + b',"finish_reason":' + b"[" * 500 + b"]" * 500 + b"}]}")
@example(_answer([[10**400, 7]]))
@example(_answer([[-1, 10**400]]))
@example(_answer(count=10**400))
@example(_answer(message={"content": "x", "deep": json.loads("[" * 200 + "]" * 200)}))
def test_any_answer_is_exact_or_refused(body):
    try:
        completion = extract_completion(body, prompt=np.array([1], dtype=np.int32))
    except BadEngineAnswer:
        return
    assert np.isfinite(completion.log_probs).all()
    assert (completion.token_ids >= 0).all()
    # Bytes that are not UTF-8 in a place nobody reads are found when the answer is rendered.
    _check_exact(completion, body.decode(errors="replace").encode())


@PATIENT
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=6))
@example([5e-324, -0.0, 1.7976931348623157e308, -2.2250738585072014e-308])
@example([0.1 + 0.2, -1e-07])
def test_log_probs_are_the_very_doubles(values):
    body = _answer([[value, index] for index, value in enumerate(values)], count=len(values))
    assert extract_completion(body).log_probs.tobytes() == np.array(values, dtype=np.float64).tobytes()


@PATIENT
@given(st.integers())
@example(0)
@example(2**31 - 1)
@example(2**31)
@example(-1)
def test_ids_are_31_bits(token_id):
    body = _answer([[-0.5, 3], [-0.5, token_id]], count=2)
    if 0 <= token_id < 2**31:
        assert extract_completion(body).token_ids.tolist() == [3, token_id]
    else:
        with pytest.raises(BadEngineAnswer, match=rf"output_token_logprobs\[1\] has token id {token_id}\Z"):
            extract_completion(body)


@PATIENT
@given(token_ids(max_size=6), st.integers(-2, 9))
def test_the_counts_must_agree(ids, count):
    body = _answer([[-0.5, token_id] for token_id in ids], count=count)
    if count == len(ids):
        assert len(extract_completion(body).token_ids) == count
    else:
        with pytest.raises(BadEngineAnswer) as caught:
            extract_completion(body)
        assert f"len(output_token_logprobs)={len(ids)} != completion_tokens={count}" in str(caught.value)


@PATIENT
@given(st.data(), token_ids(max_size=5))
def test_an_echoed_prompt_must_be_the_one_that_was_sent(data, prompt):
    body = data.draw(engine_answers(prompt=prompt))
    sent = np.array(prompt, dtype=np.int32)
    _check_exact(extract_completion(body, prompt=sent), body)
    other = data.draw(token_ids(max_size=5))
    assume(other != prompt)
    if "prompt_token_ids" in json.loads(body)["choices"][0]:
        with pytest.raises(BadEngineAnswer, match="prompt_token_ids is not the prompt that was sent"):
            extract_completion(body, prompt=np.array(other, dtype=np.int32))
        assert extract_completion(body).token_ids is not None


@pytest.mark.parametrize("echo", ["x", {}, 1, [1.5, 2], [1, None], [True, 2], [1, 2, 2**70], [[1, 2]]])
def test_an_echo_that_is_no_list_of_the_sent_ids(echo):
    with pytest.raises(BadEngineAnswer, match="prompt_token_ids is not the prompt"):
        extract_completion(_answer(prompt_token_ids=echo), prompt=np.array([1, 2], dtype=np.int32))


@pytest.mark.parametrize("echo", [{}, {"prompt_token_ids": None}], ids=["absent", "null"])
def test_no_echo_is_no_finding(echo):
    assert extract_completion(_answer(**echo), prompt=np.array([1], dtype=np.int32)).token_ids.tolist() == [7]


@pytest.mark.parametrize("spelled", [b"1e999", b"-1e999", b"NaN", b"Infinity", b"-Infinity", b"1" * 400])
def test_log_probs_that_are_no_finite_double(spelled):
    with pytest.raises(BadEngineAnswer):
        extract_completion(_answer().replace(b"-0.5", spelled))


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"meta_info": None}, id="null meta info"),
        pytest.param({"meta_info": {}}, id="no log probs"),
        pytest.param({"meta_info": {"output_token_logprobs": None, "completion_tokens": 1}}, id="null log probs"),
        pytest.param({"meta_info": None, "message": None}, id="nothing at all"),
    ],
)
def test_the_pinned_text_about_meta_info(answer):
    with pytest.raises(BadEngineAnswer) as caught:
        extract_completion(_answer(**answer))
    assert str(caught.value) == NO_META


@pytest.mark.parametrize("body", [_answer(message={"content": None}), _answer(message={"role": "assistant"})])
def test_the_pinned_text_about_content(body):
    with pytest.raises(BadEngineAnswer, match="assistant message content is None"):
        extract_completion(body)


def test_the_pinned_text_about_content_when_the_message_is_null():
    with pytest.raises(BadEngineAnswer, match="assistant message content is None"):
        extract_completion(_answer().replace(b'{"role": "assistant", "content": "x"}', b"null"))


def test_the_pinned_text_about_counts():
    with pytest.raises(BadEngineAnswer, match=r"len\(output_token_logprobs\)=1 != completion_tokens=2"):
        extract_completion(_answer(count=2))


def test_an_empty_completion_and_empty_content_are_legal():
    completion = extract_completion(_answer([], count=0, message={"content": ""}))
    assert completion.token_ids.shape == completion.log_probs.shape == (0,)
    assert dict(completion.message) == {"role": "assistant", "content": ""}


def test_only_the_first_choice_is_recorded():
    body = json.loads(_answer())
    body["choices"].append({"message": None})
    assert extract_completion(json.dumps(body).encode()).token_ids.tolist() == [7]


def test_minus_zero_stays():
    assert math.copysign(1, extract_completion(_answer([[-0.0, 1]])).log_probs[0]) == -1


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": None, "content": "x"}, "message.role must be assistant"),
        ({"role": "user", "content": "x"}, "message.role must be assistant"),
        ({"content": 5}, "message.content must be a string"),
        ({"content": {}}, "message.content must be a string"),
        ({"content": False}, "message.content must be a string"),
        ({"content": "x", "tool_calls": "abc"}, "message.tool_calls must be a list of objects"),
        ({"content": "x", "tool_calls": ["abc"]}, "message.tool_calls must be a list of objects"),
        ("hello", "message must be an object"),
    ],
)
def test_a_message_that_could_not_be_sent_back_or_rendered_is_refused(message: object, text: str) -> None:
    meta = {"output_token_logprobs": [[-1.0, 5]], "completion_tokens": 1}
    body = json.dumps({"choices": [{"message": message, "meta_info": meta}]}).encode()
    with pytest.raises(BadEngineAnswer, match=text):
        extract_completion(body)
