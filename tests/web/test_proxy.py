"""The catch-all below a session: an allow-list of engine paths, forwarded unchanged, nothing recorded."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.web.shapes import shape_of, text_in
from tests.web.support import CHAT, LIMIT_SECONDS, Serve, Served, Session, assert_error, error_text, user
from tests.web.wire_engine import WireEngine, response
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.engine.sglang import SGLangEngine
from trio_sessions.errors import EngineUnreachable
from trio_sessions.testing.engine import ScriptedEngine

ALLOWED = [
    "detokenize",
    "get_model_info",
    "health",
    "model_info",
    "tokenize",
    "v1/completions",
    "v1/detokenize",
    "v1/embeddings",
    "v1/models",
    "v1/models/default",
    "v1/models/org/name-1.5",
    "v1/models/caf%C3%A9",
    "v1/tokenize",
    "version",
]
CONTROL_PLANE = [
    "abort_request",
    "flush_cache",
    "generate",
    "get_server_info",
    "init_weights_update_group",
    "pause_generation",
    "release_memory_occupation",
    "update_weights",
    "update_weights_from_disk",
    "v1/chat/completions/",
    "v1/load_lora_adapter",
    "v1/responses/resp_1",
    "V1/MODELS",
    "v1/modelsx",
    "v1",
    "v1/",
]
METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH"]
PLAIN = EngineAnswer(200, (("content-type", "application/json"),), b'{"data":[]}')


async def proxying(serve: Serve, *answers: Any, **settings: Any) -> Session:
    return await (await serve(ScriptedEngine(*answers, otherwise=PLAIN), **settings)).session()


@pytest.mark.parametrize("path", ALLOWED)
async def test_an_allowed_path_reaches_the_engine_and_nothing_is_recorded(serve: Serve, path: str) -> None:
    session = await proxying(serve)
    async with session.unchanged():
        answer = await session.served.client.get(f"{session.path}/{path}")
    assert (answer.status_code, answer.content) == (200, PLAIN.body)
    (call,) = session.served.engine.calls
    assert (call.method, call.path, call.query, call.body, call.session_id) == ("GET", path, "", b"", session.id)


@pytest.mark.parametrize("method", METHODS)
async def test_every_method_is_forwarded_with_query_and_body(serve: Serve, method: str) -> None:
    session = await proxying(serve)
    body = '{"prompt": "é",  "n":1}'.encode() + b"\xff\x00"
    await session.served.client.request(method, f"{session.path}/tokenize?a=1&a=2&b=%2F%20x+y", content=body)
    (call,) = session.served.engine.calls
    assert (call.method, call.path, call.query, call.body) == (method, "tokenize", "a=1&a=2&b=%2F%20x+y", body)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", CONTROL_PLANE)
async def test_the_control_plane_is_404(serve: Serve, method: str, path: str) -> None:
    session = await proxying(serve)
    async with session.unchanged():
        answer = await session.served.client.request(method, f"{session.path}/{path}", content=b"{}")
    assert_error(answer, 404, f"not found: {method} {path} is not proxied to the engine (see --open-proxy)")
    assert session.served.engine.calls == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
async def test_only_a_post_is_a_turn(serve: Serve, method: str) -> None:
    session = await proxying(serve)
    answer = await session.served.client.request(method, f"{session.path}/{CHAT}", content=b"{}")
    assert answer.status_code == 404
    assert session.served.engine.calls == []


@pytest.mark.parametrize("path", [path for path in CONTROL_PLANE if path != "v1/chat/completions/"])
async def test_an_open_proxy_forwards_every_path(serve: Serve, path: str) -> None:
    session = await proxying(serve, open_proxy=True)
    async with session.unchanged():
        answer = await session.served.client.post(f"{session.path}/{path}?x=1", content=b"{}")
    assert (answer.status_code, answer.content) == (200, PLAIN.body)
    (call,) = session.served.engine.calls
    assert (call.method, call.path, call.query) == ("POST", path, "x=1")


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        (EngineAnswer(200, (("content-type", "application/json"),), b'{ "a": "\\u00e9" }'), '{"a":"é"}'.encode()),
        (EngineAnswer(404, (("content-type", "application/json"),), b'{"detail":  "no"}'), b'{"detail":"no"}'),
        (EngineAnswer(500, (("content-type", "text/plain"),), b"  plain\n"), b"  plain\n"),
        (EngineAnswer(204, (), b""), b""),
        (EngineAnswer(301, (("location", "http://elsewhere/"),), b""), b""),
    ],
)
async def test_what_the_engine_answers_goes_through(serve: Serve, answer: EngineAnswer, content: bytes) -> None:
    session = await proxying(serve, answer)
    got = await session.served.client.get(f"{session.path}/v1/models")
    assert (got.status_code, got.content) == (answer.status, content)
    for name, value in answer.headers:
        assert got.headers.get_list(name) == [value]


async def test_an_unreachable_engine_is_502(serve: Serve) -> None:
    text = "backend transport error: ConnectError: All connection attempts failed"
    session = await proxying(serve, EngineUnreachable("ConnectError", "All connection attempts failed"))
    assert_error(await session.served.client.get(f"{session.path}/v1/models"), 502, text)


async def test_a_chat_like_answer_of_another_route_is_left_alone(serve: Serve) -> None:
    body = b'{"choices":[{"meta_info":{"routed_experts":"AA"}}]}'
    session = await proxying(serve, EngineAnswer(200, PLAIN.headers, body))
    assert (await session.served.client.post(f"{session.path}/v1/completions", content=b"{}")).content == body


# Targets below a session, as they stand on the request line; ``{id}`` is the session's.
TRICKS = [
    "/sessions/{id}/../flush_cache",
    "/sessions/{id}/../../flush_cache",
    "/sessions/{id}/v1/models/../../flush_cache",
    "/sessions/{id}/v1/models/..;/flush_cache",
    "/sessions/{id}/v1/models/..;x=y/..;/flush_cache",
    "/sessions/{id}/v1/models/%2e%2e%3b/flush_cache",
    "/sessions/{id}/v1/models/.;/x",
    "/sessions/{id}/v1/models/%252e%252e/%252E%252E/flush_cache",
    "/sessions/{id}/v1/models/..",
    "/sessions/{id}/v1/models/.",
    "/sessions/{id}/v1/./models",
    "/sessions/{id}/./v1/models",
    "/sessions/{id}/%2e%2e/flush_cache",
    "/sessions/{id}/v1/models/%2e%2e/%2e%2e/flush_cache",
    "/sessions/{id}/v1/models/%2E%2E%2f%2E%2E%2fflush_cache",
    "/sessions/{id}/v1/models/..%2f..%2fflush_cache",
    "/sessions/{id}/v1/models/.%2e/.%2e/flush_cache",
    "/sessions/{id}/v1%2Fmodels",
    "/sessions/{id}/%2fflush_cache",
    "/sessions/{id}//flush_cache",
    "/sessions/{id}//v1/models",
    "/sessions/{id}/v1//models",
    "/sessions/{id}/v1/models//x",
    "/sessions//{id}/v1/models",
    "//sessions/{id}/v1/models",
    "///sessions/{id}/v1/models",
    "//elsewhere/sessions/{id}/v1/models",
    "/sessions/{id}/v1\\models",
    "/sessions/{id}/v1/models/..\\..\\flush_cache",
    "/sessions/{id}/v1/models/..%5c..%5cflush_cache",
    "/sessions/{id}/v1/models%00",
    "/sessions/{id}/http://elsewhere/v1/models",
    "/sessions/{id}/http:%2f%2felsewhere/v1/models",
    "/sessions/{id}/@elsewhere/v1/models",
    "/sessions/{id}/flush_cache#/v1/models",
    "/sessions/{id}/v1/models/x#/flush_cache",
    "/sessions/{id}/v1/models/x%23",
    "/sessions/{id}/v1/models%3Fx",
    "/sessions/{id}/v1/models/x%3F/../../../flush_cache",
    "/sessions/{id}/flush_cache;/v1/models",
    "/sessions%2F{id}/v1/models",
    "/sessions%2F{id}/x",
    "/sessions%2F{id}/flush_cache/v1/models",
    "/sessions/{id}%2Fv1/models",
    "/sessions/{id}%2Fflush_cache/v1/models",
    "/%73essions/{id}/flush_cache",
    "http://elsewhere/sessions/{id}/flush_cache",
    "http://elsewhere/sessions/{id}/v1/models/../../flush_cache",
    "http://elsewhere/sessions/{id}/v1/models",
    "http://elsewhere/v1/models",
    "http:/sessions/{id}/v1/models",
    "*",
]
OPEN_TRICKS = [trick for trick in TRICKS if re.search(r"//|/\.|\\|%2e|%2f|%5c|%25|\*", trick, re.IGNORECASE)]


async def refused_without_a_call(served: Served, session: Session, target: str, method: str) -> None:
    """The target is answered with a client's error, the engine hears nothing, and the gateway goes on."""
    line = f"{method} {target.format(id=session.id)} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}"
    async with session.unchanged(), await served.connect() as connection:
        await connection.send(line.encode("latin-1"))
        answer = await connection.response()
    assert 400 <= answer.status < 500, answer
    assert served.engine.calls == []


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("target", TRICKS)
async def test_path_tricks_never_reach_the_engine(serve: Serve, target: str, method: str) -> None:
    session = await proxying(serve)
    await refused_without_a_call(session.served, session, target, method)


