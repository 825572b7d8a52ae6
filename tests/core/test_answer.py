"""Cutting replay payloads out by where they lie, against doing it on decoded JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.core import PATIENT
from trio_sessions.core.answer import hollow_answer, split_answer, without_replay_payloads
from trio_sessions.core.json import InvalidJSON, compact
from trio_sessions.testing.strategies import json_values

PAYLOAD = "AAAA" * 20

base64 = st.text("ABCabc019+/", max_size=40).map(lambda text: text + "=" * (-len(text) % 4))
payloads = st.one_of(base64, st.none(), json_values(max_leaves=2), st.sampled_from(['quoted "', "routed_experts", "é"]))
meta_infos = st.one_of(
    st.dictionaries(
        st.sampled_from(["routed_experts", "indexer_topk", "id", "completion_tokens"]) | st.text(max_size=3),
        payloads,
        max_size=5,
    ),
    json_values(max_leaves=2),
)
answers = st.fixed_dictionaries(
    {"choices": st.lists(st.fixed_dictionaries({}, optional={"meta_info": meta_infos, "message": json_values()}))},
    optional={"routed_experts": payloads, "id": st.text(max_size=3), "usage": json_values(max_leaves=2)},
)
spellings = st.builds(
    lambda answer, separators, ascii_only: json.dumps(answer, separators=separators, ensure_ascii=ascii_only).encode(),
    answers,
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.booleans(),
)


def _without(answer: dict[str, object]) -> dict[str, object]:
    for choice in answer["choices"]:
        meta = choice.get("meta_info")
        if isinstance(meta, dict):
            meta.pop("routed_experts", None)
            meta.pop("indexer_topk", None)
    return answer


def _one(meta: str, rest: str = "") -> bytes:
    return f'{{"choices":[{{"meta_info":{{{meta}}}}}]{rest}}}'.encode()


@PATIENT
@given(spellings)
@example(_one(f'"routed_experts":"{PAYLOAD}","indexer_topk":"{PAYLOAD}"'))
@example(_one(f'"indexer_topk":"{PAYLOAD}","id":"routed_experts","routed_experts":"{PAYLOAD}"'))
@example(_one(f'"routed_experts":"{PAYLOAD}","routed_experts":"AAAA"'))
@example(_one('"routed_experts":null'))
@example(_one('"routed_experts":"a\\/b"'))
@example(_one('"id":"\\u0041","routed_experts":"AAAA"'))
@example(_one(f'"id":"{PAYLOAD}","routed_experts":"{PAYLOAD}"', f',"routed_experts":"{PAYLOAD}"'))
def test_the_whole_is_the_answer_and_the_bare_one_lacks_the_payloads(body):
    split = split_answer(body, hollow_answer(body))
    assert split.whole == compact(body)
    assert split.bare == compact(split.bare)
    assert json.loads(split.bare) == _without(json.loads(body))


def test_a_compact_answer_is_kept_as_it_came():
    body = _one(f'"id":"x","routed_experts":"{PAYLOAD}"')
    split = split_answer(body, hollow_answer(body))
    assert split.whole is body
    assert split.bare == _one('"id":"x"')


@pytest.mark.parametrize("text", ["你好", "é", "\\n"])
def test_what_stands_around_a_payload_makes_no_difference(text):
    body = _one(f'"id":"{text}","routed_experts":"{PAYLOAD}"')
    assert hollow_answer(body) == _one(f'"id":"{text}","routed_experts":null')


@pytest.mark.parametrize("text", ["你好", "a\\/b"])
def test_a_payload_that_is_no_base64_stays_where_it_is(text):
    body = _one(f'"routed_experts":"{text}"')
    assert hollow_answer(body) is body


def test_two_choices():
    choice = f'{{"meta_info":{{"routed_experts":"{PAYLOAD}"}}}}'
    body = f'{{"choices":[{choice},{{}},{choice}]}}'.encode()
    split = split_answer(body, hollow_answer(body))
    assert split.bare == b'{"choices":[{"meta_info":{}},{},{"meta_info":{}}]}'


@PATIENT
@given(st.binary(max_size=30) | spellings.flatmap(lambda body: st.integers(0, len(body)).map(lambda end: body[:end])))
def test_what_is_no_answer_is_left_as_it_is(body):
    try:
        json.loads(body)
    except ValueError:
        assert hollow_answer(body) is body


@pytest.mark.parametrize("meta", ['"a":NaN,"routed_experts":"AAAA"', '"a":"\\ud800","routed_experts":"AAAA"'])
def test_what_is_no_json_is_refused(meta):
    with pytest.raises(InvalidJSON):
        split_answer(_one(meta), hollow_answer(_one(meta)))


@PATIENT
@given(spellings)
def test_cutting_twice_changes_nothing(body):
    bare = without_replay_payloads(compact(body))
    assert without_replay_payloads(bare) == bare
