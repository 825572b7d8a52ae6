"""Requests and answers without a network."""

from __future__ import annotations

import copy
import json
import pickle
from urllib.parse import unquote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_sessions.client import (
    AssemblyFailed,
    ClientError,
    GatewayUnreachable,
    RequestRefused,
    ServerError,
    SessionNotFound,
    StatusError,
    TruncatedGeneration,
    UnusableAnswer,
    wire,
)
from trio_sessions.client.transport import Place, check_base_url, check_timeout
from trio_sessions.client.wire import Answer, Created
from trio_sessions.core.samples import encode_samples
from trio_sessions.errors import ConfigurationError
from trio_sessions.testing.strategies import json_values

CHAT = wire.chat("s", [], {})
SAMPLES = wire.samples("s")
CALLS = [wire.health(), wire.create_session(), wire.read("s"), wire.delete("s"), CHAT, SAMPLES]


def error(call, status, body, **headers):
    with pytest.raises(ClientError) as raised:
        call.result(Answer(status, headers, body))
    return raised.value


ERRORS = [
    (CHAT, 404, b'{"error":"session not found: session_id=s"}', SessionNotFound, "session not found: session_id=s"),
    (CHAT, 404, b'{"error":"not found: GET /x"}', RequestRefused, "not found: GET /x"),
    (CHAT, 404, b'{"object":"error","message":"no such model"}', RequestRefused, "no such model"),
    (CHAT, 400, b'{"error":{"message":"too long","type":"x"}}', RequestRefused, "too long"),
    (CHAT, 400, b'{"error":{"message":7}}', RequestRefused, '{"error":{"message":7}}'),
    (CHAT, 400, b"[]", RequestRefused, "[]"),
    (
        CHAT,
        409,
        b'{"error":"truncated generation cannot be extended: retry it"}',
        TruncatedGeneration,
        "truncated generation cannot be extended: retry it",
    ),
    (CHAT, 409, b'{"error":"busy"}', RequestRefused, "busy"),
    (CHAT, 413, b"", RequestRefused, ""),
    (CHAT, 422, b'{"error":"engine says so"}', RequestRefused, "engine says so"),
    (SAMPLES, 422, b"cursor 3 != len(accumulated_token_ids) 4 \xc3\xa9\n", AssemblyFailed, None),
    (CHAT, 429, b"slow down", RequestRefused, "slow down"),
    (CHAT, 500, b"\xff\x00", ServerError, "\ufffd\x00"),
    (CHAT, 502, b'{"error":"backend transport error: ConnectError: "}', ServerError, None),
    (CHAT, 302, b"", StatusError, ""),
    (CHAT, 204, b"", StatusError, ""),
]


@pytest.mark.parametrize(("call", "status", "body", "kind", "text"), ERRORS)
def test_a_status_and_its_text_decide_the_error(call, status, body, kind, text):
    raised = error(call, status, body)
    assert type(raised) is kind
    assert (raised.status, raised.body) == (status, body)
    if text is not None:
        assert raised.text == text
    assert str(raised).startswith(str(status))


@pytest.mark.parametrize("copied", [copy.copy, lambda raised: pickle.loads(pickle.dumps(raised))])
@pytest.mark.parametrize(
    "raised",
    [
        TruncatedGeneration(409, "no", body=b'{"error":"no"}', retry_after=1.0),
        UnusableAnswer("what?", body=b"?"),
        GatewayUnreachable("nobody", may_have_arrived=True),
    ],
    ids=repr,
)
def test_errors_travel_between_processes(raised, copied):
    again = copied(raised)
    assert (type(again), str(again), again.__dict__) == (type(raised), str(raised), raised.__dict__)


def test_errors_of_the_contract_have_the_codes_of_the_gateways_own():
    from trio_sessions import errors

    for mine, theirs in (
        (SessionNotFound, errors.SessionNotFound),
        (TruncatedGeneration, errors.TruncatedGeneration),
        (AssemblyFailed, errors.SampleAssemblyFailed),
    ):
        assert mine.code == theirs.code


def test_a_long_text_is_kept_and_not_shown_whole():
    raised = error(CHAT, 400, json.dumps({"error": "x" * 10_000}).encode())
    assert len(raised.text) == 10_000
    assert len(str(raised)) < 600


@pytest.mark.parametrize(
    ("value", "seconds"), [("7", 7.0), ("0.5", 0.5), ("-1", None), ("nan", None), ("soon", None), ("", None)]
)
def test_retry_after_is_a_number_of_seconds(value, seconds):
    assert error(CHAT, 503, b"", **{"retry-after": value}).retry_after == seconds


@pytest.mark.parametrize(
    ("call", "body"),
    [
        (wire.health(), b"not JSON"),
        (wire.health(), b"[]"),
        (wire.health(), b'{"status":"ok"}'),
        (wire.create_session(), b'{"session_id":7}'),
        (wire.read("s"), b'{"session_id":"s","records":{},"metadata":{}}'),
        (wire.read("s"), b'{"session_id":"s","records":[]}'),
        (CHAT, b'{"choices":[]}'),
        (CHAT, b'{"choices":[{"message":null}]}'),
        (CHAT, b'{"choices":7}'),
        (CHAT, b'{"choices":[7]}'),
        (SAMPLES, b""),
        (SAMPLES, b"no safetensors at all, but long enough to be"),
    ],
)
def test_a_good_status_with_something_else_in_it_is_an_unusable_answer(call, body):
    raised = error(call, 200, body)
    assert type(raised) is UnusableAnswer
    assert raised.body == body
    assert f"{call.method} {call.path}" in str(raised)


