"""Keys and tokens over a real port: every route, every way to present something, every trick with a path."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from tests.web.audiences import AUDIENCES
from tests.web.support import CHAT, RawConnection, Serve, Served, Session, assert_error, user
from tests.web.test_proxy import TRICKS
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.errors import PermissionDenied, Unauthenticated
from trio_sessions.service.keys import DrawnToken, draw_token
from trio_sessions.testing.engine import ScriptedEngine, chat_answer
from trio_sessions.web.access import Audience
from trio_sessions.web.dialects.routes import COUNTS, DIALECTS

KEY, OTHER_KEY = "a-key-of-24-characters-x", "another-key-of-some-more"
METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"]
UNKNOWN = "0" * 32
TOKEN, FOREIGN = draw_token(), draw_token()
NO_KEY, NOT_ALLOWED = str(Unauthenticated()), str(PermissionDenied())


def bearer(credential: str) -> dict[str, str]:
    return {"authorization": f"Bearer {credential}"}


@pytest.fixture
async def guarded(serve: Serve) -> Served:
    return await serve(api_key=(KEY, OTHER_KEY))


async def opened(served: Served, token: DrawnToken = TOKEN) -> Session:
    """A session with this token."""
    return Session(served, (await served.gateway.registry.create(token_digest=token.digest)).id)


def _wanted() -> dict[str, Audience]:
    rules = {rule: audience for rule, audience in AUDIENCES.items() if "<path:path>" not in rule}
    below = [
        *DIALECTS,
        *COUNTS,
        "v1/models",
        "flush_cache",
        "agents/a/v1/models",
        f"agents/a/{CHAT}",
        "agents/a/samples",
    ]
    agents = dict.fromkeys((f"/sessions/<session_id>/{path}" for path in below), Audience.AGENT)
    others = dict.fromkeys(("/sessions/<session_id>/", "/nope", f"/{CHAT}"), Audience.OPERATOR)
    return {**rules, **agents, **others}


WANTED = _wanted()


@pytest.mark.parametrize("path", WANTED)
async def test_every_route_with_every_method_and_every_credential(guarded: Served, path: str) -> None:
    async with await guarded.connect() as connection:
        for number, method in enumerate(METHODS):
            audience = WANTED[path]
            if audience is Audience.ANYONE and method not in ("GET", "HEAD", "OPTIONS"):
                audience = Audience.OPERATOR
            refusals = {
                None: None if audience is Audience.ANYONE else 401,
                "wrong": None if audience is Audience.ANYONE else 401,
                TOKEN.text: 403 if audience is Audience.OPERATOR else None,
                FOREIGN.text: None if audience is Audience.ANYONE else 403,
                KEY: None,
                OTHER_KEY: None,
            }
            for turn, (credential, expected) in enumerate(refusals.items()):
                # A new one each time: what a key opens may delete it.
                target = path.replace("<session_id>", (await opened(guarded)).id)
                form = "x-api-key: {}" if (number + turn) % 2 else "authorization: Bearer {}"
                line = f"{form.format(credential)}\r\n" if credential else ""
                head = f"{method} {target} HTTP/1.1\r\nhost: x\r\n{line}content-length: 2\r\n\r\n"
                await connection.send(head.encode() + b"{}")
                answer = await connection.response(to=method)
                refused = answer.status if answer.status in (401, 403) else None
                assert refused == expected, (method, target, credential)
                if refused is not None:
                    assert answer.all("x-should-retry") == [b"false"]
                    assert answer.all("www-authenticate") == ([b"Bearer"] if refused == 401 else [])
                assert not [name for name, _ in answer.headers if name.lower().startswith("access-control")]


async def test_a_session_is_made_with_a_token_that_opens_its_model_routes_alone(guarded: Served) -> None:
    client = guarded.client
    made = (await client.post("/sessions", headers=bearer(KEY))).json()
    assert list(made) == ["session_id", "token"]
    path, headers = f"/sessions/{made['session_id']}", bearer(made["token"])
    other = (await client.post("/sessions", headers=bearer(KEY))).json()
    body = {"model": "m", "messages": [user("hi")], "max_tokens": 9}
    for below in (CHAT, "v1/messages", "agents/sub/v1/messages"):
        assert (await client.post(f"{path}/{below}", json=body, headers=headers)).status_code == 200
    counted = await client.post(f"{path}/v1/messages/count_tokens", json=body, headers=headers)
    assert counted.status_code == 200
    assert (await client.post(f"{path}/v1/responses", json={"input": "hi"}, headers=headers)).status_code == 200
    for method, target in (
        ("GET", path),
        ("DELETE", path),
        ("POST", f"{path}/samples"),
        ("GET", "/sessions"),
        ("GET", "/metrics"),
        ("POST", f"/sessions/{other['session_id']}/{CHAT}"),
        ("POST", f"/sessions/{UNKNOWN}/{CHAT}"),
    ):
        assert (await client.request(method, target, headers=headers, json={})).status_code == 403
    records = (await client.get(path, headers={"x-api-key": OTHER_KEY})).json()["records"]
    assert records
    assert (await client.delete(path, headers=bearer(KEY))).status_code == 204
    # It is not told from one that never was.
    gone = await client.post(f"{path}/{CHAT}", json=body, headers=headers)
    unknown = await client.post(f"/sessions/{UNKNOWN}/{CHAT}", json=body, headers=headers)
    assert (gone.status_code, gone.content) == (unknown.status_code, unknown.content)


@pytest.mark.parametrize("status", [401, 403])
async def test_errors_have_the_shape_of_their_dialect(guarded: Served, status: int) -> None:
    headers = {} if status == 401 else bearer(FOREIGN.text)
    text, code = (NO_KEY, "invalid_api_key") if status == 401 else (NOT_ALLOWED, "permission_denied")
    session = await opened(guarded)
    openai = {"error": {"message": text, "type": "invalid_request_error", "param": None, "code": code}}
    kind = "authentication_error" if status == 401 else "permission_error"
    anthropic = {"type": "error", "error": {"type": kind, "message": text}}
    for below, expected in {
        CHAT: openai,
        "v1/responses": openai,
        "v1/messages": anthropic,
        "v1/v1/messages": anthropic,
        "v1/messages/count_tokens": anthropic,
        "agents/a/v1/messages": anthropic,
    }.items():
        answer = await guarded.client.post(f"{session.path}/{below}", headers=headers, json={})
        assert (answer.status_code, answer.json()) == (status, expected)
    for method, path in (("GET", f"{session.path}/v1/models"), ("POST", "/sessions"), ("GET", "/nope")):
        if not (headers and path.endswith("models")):
            assert_error(await guarded.client.request(method, path, headers=headers), status, text)


async def test_without_keys_nothing_is_different(serve: Serve) -> None:
    served = await serve(ScriptedEngine(otherwise=EngineAnswer(200, (), b"{}")))
    session = await served.session()
    headers = [("authorization", "Bearer engine"), ("x-api-key", TOKEN.text)]
    answer = await served.client.post(f"{session.path}/tokenize", headers=headers, json={})
    assert answer.status_code == 200
    [call] = served.engine.calls
    assert [header for header in call.headers if header[0] in ("authorization", "x-api-key")] == headers


@pytest.mark.parametrize("credential", [KEY, TOKEN.text], ids=["key", "token"])
async def test_the_engine_sees_no_credential_of_ours(serve: Serve, credential: str) -> None:
    served = await serve(
        ScriptedEngine(otherwise=EngineAnswer(200, (), b"{}")), api_key=(KEY, OTHER_KEY), open_proxy=True
    )
    session = await opened(served)
    combinations = {
        (("authorization", f"Bearer {credential}"),): (),
        (("x-api-key", credential),): (),
        (("authorization", f"Bearer {credential}"), ("x-api-key", credential)): (),
        (("authorization", f"Bearer {credential}"), ("x-api-key", OTHER_KEY)): (),
        (("authorization", f"Bearer {credential}"), ("x-api-key", FOREIGN.text)): (),
        (("authorization", "Bearer engine"), ("x-api-key", credential)): (("authorization", "Bearer engine"),),
        (("authorization", f"bearer  {credential}"), ("x-api-key", "engine")): (("x-api-key", "engine"),),
        (("authorization", "Basic eA=="), ("x-api-key", credential)): (("authorization", "Basic eA=="),),
    }
    for number, (headers, passed_on) in enumerate(combinations.items()):
        for below in ("tokenize", "agents/a/v1/models", "flush_cache"):
            assert (await served.client.post(f"{session.path}/{below}", headers=headers, json={})).status_code == 200
            call = served.engine.calls[-1]
            assert tuple(header for header in call.headers if header[0] in ("authorization", "x-api-key")) == passed_on
        # A turn too, and what is kept of it.
        turn = {"messages": [user("hi")] * (number + 1)}
        await served.client.post(f"{session.path}/{CHAT}", headers=headers, json=turn)
        shown = str(served.engine.calls[-1].headers)
        assert not any(secret in shown for secret in (KEY, OTHER_KEY, TOKEN.text, FOREIGN.text))


async def test_a_stream_too(guarded: Served) -> None:
    session = await opened(guarded)
    body = {"messages": [user("hi")], "stream": True}
    answer = await guarded.client.post(f"{session.path}/{CHAT}", json=body, headers=bearer(TOKEN.text))
    assert answer.text.endswith("data: [DONE]\n\n")
    refused = await guarded.client.post(f"{session.path}/{CHAT}", json=body)
    assert (refused.status_code, refused.headers["content-type"]) == (401, "application/json")


MORE_TRICKS = [
    "/sessions/{own}/../{id}",
    "/sessions/{own}/../{id}/v1/chat/completions",
    "/sessions/{own}/..%2F{id}/v1/chat/completions",
    "/sessions/{own}/%2e%2e/{id}/v1/models",
    "/sessions/{own}%2F..%2F{id}",
    "/sessions/{own}/agents/../../{id}",
    "/sessions/{own}/agents/x/../../../{id}/v1/models",
    "/sessions/{own}/v1/../samples",
    "/sessions/{own}/samples",
    "/sessions/{own}%2Fsamples",
    "/sessions/{own}/samples/",
    "/sessions/{own}//samples",
    "/sessions/{own}/./samples",
    "/sessions/{own}/%73amples",
    "/sessions/{own}/samples;x",
    "/sessions/{own}/samples%00",
    "/sessions/{own}/samples?x=/v1/models",
    "/sessions/{own}",
    "/sessions/{own}/",
    "/sessions/{own}/.",
    "/sessions/{own}/..",
    "/sessions/{own}/x/..",
    "/sessions/{own};/v1/models",
    "/sessions/{own}\\..\\{id}",
    "/sessions/{own}/..\\{id}",
    "//sessions/{own}",
    "//sessions/..",
    "//sessions/../metrics",
    "/sessions/../metrics",
    "/sessions/{own}/../../metrics",
    "/health/../metrics",
    "/health/../sessions",
    "/health%2F..%2Fmetrics",
    "/health;/metrics",
    "/health\\..\\metrics",
    "/metrics?/health",
    "/metrics#/health",
    "/metrics%00/health",
    "http://h/metrics",
    "http://h/sessions/{own}",
    "http://h/sessions/{id}/v1/chat/completions",
    "http://h/sessions/{own}/../{id}/v1/chat/completions",
    "http:/sessions/{id}/v1/models",
    "metrics",
    "%2Fmetrics",
    "%2F%2Fsessions%2F{id}",
    "/%6detrics",
    "/sessions/{id}/v1/models",
    "/sessions/{id}",
]
SECRET = "what the other session says"


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "HEAD"])
async def test_no_trick_with_a_path_opens_more(serve: Serve, method: str) -> None:
    engine = ScriptedEngine(chat_answer("yes"), otherwise=EngineAnswer(200, (), b"the engine's"))
    served = await serve(engine, api_key=(KEY,), open_proxy=True)
    other = await opened(served, FOREIGN)
    reading = {"headers": bearer(KEY)}
    await served.client.post(f"{other.path}/{CHAT}", json={"messages": [user(SECRET)]}, **reading)
    before = (await served.client.get(other.path, **reading)).content
    assert SECRET.encode() in before
    own = await opened(served)
    for trick in (*TRICKS, *MORE_TRICKS):
        target = trick.format(id=other.id, own=own.id)
        calls = len(served.engine.calls)
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN.text}\r\nContent-Length: 2\r\n\r\n"
        )
        async with await served.connect() as connection:
            await connection.send(head.encode("latin-1") + b"{}")
            answer = await connection.response(to=method)
        if answer.status < 400:
            # It is ours, and the engine's answer.
            [call] = served.engine.calls[calls:]
            assert call.session_id == own.id, target
            assert answer.body in (b"the engine's", b""), target
        else:
            assert answer.status in (400, 401, 403, 404, 405), target
            assert len(served.engine.calls) == calls, target
    assert (await served.client.get(other.path, **reading)).content == before
    assert len(served.gateway.registry) == 2


BODY_BYTES = 64 * 2**20


async def answered(connection: RawConnection, *, target: str = "/sessions", length: int = BODY_BYTES) -> None:
    await connection.send(f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
    answer = await connection.response()
    assert answer.status == 401
    assert answer.all("connection") == [b"close"]


async def test_who_has_no_key_is_answered_before_a_large_body_is_sent(guarded: Served) -> None:
    async with await guarded.connect() as connection:
        await answered(connection)
        assert await connection.closed()
    assert (await guarded.client.get("/health")).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
async def test_who_sends_a_large_body_all_the_same_can_read_why_not(guarded: Served, chunked: bool) -> None:
    async def body():
        for _ in range(8):
            yield b"x" * 2**17

    content = body() if chunked else b"x" * 2**20
    answer = await guarded.client.post("/sessions", content=content)
    assert answer.status_code == 401
    assert answer.headers["connection"] == "close"


async def test_after_a_small_body_the_connection_is_used_again(guarded: Served) -> None:
    async with await guarded.connect() as connection:
        for headers, body in (
            ("Content-Length: 5", b"hello"),
            ("Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n"),
            ("X: y", b""),
            ("Expect: 100-continue\r\nContent-Length: 5", b"hello"),
        ):
            await connection.send(f"POST /sessions HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n".encode() + body)
            answer = await connection.response()
            assert (answer.status, answer.all("connection")) == (401, [])
        await connection.send(b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await connection.response(to="HEAD")).status == 401
        assert (await connection.response()).status == 200


async def test_who_leaves_instead_of_sending_the_body_is_let_go(guarded: Served) -> None:
    async with await guarded.connect() as connection:
        await connection.send(b"POST /sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhe")
    assert (await guarded.client.get("/health")).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        ["Authorization: Bearer"],
        ["Authorization: Bearer "],
        ["Authorization: " + KEY],
        ["Authorization: Basic " + KEY],
        ["Authorization: Bearer " + KEY + " x"],
        ["Authorization: Bearer " + KEY + ", Bearer x"],
        ["Authorization: Bearer \xe9"],
        ["X-Api-Key: "],
        ["X-Api-Key: Bearer " + KEY],
        ["X-Api_Key: " + KEY],
        ["Cookie: x-api-key=" + KEY],
        ["Proxy-Authorization: Bearer " + KEY],
        ["X-Trio-Sessions-Hop: s3cret"],
    ],
    ids=range(13),
)
async def test_what_is_nearly_a_key_is_none(guarded: Served, headers: list[str]) -> None:
    async with await guarded.connect() as connection:
        lines = "\r\n".join(("GET /metrics HTTP/1.1", "Host: x", *headers))
        await connection.send(lines.encode("latin-1") + b"\r\n\r\n")
        assert (await connection.response()).status == 401


async def test_one_of_two_headers_is_enough(guarded: Served) -> None:
    headers = [("authorization", "Bearer wrong"), ("authorization", f"bearer {KEY}")]
    assert (await guarded.client.get("/metrics", headers=headers)).status_code == 200


async def test_a_preflight_gets_no_permission(guarded: Served) -> None:
    session = await opened(guarded)
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    for headers in (asked, {**asked, **bearer(KEY)}):
        for path in ("/health", "/sessions", session.path, f"{session.path}/{CHAT}", "/metrics"):
            for method in ("OPTIONS", "GET"):
                answer = await guarded.client.request(method, path, headers=headers)
                assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_secrets_are_shown_nowhere(serve: Serve) -> None:
    with capture_logs() as logs:
        served = await serve(api_key=(KEY,))
        client = served.client
        made = (await client.post("/sessions", headers=bearer(KEY))).json()
        shown = []
        for credential in (KEY, made["token"], FOREIGN.text, "wrong"):
            for path in ("/health", "/openapi.json", "/metrics", "/sessions", f"/sessions/{made['session_id']}", "/no"):
                shown.append((await client.get(path, headers=bearer(credential))).text)
        await client.post(f"/sessions/{made['session_id']}/{CHAT}", headers=bearer(made["token"]), content=b"{")
    shown += [repr(served.gateway.settings), str(logs), repr(served.gateway.keys)]
    everything = "\n".join(shown)
    assert not any(secret in everything for secret in (KEY, made["token"], FOREIGN.text, "Bearer wrong"))
    assert "refused" in [line["event"] for line in logs]
