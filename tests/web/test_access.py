"""The decision itself: against the routes as Quart matches them, and against one that is slow and obvious."""

from __future__ import annotations

import itertools
from urllib.parse import urlparse

import pytest
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.exceptions import HTTPException

from tests.web.audiences import AUDIENCES
from trio_sessions.config import Settings
from trio_sessions.core.credentials import digest_of
from trio_sessions.errors import PermissionDenied, Unauthenticated
from trio_sessions.service.gateway import Gateway
from trio_sessions.service.keys import ApiKeys, draw_token
from trio_sessions.testing.engine import ScriptedEngine
from trio_sessions.testing.toy import ToyRenderer
from trio_sessions.web.access import Access, Admitted, Audience, Judge, Refused, access_to
from trio_sessions.web.app import create_app
from trio_sessions.web.dialects.routes import COUNTS, DIALECTS
from trio_sessions.web.paths import session_target

METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "X-ODD"]
SESSIONS = ["a" * 32, "b" * 32]
SEGMENTS = st.sampled_from(
    [
        *SESSIONS,
        *(
            "sessions",
            "agents",
            "samples",
            "health",
            "metrics",
            "openapi.json",
            "v1",
            "messages",
            "responses",
            "models",
        ),
        *(
            "chat",
            "completions",
            "count_tokens",
            "..",
            ".",
            "",
            "%2e%2e",
            "%2F",
            "sessions;x",
            "health;x",
            "\\",
            "a\\b",
        ),
        *("x", "é", "\n", " ", "?", "#", "http:", "elsewhere", "SESSIONS", "*"),
    ]
)
PATHS = st.one_of(
    st.lists(SEGMENTS, max_size=9).map("/".join),
    st.lists(SEGMENTS, max_size=8).map(lambda parts: "/" + "/".join(parts)),
    st.text(max_size=20),
)
STARTS = [
    *("", "/", "//", "http://h/", "http:/", "http:///", "//h/", "http://h:x/", "http://[/", "x/", "/x/", "/./"),
    *("/sessions/", f"/sessions/{SESSIONS[0]}/", f"//sessions/{SESSIONS[0]}/", f"sessions/{SESSIONS[0]}/"),
    *(f"/sessions/{SESSIONS[0]}/agents/a/", f"/sessions/{SESSIONS[0]}/agents/", f"/sessions/../{SESSIONS[1]}/"),
]
ENDS = [
    *(
        "health",
        "openapi.json",
        "metrics",
        "samples",
        "sessions",
        "v1/models",
        "v1/messages",
        "v1/messages/count_tokens",
    ),
    *("", "/samples", "samples/", "./samples", "agents/a/samples", "agents/a", "agents/a/health", "x/../samples", "\n"),
    *("health/", "health?", "health;x", "/health", "v1/messages/", "/v1/messages", "v1//messages"),
]


@pytest.fixture(scope="module")
def url_map():
    gateway = Gateway(Settings(), engine=ScriptedEngine(), renderer=ToyRenderer())
    return create_app(gateway).url_map


def matched(url_map, method: str, path: str) -> tuple[str, dict] | None:
    """The rule that Quart finds for a request, and what it reads out of the path."""
    if not path:
        return None
    if path[0] != "/":
        try:
            path = urlparse(path).path
        except ValueError:
            return None
    try:
        rule, values = url_map.bind("server").match(path, method=method, return_rule=True)
    except HTTPException:
        return None
    return rule.rule, values


def test_who_may_use_a_route_is_decided_for_every_route(url_map) -> None:
    rules = {rule.rule for rule in url_map.iter_rules()}
    assert rules == AUDIENCES.keys(), "a new route: say in AUDIENCES for whom it is"


def judged_for_the_route_that_serves_it(url_map, method: str, path: str) -> None:
    access = access_to(method, path)
    found = matched(url_map, method, path)
    if found is None:
        assert access.audience is not Audience.ANYONE, (method, path)
    else:
        rule, values = found
        wanted = AUDIENCES[rule]
        if wanted is Audience.AGENT and values["path"] == "samples" and "agent" not in values:
            wanted = Audience.OPERATOR
        assert access.audience is wanted, (method, path)
        assert access.audience is not Audience.AGENT or access.session_id == values["session_id"], (method, path)
    # Turns are routed without Quart.
    target = session_target(path)
    if method == "POST" and target is not None and target.path in (*DIALECTS, *COUNTS):
        assert access == Access(Audience.AGENT, target.session_id)


@given(method=st.sampled_from(METHODS), path=PATHS)
def test_a_request_is_judged_for_the_route_that_serves_it(url_map, method: str, path: str) -> None:
    judged_for_the_route_that_serves_it(url_map, method, path)


def test_so_are_all_that_are_nearly_something_else(url_map) -> None:
    for start, end, method in itertools.product(STARTS, ENDS, METHODS):
        judged_for_the_route_that_serves_it(url_map, method, f"{start}{end}")


