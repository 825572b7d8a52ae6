"""Keys and tokens where any worker may get the request."""

from __future__ import annotations

import json

import pytest

from tests.web.support import CHAT, Session, user
from tests.workers.cluster import SECRET, Cluster, cluster
from trio_sessions.service.keys import draw_token
from trio_sessions.testing.engine import ScriptedEngine
from trio_sessions.workers.trust import HOP_HEADER

KEY = "a-key-of-24-characters-x"
TOKEN, FOREIGN = draw_token(), draw_token()


def bearer(credential: str) -> dict[str, str]:
    return {"authorization": f"Bearer {credential}"}


async def opened(made: Cluster, owner: int) -> tuple[Session, Session]:
    """A session with ``TOKEN``, as seen by its worker and by another; and one with ``FOREIGN`` beside it."""
    await made.served[owner].gateway.registry.create(token_digest=FOREIGN.digest)
    id_ = (await made.served[owner].gateway.registry.create(token_digest=TOKEN.digest)).id
    return Session(made.served[owner], id_), Session(made.served[owner - 1], id_)


async def test_sessions_are_made_and_used_through_any_worker() -> None:
    async with cluster(3, api_key=(KEY,)) as made:
        for number in range(6):
            served = made.served[number % 3]
            created = (await served.client.post("/sessions", headers=bearer(KEY))).json()
            assert list(created) == ["session_id", "token", "base_url"]
            for other in made.served:
                path, headers = f"/sessions/{created['session_id']}", bearer(created["token"])
                body = {"messages": [user("hi")]}
                assert (await other.client.post(f"{path}/{CHAT}", json=body, headers=headers)).status_code == 200
                for method, target in (("GET", path), ("POST", f"{path}/samples"), ("DELETE", path)):
                    answer = await other.client.request(method, target, headers=headers, json={})
                    assert answer.status_code == 403
                assert (await other.client.get(path, headers=bearer(KEY))).status_code == 200


@pytest.mark.parametrize("path", ["/metrics", "/sessions", "{session}", "{session}/samples", "/nope"])
async def test_every_worker_guards_what_it_answers_for_all(path: str) -> None:
    async with cluster(api_key=(KEY,)) as made:
        for session in await opened(made, 0):
            target = path.format(session=session.path)
            for method in ("GET", "POST", "HEAD", "DELETE", "OPTIONS"):
                for headers, status in (
                    ({}, 401),
                    (bearer("wrong"), 401),
                    ({HOP_HEADER.decode(): "wrong"}, 401),
                    (bearer(TOKEN.text), 403),
                    ({**bearer(TOKEN.text), HOP_HEADER.decode(): SECRET}, 403),
                ):
                    answer = await session.served.client.request(method, target, headers=headers)
                    assert answer.status_code == status, (method, target, headers)
            assert (await session.served.client.get("/health")).status_code == 200
        assert (await made.served[0].client.get("/metrics", headers=bearer(KEY))).status_code == 200


async def test_the_worker_that_has_the_session_judges_its_token() -> None:
    async with cluster(api_key=(KEY,)) as made:
        answers = []
        for session in await opened(made, 1):
            assert (await session.chat(user("hi"), headers=bearer(TOKEN.text))).status_code == 200
            assert (await session.chat(user("hi"))).status_code == 401
            for target in (session.path, f"/sessions/{int(session.id, 16) ^ 2:032x}"):
                refused = await session.served.client.post(
                    f"{target}/{CHAT}", json={"messages": [user("hi")]}, headers=bearer(FOREIGN.text)
                )
                answers.append((refused.status_code, refused.content))
        assert {status for status, _ in answers} == {403}
        assert len(set(answers)) == 1


@pytest.mark.parametrize("credential", [KEY, TOKEN.text], ids=["key", "token"])
async def test_no_credential_of_ours_reaches_an_engine_by_any_way(credential: str) -> None:
    engines = [ScriptedEngine(), ScriptedEngine()]
    async with cluster(api_key=(KEY,), engines=engines) as made:
        for session in await opened(made, 1):
            for headers in (
                bearer(credential),
                {"x-api-key": credential, **bearer(credential)},
                {"x-api-key": credential, **bearer("of-the-engine")},
            ):
                assert (await session.chat(user("hi"), headers=headers)).status_code == 200
        seen = [dict(call.headers) for call in engines[1].calls]
        assert [headers.get("authorization") for headers in seen] == [None, None, "Bearer of-the-engine"] * 2
        assert not any({"x-api-key", HOP_HEADER.decode()} & headers.keys() for headers in seen)


async def test_the_list_is_of_all_workers() -> None:
    async with cluster(3, api_key=(KEY,)) as made:
        ids = sorted([(await made.session(owner))[0].id for owner in (0, 0, 1, 2, 2)])
        for served in made.served:
            whole = (await served.client.get("/sessions", headers=bearer(KEY))).json()
            assert [each["session_id"] for each in whole["sessions"]] == ids
            assert whole["next"] is None
            first = (await served.client.get("/sessions?limit=3", headers=bearer(KEY))).json()
            rest = await served.client.get(f"/sessions?limit=3&after={first['next']}", headers=bearer(KEY))
            assert [each["session_id"] for each in (*first["sessions"], *rest.json()["sessions"])] == ids
            wrong = await served.client.get("/sessions?limit=x", headers=bearer(KEY))
            assert (wrong.status_code, list(wrong.json())) == (400, ["error"])
        made.tell(1, up=False)
        missing = await made.served[0].client.get("/sessions", headers=bearer(KEY))
        assert missing.status_code == 503
        assert "worker 1" in missing.json()["error"]


async def test_the_list_without_keys_too() -> None:
    async with cluster() as made:
        session, _ = await made.session(1)
        listed = json.loads((await made.served[0].client.get("/sessions")).content)
        assert [each["session_id"] for each in listed["sessions"]] == [session.id]


@pytest.mark.parametrize("framing", [f"Content-Length: {64 * 2**20}", "Transfer-Encoding: chunked"])
async def test_a_token_that_opens_nothing_brings_no_worker_to_read_a_large_body(framing: str) -> None:
    async with cluster(api_key=(KEY,)) as made:
        for session, tokens in zip(await opened(made, 1), ([FOREIGN], [FOREIGN, draw_token()]), strict=True):
            for token in tokens if "Length" in framing else tokens[1:]:
                async with await session.served.connect() as connection:
                    head = f"POST {session.path}/{CHAT} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {token.text}\r\n{framing}\r\n"
                    await connection.send(f"{head}\r\n".encode())
                    answer = await connection.response()
                    assert (answer.status, answer.all("connection")) == (403, [b"close"])
            # Its own is asked for too.
            large = [user("x" * 100_000)]
            assert (await session.chat(*large, headers=bearer(TOKEN.text))).status_code == 200


async def test_a_large_body_for_a_worker_that_is_down_is_a_503() -> None:
    async with cluster(api_key=(KEY,)) as made:
        _, through = await opened(made, 1)
        made.tell(1, up=False)
        answer = await through.chat(user("x" * 100_000), headers=bearer(TOKEN.text))
        assert answer.status_code == 503
