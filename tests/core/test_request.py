"""What a client may send, and what the engine is asked all the same."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.core import PATIENT
from trio_sessions.core.json import MAX_NESTING
from trio_sessions.core.request import PreparedRequest, RequestPolicy, SentMessages, prepare_chat_request
from trio_sessions.errors import InvalidRequest
from trio_sessions.testing.strategies import (
    chat_bodies,
    conversations,
    json_values,
    messages,
    token_ids,
    tool_definitions,
)

LEGAL = [{"role": "user", "content": "hi"}]

policies = st.builds(
    RequestPolicy,
    routing_replay=st.booleans(),
    indexer_replay=st.booleans(),
    incremental_replay=st.booleans(),
    lora=st.none() | st.sampled_from(["miles_lora", "é"]),
)

client_fields = st.dictionaries(
    st.sampled_from(
        [
            "model",
            "temperature",
            "input_ids",
            "stream",
            "stream_options",
            "logprobs",
            "return_meta_info",
            "no_stop_trim",
            "logprob_start_len",
            "return_routed_experts",
            "return_indexer_topk",
            "lora_path",
            "routed_experts_start_len",
            "größe",
            "messages_",
        ]
    ),
    json_values(max_leaves=3),
    max_size=5,
)


def _forced(policy: RequestPolicy) -> dict[str, object]:
    forced: dict[str, object] = {"logprobs": True, "return_meta_info": True, "no_stop_trim": False}
    if policy.routing_replay:
        forced["return_routed_experts"] = True
    if policy.indexer_replay:
        forced["return_indexer_topk"] = True
    if policy.lora is not None:
        forced["lora_path"] = policy.lora
    return forced


def _body(**fields: object) -> bytes:
    return json.dumps({"messages": LEGAL, **fields}).encode()


def _sent(prepared: PreparedRequest, ids=(7,), kwargs=None, stored_tokens=0) -> bytes:
    return prepared.engine_request(
        np.array(ids, dtype=np.int32), template_kwargs=kwargs or {}, stored_tokens=stored_tokens
    ).encode()


def _one_object(raw: bytes) -> dict[str, object]:
    """``raw`` decoded by another library, which sees duplicate keys."""

    def unique(pairs):
        assert len(dict(pairs)) == len(pairs), "duplicate keys"
        return dict(pairs)

    return json.loads(raw, object_pairs_hook=unique)


def _same(left: object, right: object) -> bool:
    """Equal including types: true is not 1, 1 is not 1.0."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


# -- anything may come in -----------------------------------------------------------------------------------------


@settings(PATIENT, max_examples=150)
@given(chat_bodies(), policies, token_ids())
def test_a_body_is_refused_with_a_sentence_or_prepared_with_our_fields(body, policy, prompt):
    try:
        prepared = prepare_chat_request(body, policy)
    except InvalidRequest:
        return
    assert prepared.messages
    assert all(isinstance(message["role"], str) for message in prepared.messages)
    sent = _one_object(_sent(prepared, prompt, prepared.template_kwargs, 9))
    assert _same({name: sent[name] for name in _forced(policy)}, _forced(policy))
    assert sent["input_ids"] == prompt
    assert "stream" not in sent
    assert "stream_options" not in sent
    assert "logprob_start_len" not in sent
    assert ("routed_experts_start_len" in sent) == (policy.routing_replay and policy.incremental_replay)


@settings(PATIENT, max_examples=60)
@given(conversations(), client_fields, policies, st.none() | tool_definitions(), token_ids())
def test_what_is_not_ours_passes_unchanged(conversation, fields, policy, tools, prompt):
    body = {**fields, "messages": conversation}
    if tools is not None:
        body["tools"] = tools
    prepared = prepare_chat_request(json.dumps(body).encode(), policy)
    sent = _one_object(_sent(prepared, prompt))
    ours = {"input_ids", "stream", "stream_options", "logprob_start_len", "routed_experts_start_len"}
    wanted = {name: value for name, value in body.items() if name not in ours} | _forced(policy)
    wanted["input_ids"] = prompt
    sent.pop("routed_experts_start_len", None)
    assert _same(sent, wanted)
    assert _same(prepared.messages, conversation)
    assert _same(prepared.tools, tools)