def results(call, body):
    return call.result(Answer(call.success, {}, body))


def test_results_are_typed():
    health = results(wire.health(), b'{"status":"ok","session_server_instance_id":"ab","new":1}')
    assert (health.status, health.instance_id) == ("ok", "ab")
    assert results(wire.create_session(), b'{"session_id":"ab"}') == Created("ab", None)
    state = results(wire.read("s"), b'{"session_id":"s","records":[{"a":1}],"metadata":{"b":2}}')
    assert (state.session_id, state.records, state.metadata) == ("s", ({"a": 1},), {"b": 2})
    assert results(wire.delete("s"), b"") is None
    message = {"role": "assistant", "content": "hi", "x": [1]}
    body = {"id": "r", "choices": [{"message": message, "finish_reason": "stop"}]}
    answer = results(CHAT, json.dumps(body).encode())
    assert (answer.message, answer.finish_reason, answer.response_id, answer.body) == (message, "stop", "r", body)
    reply = results(SAMPLES, encode_samples([], {"c": 3}, "no_records"))
    assert (reply.samples, reply.session_metadata, reply.empty_reason) == ((), {"c": 3}, "no_records")


@pytest.mark.parametrize(
    ("base_url", "worker"),
    [
        ("http://h:9100/sessions/ab", "http://h:9100"),
        ("http://h/x/sessions/ab", "http://h/x"),
        ("http://h:9100/sessions/cd", None),
        ("http://h:9100", None),
        (7, None),
        (None, None),
    ],
)
def test_where_a_session_is_said_to_be(base_url, worker):
    body = json.dumps({"session_id": "ab", "base_url": base_url}).encode()
    assert results(wire.create_session(), body) == Created("ab", worker)


@pytest.mark.parametrize(
    ("gateway", "worker", "used"),
    [
        ("http://h:1", None, "http://h:1"),
        ("http://h:1", "http://h:2", "http://h:2"),
        ("https://h:1", "https://other/x/", "https://other/x"),
        ("https://h:1", "http://h:2", "https://h:1"),
        ("http://h:1", "", "http://h:1"),
        ("http://h:1", "http://h:x", "http://h:1"),
    ],
)
def test_a_worker_that_cannot_be_asked_as_the_gateway_is_is_not_asked(gateway, worker, used):
    assert Place(gateway, worker).url == used


@pytest.mark.parametrize(
    ("error", "url"),
    [
        (httpx.ConnectError("refused"), "http://h:1"),
        (httpx.ConnectTimeout("slow"), "http://h:1"),
        (httpx.ReadError("reset"), "http://h:2"),
        (httpx.ReadTimeout("slow"), "http://h:2"),
    ],
)
def test_a_worker_that_nobody_answers_at_is_given_up_for_the_gateway(error, url):
    place = Place("http://h:1", "http://h:2")
    place.failed(error)
    assert place.url == url


def test_what_may_be_sent_twice():
    assert {f"{call.method} {call.path}" for call in CALLS if call.repeatable} == {
        "GET /health",
        "GET /sessions/s",
        "DELETE /sessions/s",
        "POST /sessions/s/samples",
    }


@given(json_values(), st.text(min_size=1))
def test_any_json_reaches_the_body(value, session_id):
    call = wire.samples(session_id, max_seq_len=5, metadata={"x": value})
    assert json.loads(call.body) == {"max_seq_len": 5, "metadata": {"x": value}}
    prefix, name, suffix = call.path.removeprefix("/").split("/")
    assert (prefix, unquote(name), suffix) == ("sessions", session_id, "samples")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1: {2}}, "\ud800"])
def test_what_is_not_json_is_refused_before_it_is_sent(value):
    with pytest.raises(ValueError, match=r".+"):
        wire.chat("s", [{"role": "user", "content": value}], {})


def test_nothing_given_is_nothing_asked():
    assert wire.samples("s").body == b"{}"
    assert wire.samples("s", rewards={}).body == b'{"rewards":{}}'


def test_a_stream_and_an_empty_id_are_refused():
    with pytest.raises(ValueError, match="base_url"):
        wire.chat("s", [], {"stream": True})
    with pytest.raises(ValueError, match="not empty"):
        wire.read("")


@pytest.mark.parametrize("url", ["", "localhost:8700", "ftp://x", "http://", "http:///x", "http://h?q=1"])
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(ConfigurationError, match="http or https URL"):
        check_base_url(url)


def test_a_url_may_have_a_path_and_a_slash_at_its_end():
    assert check_base_url("https://host/gateway/") == "https://host/gateway"
    assert wire.base_urls("https://host/gateway", "ab").openai == "https://host/gateway/sessions/ab/v1"


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_timeout_that_cannot_be_waited_for_is_refused(seconds):
    with pytest.raises(ConfigurationError, match="positive number of seconds"):
        check_timeout(seconds)


def test_an_agents_name_is_one_segment_of_a_path():
    urls = wire.base_urls("http://h", "ab", agent="sub agent?é")
    assert urls == wire.BaseUrls(
        openai="http://h/sessions/ab/agents/sub%20agent%3F%C3%A9/v1",
        anthropic="http://h/sessions/ab/agents/sub%20agent%3F%C3%A9",
    )
    for name in ("", "a/b"):
        with pytest.raises(ValueError, match="an agent's name is not empty and has no slash"):
            wire.base_urls("http://h", "ab", agent=name)