KEYS = ["a-key-of-24-characters-x", "another-key-of-some-more"]
OWN, FOREIGN = draw_token(), draw_token()
TOKENS = {SESSIONS[0]: OWN.digest, SESSIONS[1]: FOREIGN.digest}
STRANGERS = [
    "wrong",
    "",
    KEYS[0][:-1],
    KEYS[0].upper(),
    OWN.text[:-1],
    f"{OWN.text}x",
    digest_of(KEYS[0].encode()).hex(),
]
HEADERS = st.one_of(
    st.tuples(
        st.sampled_from(["authorization", "Authorization"]),
        st.sampled_from(["Bearer ", "bearer ", "BEARER  ", "Basic ", ""]),
        st.sampled_from([*KEYS, OWN.text, FOREIGN.text, *STRANGERS]),
    ),
    st.tuples(st.sampled_from(["x-api-key", "X-API-Key"]), st.just(""), st.sampled_from([*KEYS, OWN.text, *STRANGERS])),
    st.tuples(st.sampled_from(["host", "cookie", "x-note"]), st.just(""), st.sampled_from(["x", *KEYS])),
)
ROUTES = st.sampled_from(
    [
        *("/health", "/metrics", "/sessions", "/nope"),
        *(f"/sessions/{id_}{below}" for id_ in (*SESSIONS, "c" * 32) for below in ("", "/samples", "/v1/messages")),
    ]
)


def presented(name: str, scheme: str, credential: str) -> str | None:
    if name.lower() == "x-api-key":
        return credential
    return credential if name.lower() == "authorization" and scheme.lower().strip() == "bearer" else None


def obvious(path: str, credentials: list[str | None]) -> type | None:
    """None where it may go on, else the error."""
    if path == "/health" or any(credential in KEYS for credential in credentials):
        return None
    if OWN.text in credentials and path == f"/sessions/{SESSIONS[0]}/v1/messages":
        return None
    if FOREIGN.text in credentials and path == f"/sessions/{SESSIONS[1]}/v1/messages":
        return None
    return PermissionDenied if {OWN.text, FOREIGN.text} & set(credentials) else Unauthenticated


@given(path=ROUTES, parts=st.lists(HEADERS, max_size=5))
def test_the_decision_is_the_obvious_one(path: str, parts: list[tuple[str, str, str]]) -> None:
    headers = [(name.encode(), f"{scheme}{credential}".encode()) for name, scheme, credential in parts]
    judge = Judge(ApiKeys([digest_of(key.encode()) for key in KEYS]), TOKENS.get)
    verdict = judge.decide("GET", path, headers)
    expected = obvious(path, [presented(*part) for part in parts])
    if expected is None:
        # What opens the gateway is not shown to the engine; everything else is, in its order.
        ours = {*KEYS, OWN.text, FOREIGN.text}
        kept = [header for header, part in zip(headers, parts, strict=True) if presented(*part) not in ours]
        assert verdict == Admitted(kept)
    else:
        assert isinstance(verdict, Refused)
        assert type(verdict.error) is expected


def test_a_session_that_does_not_exist_is_like_one_that_is_anothers() -> None:
    judge = Judge(ApiKeys([bytes(32)]), TOKENS.get)
    headers = [(b"x-api-key", OWN.text.encode())]
    verdicts = [judge.decide("POST", f"/sessions/{id_}/v1/messages", headers) for id_ in (SESSIONS[1], "c" * 32)]
    assert all(isinstance(verdict, Refused) for verdict in verdicts)
    assert len({(type(verdict.error), str(verdict.error)) for verdict in verdicts}) == 1


def test_a_session_without_a_token_is_opened_by_none() -> None:
    judge = Judge(ApiKeys([digest_of(b"key")]), {}.get)
    for token in (OWN.text, "ts-" + "A" * 43):
        verdict = judge.decide("POST", f"/sessions/{SESSIONS[0]}/v1/messages", [(b"x-api-key", token.encode())])
        assert isinstance(verdict, Refused)


class TestNeighbours:
    """Several processes: who has the session judges its tokens."""

    judge = Judge(
        ApiKeys([digest_of(KEYS[0].encode())]),
        TOKENS.get,
        elsewhere=lambda session_id: session_id == SESSIONS[1],
        vouched=lambda headers: (b"hop", b"secret") in headers,
    )
    path = f"/sessions/{SESSIONS[1]}/v1/messages"

    def test_a_token_goes_on_to_where_its_session_is(self) -> None:
        headers = [(b"x-api-key", OWN.text.encode()), (b"x", b"y")]
        assert self.judge.decide("POST", self.path, headers) == Admitted(headers, judged=False)
        assert isinstance(self.judge.decide("GET", f"/sessions/{SESSIONS[1]}", headers), Refused)

    def test_who_has_nothing_goes_nowhere(self) -> None:
        assert isinstance(self.judge.decide("POST", self.path, [(b"x-api-key", b"wrong")]), Refused)

    def test_what_a_neighbour_vouches_for_may_go_on_but_for_tokens(self) -> None:
        hop = (b"hop", b"secret")
        other = (b"authorization", b"Bearer of-the-engine")
        assert self.judge.decide("GET", "/metrics", [hop, other]) == Admitted([hop, other])
        token = (b"x-api-key", OWN.text.encode())
        own = f"/sessions/{SESSIONS[0]}/v1/messages"
        assert self.judge.decide("POST", own, [hop, token]) == Admitted([hop])
        for path in ("/metrics", f"/sessions/{SESSIONS[0]}"):
            assert isinstance(self.judge.decide("GET", path, [hop, token]), Refused)


def test_no_two_tokens_are_alike() -> None:
    tokens = [draw_token() for _ in range(100)]
    assert len({token.text for token in tokens}) == len({token.digest for token in tokens}) == 100
    assert all(digest_of(token.text.encode()) == token.digest for token in tokens)
    assert tokens[0].text not in repr(tokens[0])