@PATIENT
@given(json_values())
def test_the_flags_that_make_a_turn_exact_are_never_the_clients(value):
    names = [
        "logprobs",
        "return_meta_info",
        "no_stop_trim",
        "return_routed_experts",
        "return_indexer_topk",
        "lora_path",
    ]
    policy = RequestPolicy(routing_replay=True, indexer_replay=True, lora="miles_lora")
    sent = json.loads(_sent(prepare_chat_request(_body(**dict.fromkeys(names, value)), policy)))
    assert [sent[name] for name in names] == [True, True, False, True, True, "miles_lora"]


@PATIENT
@given(json_values(max_leaves=3))
def test_without_replay_or_adapter_nothing_is_asked_for_beyond_the_clients_wish(value):
    plain = json.loads(_sent(prepare_chat_request(_body())))
    assert plain.keys() == {"messages", "logprobs", "return_meta_info", "no_stop_trim", "input_ids"}
    sent = json.loads(_sent(prepare_chat_request(_body(return_routed_experts=value, lora_path=value))))
    assert _same([sent["return_routed_experts"], sent["lora_path"]], [value, value])


# -- what goes out ------------------------------------------------------------------------------------------------


@settings(PATIENT, max_examples=50)
@given(conversations(), client_fields, token_ids())
def test_the_body_for_the_engine_is_compact_with_text_as_it_is(conversation, fields, prompt):
    sent = _sent(prepare_chat_request(_body(**fields, messages=conversation)), prompt)
    assert not set(_outside_strings(sent)) & set(" \n\t\r")
    for text in _strings(json.loads(sent)):
        if text.isprintable() and not set(text) & set('"\\'):
            assert f'"{text}"'.encode() in sent


def _outside_strings(raw: bytes) -> str:
    out, inside, escaped = [], False, False
    for char in raw.decode():
        if inside:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                inside = False
        elif char == '"':
            inside = True
        else:
            out.append(char)
    return "".join(out)


def _strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, child in value.items():
            yield key
            yield from _strings(child)
    elif isinstance(value, list):
        for child in value:
            yield from _strings(child)


def test_the_body_for_the_engine_is_this():
    body = '{ "model": "größe", "stream": true, "messages": [ {"role": "user", "content": "\\u00e9 😀"} ] }'.encode()
    prepared = prepare_chat_request(body)
    assert prepared.stream is True
    assert _sent(prepared, [1, 2], {"enable_thinking": False}).decode() == (
        '{"model":"größe","logprobs":true,"return_meta_info":true,"no_stop_trim":false,'
        '"chat_template_kwargs":{"enable_thinking":false},'
        '"messages":[{"role":"user","content":"é 😀"}],"input_ids":[1,2]}'
    )


@PATIENT
@given(st.integers(-(10**60), 10**60))
@example(2**63)
@example(2**64)
@example(-(2**63) - 1)
@example(10**400)
def test_integers_of_any_size_survive(number):
    message = {"role": "user", "content": number}
    prepared = prepare_chat_request(_body(messages=[message], seed=number))
    assert json.loads(_sent(prepared))["seed"] == number
    assert f'"content":{number}}}'.encode() in _sent(prepared)


@PATIENT
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_survive(number):
    assert json.loads(_sent(prepare_chat_request(_body(temperature=number))))["temperature"] == number


# -- template kwargs ----------------------------------------------------------------------------------------------


@PATIENT
@given(st.none() | st.dictionaries(st.text(max_size=3), json_values(max_leaves=3), max_size=3), st.booleans())
def test_kwargs_are_handed_out_and_only_the_effective_ones_are_sent(kwargs, present):
    prepared = prepare_chat_request(_body(chat_template_kwargs=kwargs) if present or kwargs else _body())
    assert _same(prepared.template_kwargs, kwargs or {})
    assert "chat_template_kwargs" not in json.loads(_sent(prepared))
    assert json.loads(_sent(prepared, kwargs={"thinking": "é"}))["chat_template_kwargs"] == {"thinking": "é"}


