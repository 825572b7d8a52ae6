"""The routes and errors of the contract (docs/wire.md), over HTTP."""

from __future__ import annotations

import json
import re

import pytest

from tests.web.support import (
    CHAT,
    Serve,
    Served,
    Session,
    assert_error,
    assistant,
    compact,
    error_text,
    gather,
    until,
    user,
)
from trio_sessions.testing.engine import HeldCalls, ScriptedEngine, chat_answer

UNKNOWN = "0" * 32
HEX = re.compile(r"[0-9a-f]{32}")


async def test_health_has_a_status_and_an_instance_id_that_is_stable(served: Served) -> None:
    answers = [await served.client.get("/health") for _ in range(2)]
    assert answers[0].status_code == 200
    assert answers[0].headers["content-type"] == "application/json"
    instance_id = answers[0].json()["session_server_instance_id"]
    assert HEX.fullmatch(instance_id)
    expected = b'{"status":"ok","session_server_instance_id":"' + instance_id.encode() + b'"}'
    assert [answer.content for answer in answers] == [expected, expected]


async def test_two_processes_have_two_instance_ids(serve: Serve) -> None:
    ids = {(await (await serve()).client.get("/health")).json()["session_server_instance_id"] for _ in range(2)}
    assert len(ids) == 2


async def test_the_instance_id_can_be_given(serve: Serve) -> None:
    served = await serve(instance_id="ab" * 16)
    assert (await served.client.get("/health")).json()["session_server_instance_id"] == "ab" * 16


async def test_creating_a_session_answers_its_id(served: Served) -> None:
    answers = [await served.client.post("/sessions") for _ in range(2)]
    ids = [answer.json()["session_id"] for answer in answers]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert all(HEX.fullmatch(id_) for id_ in ids)
    assert ids[0] != ids[1]
    assert answers[0].content == b'{"session_id":"' + ids[0].encode() + b'"}'
    assert answers[0].headers["content-type"] == "application/json"


@pytest.mark.parametrize("body", [b"", b"{}", b'{"x":1}', b"not json"])
async def test_creating_a_session_takes_any_body(served: Served, body: bytes) -> None:
    assert (await served.client.post("/sessions", content=body)).status_code == 200


async def test_an_empty_session_has_no_records_and_no_mismatch(session: Session) -> None:
    response = await session.served.client.get(session.path)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.content == (
        b'{"session_id":"' + session.id.encode() + b'","records":[],'
        b'"metadata":{"accumulated_token_ids":[],"max_trim_tokens":0}}'
    )


async def test_delete_is_204_with_an_empty_body(session: Session) -> None:
    response = await session.delete()
    assert (response.status_code, response.content) == (204, b"")
    assert "content-type" not in response.headers
    assert "transfer-encoding" not in response.headers


async def test_a_second_delete_is_404(session: Session) -> None:
    assert (await session.delete()).status_code == 204
    assert_error(await session.delete(), 404, f"session not found: session_id={session.id}")


async def test_of_concurrent_deletes_one_is_204_and_the_others_404(session: Session) -> None:
    answers = await gather(*[session.delete] * 8)
    assert sorted(answer.status_code for answer in answers) == [204] + [404] * 7
    for answer in answers:
        if answer.status_code == 404:
            assert_error(answer, 404, f"session not found: session_id={session.id}")


UNKNOWN_SESSION_REQUESTS = [
    ("GET", ""),
    ("DELETE", ""),
    ("POST", f"/{CHAT}"),
    ("POST", "/samples"),
    ("GET", "/v1/models"),
    ("POST", "/tokenize"),
    ("PUT", "/flush_cache"),
    ("PATCH", "/flush_cache"),
    ("DELETE", "/flush_cache"),
]


@pytest.mark.parametrize(("method", "below"), UNKNOWN_SESSION_REQUESTS)
async def test_an_unknown_session_is_404_on_every_route(served: Served, method: str, below: str) -> None:
    response = await served.client.request(method, f"/sessions/{UNKNOWN}{below}", content=b"{")
    assert_error(response, 404, f"session not found: session_id={UNKNOWN}")
    assert served.engine.calls == []


