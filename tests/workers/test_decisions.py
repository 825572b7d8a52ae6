"""Whose a session is, where new ones go, which address is told, when a worker is given up."""

from __future__ import annotations

import re
from collections import Counter
from urllib.parse import quote, urlparse

import pytest
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.exceptions import HTTPException

from trio_sessions.config import Settings
from trio_sessions.service.gateway import Gateway
from trio_sessions.testing.engine import ScriptedEngine
from trio_sessions.testing.toy import ToyRenderer
from trio_sessions.web.app import create_app
from trio_sessions.workers.address import advertised_host, neighbour_url
from trio_sessions.workers.ownership import Placement, owned_id, owner_of, session_in
from trio_sessions.workers.restarts import RestartPolicy, Restarts

workers = st.integers(1, 256)
drawn_ids = st.integers(0, 2**128 - 1) | st.integers(2**128 - 300, 2**128 - 1)
session_ids = drawn_ids.map(lambda value: f"{value:032x}")


@given(drawn_ids, workers, st.data())
def test_an_id_is_its_owners_and_in_the_contracts_form(drawn, count, data):
    owner = data.draw(st.integers(0, count - 1))
    session_id = owned_id(drawn, owner=owner, workers=count)
    assert re.fullmatch(r"[0-9a-f]{32}", session_id)
    assert owner_of(session_id, count) == owner
    # As random as what was drawn: at most ``count`` draws share an id.
    assert abs(int(session_id, 16) - drawn) <= count


@given(session_ids, workers)
def test_every_id_has_one_owner(session_id, count):
    assert owner_of(session_id, count) in range(count)
    assert owner_of(session_id, 1) == 0


@given(session_ids, st.sampled_from(["", "/", "/samples", "/v1/chat/completions", "//x", "/../..", "/a\nb"]))
def test_a_session_is_found_in_its_paths(session_id, rest):
    assert session_in(f"/sessions/{session_id}{rest}") == session_id
    assert session_in(f"http://other.example/sessions/{session_id}/samples") == session_id


ID = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    "path",
    [
        "/sessions",
        "/sessions/",
        f"/sessions/{ID[:-1]}",
        f"/sessions/{ID}0",
        f"/sessions/{ID.upper()}",
        f"/sessions/{ID}\n",
        f"/sessions/{ID}?x",
        f"/sessions/{quote(ID[0], safe='')}%",
        f"/sessions//{ID}",
        f"/x/sessions/{ID}",
        f"/sessions/../sessions/{ID}",
        f"/Sessions/{ID}",
        f"/sessions/{ID[:-1]}٣",
        "*",
        "",
        "/health",
        "http://[",
    ],
)
def test_what_is_no_path_of_a_session(path):
    assert session_in(path) is None


APP = create_app(Gateway(Settings(), engine=ScriptedEngine(), renderer=ToyRenderer()))
PIECES = st.lists(
    st.sampled_from(["/", "sessions", "x", ":", "http://h", "?", "#", ";", "..", " ", "\t", "\n", "[", "\u0661"]),
    max_size=4,
).map("".join)


@given(st.tuples(PIECES, st.just("sessions"), st.sampled_from(["/", "//"]), st.just(ID), PIECES).map("".join) | PIECES)
def test_a_path_is_read_as_the_routes_read_it(path):
    # As ``quart.asgi`` has it.
    try:
        target = path if path[:1] == "/" else urlparse(path).path
    except ValueError:
        target = ""
    try:
        _, arguments = APP.url_map.bind("h").match(target, method="GET")
    except HTTPException:
        arguments = {}
    served = arguments.get("session_id", "")
    if served:
        assert session_in(path) == (served if re.fullmatch(r"[0-9a-f]{32}", served) else None)


@given(st.integers(0, 300), st.integers(1, 8), st.integers(1, 50))
def test_new_sessions_are_spread_evenly(first, count, created):
    placement = Placement(first, count)
    drawn = Counter(placement.draw([True] * count)[0] for _ in range(created))
    assert set(drawn) <= set(range(count))
    assert max(drawn.values()) - min(drawn[index] for index in range(count)) <= 1


@given(st.integers(0, 300), st.lists(st.booleans(), min_size=1, max_size=8), st.integers(1, 50))
def test_workers_that_are_down_are_left_out_and_the_others_share_what_was_theirs(first, up, created):
    placement = Placement(first, len(up))
    orders = [placement.draw(up) for _ in range(created)]
    usable = [index for index, is_up in enumerate(up) if is_up]
    assert all(sorted(order) == usable for order in orders)
    if usable:
        drawn = Counter(order[0] for order in orders)
        assert max(drawn.values()) - min(drawn[index] for index in usable) <= 1


@pytest.mark.parametrize(
    ("header", "host"),
    [
        (b"gateway", "gateway"),
        (b"gateway:8700", "gateway"),
        (b"my_gateway.svc.local:8700", "my_gateway.svc.local"),
        (b"10.0.0.7:1", "10.0.0.7"),
        (b"[::1]:8700", "[::1]"),
        (b"[fe80::1]", "[fe80::1]"),
        (None, "192.0.2.1"),
        (b"", "192.0.2.1"),
        (b":8700", "192.0.2.1"),
        (b"h:", "192.0.2.1"),
        (b"user@h", "192.0.2.1"),
        (b"h/x", "192.0.2.1"),
        (b"h?x", "192.0.2.1"),
        (b"h#x", "192.0.2.1"),
        (b"h\\x", "192.0.2.1"),
        (b"h\n", "192.0.2.1"),
        (b"h x", "192.0.2.1"),
        (b'h"x', "192.0.2.1"),
        (b"[1.2.3.4]", "192.0.2.1"),
        (b"[::::]", "192.0.2.1"),
        (b"[::1", "192.0.2.1"),
        (b"h:123456", "192.0.2.1"),
        ("h\u0663".encode(), "192.0.2.1"),
        (b"-h", "192.0.2.1"),
        (b"a" * 300, "192.0.2.1"),
    ],
)
def test_the_host_that_a_client_named_is_told_if_it_is_one(header, host):
    assert advertised_host(header, reached="192.0.2.1") == host


@given(st.binary(max_size=40))
def test_whatever_a_client_calls_the_host_a_url_comes_of_it(header):
    host = advertised_host(header, reached="::1")
    assert re.fullmatch(r"[A-Za-z0-9_.-]+|\[[0-9a-fA-F:.]+\]", host)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9"),
        ("10.1.2.3", "http://10.1.2.3:9"),
        ("0.0.0.0", "http://127.0.0.1:9"),
        ("::", "http://[::1]:9"),
        ("fe80::1", "http://[fe80::1]:9"),
    ],
)
def test_where_neighbours_reach_a_worker(host, url):
    assert neighbour_url(host, 9) == url


def test_a_worker_that_dies_at_once_is_given_up_after_a_few_patient_attempts():
    restarts = Restarts(RestartPolicy(attempts=4, first_delay=1, longest_delay=3, steady_after=60))
    assert [restarts.died(served=served) for served in (0, 59, 0, 0)] == [1, 2, 3, 3]
    assert restarts.died(served=1) is None


@given(st.lists(st.floats(0, 1e6), max_size=60))
def test_a_worker_that_serves_for_long_between_its_deaths_is_never_given_up(served):
    policy = RestartPolicy()
    restarts = Restarts(policy)
    quick = 0
    for seconds in served:
        quick = 1 if seconds >= policy.steady_after else quick + 1
        delay = restarts.died(served=seconds)
        assert (delay is None) == (quick > policy.attempts)
        assert delay is None or policy.first_delay <= delay <= policy.longest_delay