@PATIENT
@given(json_values().filter(lambda value: value is not None and not isinstance(value, dict)))
def test_kwargs_that_are_no_object_are_refused(value):
    with pytest.raises(InvalidRequest) as caught:
        prepare_chat_request(_body(chat_template_kwargs=value))
    assert str(caught.value) == "chat_template_kwargs must be an object"


# -- replay -------------------------------------------------------------------------------------------------------


@PATIENT
@given(st.integers(0, 10**6), policies, json_values(max_leaves=2))
@example(0, RequestPolicy(routing_replay=True, incremental_replay=True), 5)
@example(1, RequestPolicy(routing_replay=True, incremental_replay=True), 5)
@example(7, RequestPolicy(incremental_replay=True), 5)
def test_the_first_missing_row_is_named_only_in_incremental_mode(stored_tokens, policy, clients):
    prepared = prepare_chat_request(_body(routed_experts_start_len=clients), policy)
    sent = json.loads(_sent(prepared, stored_tokens=stored_tokens))
    if policy.routing_replay and policy.incremental_replay:
        assert sent["routed_experts_start_len"] == (stored_tokens - 1 if stored_tokens else 0)
    else:
        assert "routed_experts_start_len" not in sent


@PATIENT
@given(json_values())
def test_stream_is_remembered_as_truth(value):
    prepared = prepare_chat_request(_body(stream=value))
    assert prepared.stream is bool(value)


def test_preparing_twice_gives_independent_requests():
    prepared = prepare_chat_request(_body(), RequestPolicy(routing_replay=True, incremental_replay=True))
    first = _sent(prepared, [1], {"a": 1}, 10)
    assert _sent(prepared, [2], {}, 0) != first
    assert _sent(prepared, [1], {"a": 1}, 10) == first


# -- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"not json",
        b'{"messages":[{"role":"user"}],}',
        b'{"messages":[{"role":"user"}]} x',
        b'{"messages":[{"role":"user","content":NaN}]}',
        b'{"messages":[{"role":"user","content":-Infinity}]}',
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"messages":[{"role":"user","content":"\xff"}]}',
        b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
        b'\xef\xbb\xbf{"messages":[{"role":"user"}]}',
        '{"messages":[{"role":"user"}]}'.encode("utf-16"),
        b"[" * 100_000,
        b'{"messages":[{"role":"user","content":' + b"[" * (MAX_NESTING - 2) + b"]" * (MAX_NESTING - 2) + b"}]}",
    ],
)
def test_malformed_json(body):
    with pytest.raises(InvalidRequest, match=r"\Ainvalid JSON body: .+"):
        prepare_chat_request(body)


def test_nesting_up_to_the_limit_is_served():
    depth = MAX_NESTING - 3  # below the body, the list and the message
    content = b"[" * depth + b"]" * depth
    prepared = prepare_chat_request(b'{"messages":[{"role":"user","content":' + content + b"}]}")
    assert content in _sent(prepared)


def test_the_last_of_duplicate_keys_counts_and_ours_beat_both():
    prepared = prepare_chat_request(b'{"messages":[],"logprobs":1,"messages":[{"role":"user"}],"logprobs":false}')
    assert _one_object(_sent(prepared)) == {
        "logprobs": True,
        "return_meta_info": True,
        "no_stop_trim": False,
        "messages": [{"role": "user"}],
        "input_ids": [7],
    }


@PATIENT
@given(json_values().filter(lambda value: not isinstance(value, dict)))
def test_a_body_that_is_no_object(value):
    with pytest.raises(InvalidRequest, match=r"\Athe request body must be a JSON object, got "):
        prepare_chat_request(json.dumps(value).encode())


@pytest.mark.parametrize("body", [b"", b"{}", b'{"messages":null}', b'{"messages":[]}'])
def test_no_messages(body):
    with pytest.raises(InvalidRequest) as caught:
        prepare_chat_request(body)
    assert str(caught.value) == "messages must be a list with at least one message"