@pytest.mark.parametrize(("method", "below"), UNKNOWN_SESSION_REQUESTS)
async def test_a_deleted_session_is_404_on_every_route(session: Session, method: str, below: str) -> None:
    await session.turn(user("hi"))
    await session.delete()
    response = await session.served.client.request(method, f"{session.path}{below}", content=b"{}")
    assert_error(response, 404, f"session not found: session_id={session.id}")
    assert len(session.served.engine.calls) == 1


@pytest.mark.parametrize("id_", ["nonsense", "a" * 2000, "é", "%00", "a b"])
async def test_the_404_names_the_id_that_was_asked_for(served: Served, id_: str) -> None:
    shown = {"%00": "\0"}.get(id_, id_)
    response = await served.client.get(f"/sessions/{id_}")
    assert response.status_code == 404
    assert response.json() == {"error": f"session not found: session_id={shown}"}
    assert "é".encode() in response.content if id_ == "é" else b"\\u00e9" not in response.content


async def test_deleting_one_session_leaves_the_others(served: Served) -> None:
    kept, dropped = await served.session(), await served.session()
    await kept.turn(user("hi"))
    async with kept.unchanged():
        await dropped.delete()


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/"), ("GET", "/nope"), ("POST", "/v1/completions"), ("POST", "/flush_cache"), ("GET", "/session")],
)
async def test_a_path_outside_the_contract_is_a_json_404(served: Served, method: str, path: str) -> None:
    assert_error(await served.client.request(method, path), 404, f"not found: {method} {path}")
    assert served.engine.calls == []


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/health", {"GET", "HEAD", "OPTIONS"}),
        ("DELETE", "/sessions", {"GET", "HEAD", "POST", "OPTIONS"}),
        ("POST", f"/sessions/{UNKNOWN}", {"GET", "HEAD", "DELETE", "OPTIONS"}),
    ],
)
async def test_a_wrong_method_is_a_json_405_with_the_right_ones(
    served: Served, method: str, path: str, allowed: set[str]
) -> None:
    response = await served.client.request(method, path, content=b"{}")
    assert_error(response, 405, f"method not allowed: {method} {path}")
    assert set(re.split(r",\s*", response.headers["allow"])) == allowed


async def test_a_trailing_slash_makes_no_redirect(served: Served) -> None:
    assert (await served.client.post("/sessions/")).status_code == 404
    assert (await served.client.get("/health/")).status_code == 404


async def test_sessions_are_apart(served: Served) -> None:
    one, other = await served.session(), await served.session()
    await one.turn(user("one"))
    async with one.unchanged():
        await other.turn(user("other"))
    assert (await one.records())[0]["request"]["messages"] == [user("one")]
    assert (await other.records())[0]["request"]["messages"] == [user("other")]


async def test_turns_of_different_sessions_run_in_parallel(serve: Serve) -> None:
    held = HeldCalls()
    served = await serve(ScriptedEngine(otherwise=held))
    sessions = [await served.session() for _ in range(4)]

    async def answer_in_reverse_once_all_are_there() -> None:
        await until(lambda: len(held.waiting) == 4)
        for call in reversed(held.waiting):
            call.answer(chat_answer(f"for {call.request.session_id}"))

    messages = await gather(
        *[lambda session=session: session.turn(user("hi")) for session in sessions],
        answer_in_reverse_once_all_are_there,
    )
    assert messages[:4] == [assistant(f"for {session.id}") for session in sessions]


async def test_errors_keep_non_ascii_text_as_it_is(session: Session) -> None:
    response = await session.post('{"messages":["é天"]}'.encode())
    assert error_text(response, 400) == "messages[0] must be an object, got a string"
    response = await session.served.client.get("/天")
    assert response.content == '{"error":"not found: GET /天"}'.encode()


async def test_metrics_are_text_for_prometheus(session: Session) -> None:
    await session.turn(user("hi"))
    response = await session.served.client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'trio_sessions_turns_total{outcome="committed"} 1.0' in response.text
    assert session.id not in response.text


async def test_a_session_is_rendered_compactly_with_non_ascii_text(session: Session) -> None:
    await session.chat(user("é 天"), note="ü")
    state = await session.state()
    assert "é 天".encode() in state
    assert state == compact(json.loads(state))