@pytest.mark.parametrize("target", OPEN_TRICKS)
async def test_an_open_proxy_does_not_forward_ambiguous_paths(serve: Serve, target: str) -> None:
    session = await proxying(serve, open_proxy=True)
    await refused_without_a_call(session.served, session, target, "POST")


async def test_the_proxy_of_one_session_is_not_another_sessions(serve: Serve) -> None:
    session = await proxying(serve)
    other = await session.served.session()
    await session.served.client.get(f"{session.path}/v1/models")
    await session.served.client.get(f"{other.path}/v1/models")
    assert [call.session_id for call in session.served.engine.calls] == [session.id, other.id]


class TestOverHTTP:
    """The same with the engine behind a real port."""

    @pytest.mark.parametrize("method", METHODS)
    async def test_the_request_line_and_the_body_are_unchanged(
        self, over_http: Served, wire: WireEngine, method: str
    ) -> None:
        session = await over_http.session()
        await over_http.client.request(method, f"{session.path}/v1/models/a%20b?q=%C3%A9&r=[1]&r=a,b", content=b"x\xff")
        (request,) = wire.requests
        assert (request.method, request.target) == (method, "/v1/models/a%20b?q=%C3%A9&r=[1]&r=a,b")
        assert request.body == b"x\xff"

    @pytest.mark.parametrize(
        "query", ["a=1;b=2", "a='x'", "a=!*()", "q=a|b", "q={}", "q=%7B%7d", "a=&&=", "q=~^`", 'q="x"']
    )
    async def test_the_query_is_unchanged(self, over_http: Served, wire: WireEngine, query: str) -> None:
        session = await over_http.session()
        async with await over_http.connect() as connection:
            await connection.send(f"GET {session.path}/v1/models?{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert (await connection.response()).status == 200
        assert wire.requests[0].target == f"/v1/models?{query}"

    @pytest.mark.parametrize("target", TRICKS)
    async def test_path_tricks_never_reach_it(self, over_http: Served, wire: WireEngine, target: str) -> None:
        session = await over_http.session()
        line = f"GET {target.format(id=session.id)} HTTP/1.1\r\nHost: x\r\n\r\n"
        async with await over_http.connect() as connection:
            await connection.send(line.encode("latin-1"))
            assert 400 <= (await connection.response()).status < 500
        assert wire.requests == []

    async def test_an_engine_below_a_path(self, serve: Serve, wire: WireEngine) -> None:
        async with SGLangEngine(f"{wire.url}/engines/0/", timeout=LIMIT_SECONDS) as engine:
            session = await (await serve(engine)).session()
            await session.turn(user("hi"))
            await session.served.client.get(f"{session.path}/v1/models?x=1")
        assert [request.target for request in wire.requests] == [
            "/engines/0/v1/chat/completions",
            "/engines/0/v1/models?x=1",
        ]

    async def test_a_redirect_is_not_followed(self, over_http: Served, wire: WireEngine) -> None:
        wire.script.append(response(307, b"", headers=[("location", f"{wire.url}/flush_cache")]))
        session = await over_http.session()
        answer = await over_http.client.get(f"{session.path}/v1/models")
        assert (answer.status_code, answer.headers["location"]) == (307, f"{wire.url}/flush_cache")
        assert len(wire.requests) == 1

    async def test_an_engine_that_is_not_there_is_502(self, serve: Serve) -> None:
        # Port 1 is privileged and unassigned: nothing listens there.
        async with SGLangEngine("http://127.0.0.1:1", timeout=LIMIT_SECONDS) as engine:
            session = await (await serve(engine)).session()
            text = error_text(await session.served.client.get(f"{session.path}/v1/models"), 502)
        assert text.startswith("backend transport error: ConnectError: ")


@pytest.mark.parametrize(
    ("method", "path", "turn"),
    [
        ("POST", "chat/completions", "v1/chat/completions"),
        ("POST", "responses", "v1/responses"),
        ("POST", "v1/v1/responses", "v1/responses"),
        ("POST", "v1/messages/v1/messages", "v1/messages"),
        ("GET", "v1/responses", None),
    ],
)
async def test_who_misses_a_turns_path_is_told_where_it_is(
    serve: Serve, method: str, path: str, turn: str | None
) -> None:
    session = await proxying(serve)
    answer = await session.served.client.request(method, f"{session.path}/{path}", json={})
    clients = "OpenAI's clients need a base URL that ends in /v1, Anthropic's one without"
    advice = f"turns are POST, not {method}" if turn is None else f"turns go to {turn}, so {clients}"
    assert answer.status_code == 404
    text = text_in(answer.json(), shape_of(f"/{path}"))
    assert text == f"not found: {method} {path} is no turn: {advice}"
    assert session.served.engine.calls == []


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/session/x/v1/responses"])
async def test_who_has_no_session_is_told_how_to_make_one(serve: Serve, path: str) -> None:
    served = await serve()
    answer = await served.client.post(path, json={})
    hint = "turns go to /sessions/{id}/v1/..., and POST /sessions makes a session"
    assert answer.status_code == 404
    assert text_in(answer.json(), shape_of(path)) == f"not found: POST {path}; {hint}"
    assert served.engine.calls == []