@PATIENT
@given(st.lists(messages(), max_size=3), json_values(max_leaves=3), st.lists(messages(), max_size=1))
def test_the_first_wrong_message_is_named(before, wrong, after):
    assume(not isinstance(wrong, dict) or not isinstance(wrong.get("role"), str))
    with pytest.raises(InvalidRequest, match=rf"\Amessages\[{len(before)}\](\.role must be| must be| has no role)"):
        prepare_chat_request(_body(messages=[*before, wrong, *after]))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"messages": {}}, "messages must be a list, got an object"),
        ({"messages": "x"}, "messages must be a list, got a string"),
        ({"messages": [1]}, "messages[0] must be an object, got a number"),
        ({"messages": [{"role": "user"}, None]}, "messages[1] must be an object, got null"),
        ({"messages": [{"content": "x"}]}, "messages[0] has no role"),
        ({"messages": [{"role": True}]}, "messages[0].role must be a string, got a boolean"),
        ({"tools": {}}, "tools must be a list, got an object"),
        ({"tools": "x"}, "tools must be a list, got a string"),
    ],
)
def test_refusals_say_what_is_wrong_and_where(fields, text):
    with pytest.raises(InvalidRequest) as caught:
        prepare_chat_request(_body(**fields))
    assert str(caught.value) == text


def _outcome(body: bytes, sent: SentMessages | None) -> object:
    try:
        prepared = prepare_chat_request(body, sent=sent)
    except InvalidRequest as refusal:
        return str(refusal)
    return json.dumps([prepared.messages, prepared.tools, prepared.template_kwargs, prepared.fields], sort_keys=True)


def _again(before: bytes) -> SentMessages:
    prepared = prepare_chat_request(before)
    return SentMessages.of(prepared.spelled_messages, prepared.messages)


spelled_as = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " : ")])


@PATIENT
@given(conversations(), st.lists(messages() | json_values(max_leaves=3), max_size=3), client_fields, spelled_as)
def test_what_was_sent_before_is_known_again_and_nothing_else_differs(conversation, appended, fields, separators):
    sent = _again(json.dumps({"messages": conversation}, separators=separators).encode())
    body = json.dumps({**fields, "messages": [*conversation, *appended]}, separators=separators).encode()
    assert _outcome(body, sent) == _outcome(body, None)
    if all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in appended):
        again = prepare_chat_request(body, sent=sent).messages
        assert all(old is new for old, new in zip(sent.messages, again, strict=False))


@PATIENT
@given(conversations(), chat_bodies())
@example([{"role": "user", "content": "x"}], b'{"messages":[{"role":"user","content":"x"}')
@example([{"role": "user", "content": "x"}], b'{"messages":[{"role":"user","content":"x"} 1]}')
@example([{"role": "user", "content": "x"}], b'{"messages":[{"role":"user","content":"x"},]}')
@example([{"role": "user", "content": "x"}], b'{"messages":[{"role":"user","content":"x"}],"messages":[]}')
@example([{"role": "user", "content": "x"}], b'{"a":"\xff","messages":[{"role":"user","content":"x"}]}')
def test_whatever_comes_after_what_was_sent_is_treated_as_if_nothing_was_known(conversation, body):
    sent = _again(json.dumps({"messages": conversation}).encode())
    compact = _again(json.dumps({"messages": conversation}, separators=(",", ":")).encode())
    assert _outcome(body, sent) == _outcome(body, compact) == _outcome(body, None)


@pytest.mark.parametrize("depth", range(MAX_NESTING - 4, MAX_NESTING + 3))
@pytest.mark.parametrize("where", ["field", "message"])
def test_nesting_is_limited_alike_in_what_is_appended(depth, where):
    deep = b"[" * depth + b"]" * depth
    known = b'{"role":"user","content":"x"}'
    body = (
        b'{"deep":%b,"messages":[%b]}' % (deep, known)
        if where == "field"
        else b'{"messages":[%b,{"role":"user","content":%b}]}' % (known, deep)
    )
    sent = _again(b'{"messages":[%b]}' % known)
    assert _outcome(body, sent) == _outcome(body, None)
