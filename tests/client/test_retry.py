"""Whether to try again, as a table; the clients only do what it says."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_sessions.client import NO_RETRIES, ClientError, GatewayUnreachable, RetryPolicy, UnusableAnswer, wire
from trio_sessions.client.retry import Attempts, Done, Wait
from trio_sessions.client.wire import Answer
from trio_sessions.errors import ConfigurationError

CALLS = {
    "health": (wire.health(), Answer(200, {}, b'{"status":"ok","session_server_instance_id":"i"}')),
    "create": (wire.create_session(), Answer(200, {}, b'{"session_id":"s"}')),
    "read": (wire.read("s"), Answer(200, {}, b'{"session_id":"s","records":[],"metadata":{}}')),
    "delete": (wire.delete("s"), Answer(204, {}, b"")),
    "chat": (wire.chat("s", [], {}), Answer(200, {}, b'{"choices":[{"message":{}}]}')),
}
NEVER_TWICE = {"create", "chat"}
NOT_SENT = [httpx.ConnectError("refused"), httpx.ConnectTimeout("slow"), httpx.PoolTimeout("full")]
MAY_HAVE_ARRIVED = [
    httpx.ReadTimeout("slow"),
    httpx.WriteTimeout("slow"),
    httpx.ReadError("reset"),
    httpx.WriteError("reset"),
    httpx.CloseError(""),
    httpx.RemoteProtocolError("Server disconnected without sending a response."),
    httpx.LocalProtocolError("?"),
]
PASSING = [429, 502, 503, 504]
FINAL = [400, 401, 403, 409, 413, 422, 500, 501, 505, 302]
GONE = Answer(404, {}, b'{"error":"session not found: session_id=s"}')


def attempts(name, policy=None, jitter=1.0):
    return Attempts(CALLS[name][0], policy or RetryPolicy(), lambda: jitter, gateway="http://g")


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("error", NOT_SENT, ids=repr)
def test_what_was_not_sent_is_sent_again(name, error):
    tried = attempts(name)
    assert isinstance(tried.failed(error), Wait)
    assert isinstance(tried.answered(CALLS[name][1]), Done)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("error", MAY_HAVE_ARRIVED, ids=repr)
def test_what_may_have_arrived_is_sent_again_only_if_that_changes_nothing(name, error):
    tried = attempts(name)
    if name not in NEVER_TWICE:
        assert isinstance(tried.failed(error), Wait)
        return
    with pytest.raises(GatewayUnreachable, match=type(error).__name__) as raised:
        tried.failed(error)
    assert raised.value.may_have_arrived
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("status", PASSING + FINAL)
def test_a_status_is_retried_only_if_it_may_pass_and_the_call_may_be_repeated(name, status):
    tried = attempts(name)
    if name not in NEVER_TWICE and status in PASSING:
        assert isinstance(tried.answered(Answer(status, {}, b"")), Wait)
        return
    with pytest.raises(ClientError) as raised:
        tried.answered(Answer(status, {}, b""))
    assert raised.value.status == status


def test_a_deletion_that_may_have_arrived_explains_that_the_session_is_gone():
    for before in (httpx.ReadError(""), 502, 503):
        tried = attempts("delete")
        verdict = tried.answered(Answer(before, {}, b"")) if isinstance(before, int) else tried.failed(before)
        assert isinstance(verdict, Wait)
        assert isinstance(tried.failed(httpx.ConnectError("")), Wait)
        assert tried.answered(GONE) == Done(None)


@pytest.mark.parametrize("name", ["delete", "read", "chat"])
def test_otherwise_a_session_that_is_gone_is_an_error(name):
    tried = attempts(name)
    tried.failed(httpx.ConnectError(""))
    with pytest.raises(ClientError, match="session not found"):
        tried.answered(GONE)


def test_a_reader_learns_that_the_session_is_gone_also_after_a_retry():
    tried = attempts("read")
    tried.failed(httpx.ReadError(""))
    with pytest.raises(ClientError, match="session not found"):
        tried.answered(GONE)


def test_whether_anything_arrived_is_remembered():
    tried = attempts("read", RetryPolicy(attempts=2))
    tried.failed(httpx.ReadError(""))
    with pytest.raises(GatewayUnreachable) as raised:
        tried.failed(httpx.ConnectError("refused"))
    assert raised.value.may_have_arrived
    with pytest.raises(
        GatewayUnreachable, match="no answer from http://g to GET /sessions/s: ConnectError: x"
    ) as raised:
        attempts("read", NO_RETRIES).failed(httpx.ConnectError("x"))
    assert not raised.value.may_have_arrived


def test_an_answer_that_cannot_be_decoded_is_not_asked_for_again():
    with pytest.raises(UnusableAnswer):
        attempts("read").failed(httpx.DecodingError("zlib"))


@given(st.integers(1, 8), st.lists(st.sampled_from([*NOT_SENT, *MAY_HAVE_ARRIVED, *PASSING]), min_size=8, max_size=8))
def test_attempts_are_bounded_and_the_last_failure_is_raised(most, failures):
    tried = attempts("read", RetryPolicy(attempts=most))
    for number, failure in enumerate(failures[:most], start=1):
        act = tried.answered if isinstance(failure, int) else tried.failed
        given_ = Answer(failure, {}, b"") if isinstance(failure, int) else failure
        if number < most:
            assert isinstance(act(given_), Wait)
        else:
            with pytest.raises(ClientError):
                act(given_)


@given(
    st.integers(1, 5000),
    st.floats(0, 1),
    st.none() | st.floats(0, 1e9),
    st.floats(0, 10),
    st.floats(10, 100),
)
def test_delays_grow_and_have_a_ceiling(failures, jitter, retry_after, first, longest):
    policy = RetryPolicy(first_delay=first, longest_delay=longest)
    delay = policy.delay(failures, jitter=jitter, retry_after=retry_after)
    assert min(first / 2, longest) <= delay <= longest
    assert delay >= min(retry_after or 0, longest)
    assert policy.delay(failures + 1, jitter=jitter, retry_after=retry_after) >= delay


def test_the_delays_of_the_default_policy():
    policy = RetryPolicy()
    assert [policy.delay(n, jitter=1.0) for n in (1, 2, 3)] == [0.2, 0.4, 0.8]
    assert policy.delay(1, jitter=0.0) == 0.1
    assert policy.delay(1, jitter=0.0, retry_after=1.0) == 1.0
    assert policy.delay(1, jitter=0.0, retry_after=1e6) == 5.0


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"first_delay": -1}, {"longest_delay": 0.1}, {"first_delay": float("nan")}]
)
def test_a_policy_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="at least one attempt"):
        RetryPolicy(**wrong)
