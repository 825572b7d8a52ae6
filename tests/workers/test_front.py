"""A request is answered the same by whichever worker it reaches."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial

import httpx
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.web.shapes import SHAPES, text_in
from tests.web.support import (
    CHAT,
    Session,
    assert_error,
    assistant,
    error_text,
    serving,
    settle,
    until,
    user,
)
from tests.workers.cluster import INSTANCE, SECRET, Cluster, cluster
from trio_sessions.core.samples import decode_samples
from trio_sessions.engine.base import EngineAnswer, EngineCall
from trio_sessions.engine.headers import to_engine
from trio_sessions.testing.engine import HeldCalls, ScriptedEngine, chat_answer
from trio_sessions.workers.trust import HOP_HEADER

UNTIMED = ("timestamp", "request_timestamp")
ODD_HEADERS = [(b"X-Note", b"caf\xe9"), (b"x-twice", b"1"), (b"x-twice", b"2"), (b"cookie", b"a=b")]


def untimed(state: bytes) -> dict:
    value = json.loads(state)
    for record in value["records"]:
        for name in UNTIMED:
            del record[name]
    value.pop("session_id")
    return value


async def drive(session: Session) -> None:
    """A turn, a stream with a query and odd headers, a retry of it, a refused one, something proxied."""
    first = await session.turn(user("Zürich?"), temperature=0.5)
    for _ in range(2):
        answer = await session.served.client.post(
            f"{session.path}/{CHAT}?a=%2F&b",
            json={"messages": [user("Zürich?"), first, user("b")], "stream": True},
            headers=ODD_HEADERS,
        )
        assert answer.text.endswith("data: [DONE]\n\n")
        assert answer.headers["cache-control"] == "no-cache"
    assert (await session.chat(user("x"), assistant("y"), user("z"), assistant("w"))).status_code == 400
    assert (await session.served.client.post(f"{session.path}/tokenize", json={"prompt": "ä"})).status_code == 200


async def test_a_session_driven_through_the_wrong_worker_is_the_same_session() -> None:
    async with cluster() as made:
        direct, _ = await made.session(0)
        await drive(direct)
        owned, through = await made.session(1)
        await drive(through)
        assert untimed(await through.state()) == untimed(await direct.state())
        assert await through.state() == await owned.state()
        # The engines saw the same requests, to the last header.
        first, second = (
            _seen(served.engine, session) for served, session in zip(made.served, (direct, owned), strict=True)
        )
        assert first == second
        assert len(first) == 4
        replies = [
            await session.served.client.post(f"{session.path}/samples", json={"max_seq_len": 1000})
            for session in (direct, owned, through)
        ]
        assert replies[1].content == replies[2].content
        samples = [decode_samples(reply.content).samples[0] for reply in replies]
        assert samples[0].tokens.tolist() == samples[2].tokens.tolist()
        assert replies[2].headers["content-type"] == "application/octet-stream"
        assert (await through.delete()).status_code == 204
        for session in (owned, through):
            assert_error(await session.delete(), 404, f"session not found: session_id={owned.id}")


def _seen(engine: ScriptedEngine, session: Session) -> list[tuple]:
    return [
        (call.method, call.path, call.query, call.body, to_engine(call.headers, session_id="any"))
        for call in engine.calls
        if call.session_id == session.id
    ]


async def test_an_answer_passes_through_as_it_is() -> None:
    headers = (
        ("content-type", "application/json"),
        ("X-Note", "café"),
        ("x-twice", "1"),
        ("x-twice", "2"),
        ("set-cookie", "a=b"),
        ("connection", "x-mine"),
        ("x-mine", "1"),
        ("date", "yesterday"),
        ("server", "engine"),
    )
    answer = EngineAnswer(418, headers, b'{"a":1}')
    async with cluster(engines=[ScriptedEngine(otherwise=answer), ScriptedEngine(otherwise=answer)]) as made:
        seen = []
        for session in await made.session(0):
            async with await session.served.connect() as connection:
                target = f"{session.path}/v1/models".encode()
                # Twice on one connection: it stays usable.
                for _ in range(2):
                    await connection.send(b"GET " + target + b" HTTP/1.1\r\nhost: h\r\n\r\n")
                    response = await connection.response()
                    seen.append((response.status, sorted(_undated(response.headers)), response.body))
                    assert [len(response.all(name)) for name in ("date", "server", "content-length")] == [1, 1, 1]
        assert seen[0][0] == 418
        assert (b"caf\xe9") in [value for _, value in seen[0][1]]
        assert all(each == seen[0] for each in seen)


def _undated(headers: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    return [(name.lower(), value) for name, value in headers if name.lower() != "date"]


TRICKS = [
    "/sessions/{id}",
    "//sessions/{id}",
    "/sessions%2F{id}",
    "/%73essions/{id}",
    "/sessions/{encoded}",
    "/sessions/{encoded}/v1/models",
    "/sessions/{id}/v1%2Fmodels",
    "/sessions/{id}/../{other}",
    "/sessions/{id}%2F..%2F{other}",
    "/sessions/{other}/../{id}/v1/models",
    "/sessions/{id}//v1/models",
    "/sessions/{id}%0a",
    "/sessions/{id}%00",
    "/sessions/{id}/",
    "/sessions/{upper}",
    "/sessions/{id}?x=/sessions/{other}",
    "http://elsewhere.invalid/sessions/{id}",
    "http://elsewhere.invalid:1/sessions/{id}/v1/models?x=%2f",
    "http:////sessions/{id}",
    "%2Fsessions/{id}",
    "%0a//elsewhere.invalid/sessions/{id}",
    "sessions/{id}",
    "http://user@elsewhere.invalid/sessions/{encoded}%3Fx",
    "/sessions/{id}/%E9",
    "/sessions/{id}@elsewhere.invalid/",
]


@pytest.mark.parametrize("trick", TRICKS)
async def test_however_a_target_is_written_its_worker_answers_it(trick: str) -> None:
    def everything() -> ScriptedEngine:
        return ScriptedEngine(otherwise=EngineAnswer(200, (("content-type", "text/plain"),), b"models"))

    async with cluster(engines=[everything(), everything()], open_proxy=True) as made:
        owned, through = await made.session(0)
        other, _ = await made.session(1)
        encoded = "".join(f"%{ord(character):02x}" for character in owned.id)
        target = trick.format(id=owned.id, other=other.id, encoded=encoded, upper=owned.id.upper())
        seen = []
        for session in (owned, through):
            # As it stands: httpx would tidy it up.
            answer = await session.served.client.get("/", extensions={"target": target.encode()})
            headers = {name: value for name, value in answer.headers.items() if name != "date"}
            seen.append((answer.status_code, headers, answer.content))
        assert seen[0] == seen[1]
        # Nothing that is written about one session reached the engine of another's worker.
        assert [call.session_id for call in made.served[1].engine.calls if call.session_id == owned.id] == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE"])
@pytest.mark.parametrize("path", ["", "/samples", f"/{CHAT}", "/v1/models"])
async def test_every_method_is_answered_as_by_the_owner(method: str, path: str) -> None:
    async with cluster() as made:
        seen = []
        for index in (0, 1):
            owned, through = await made.session(0)
            session = (owned, through)[index]
            answer = await session.served.client.request(method, f"{session.path}{path}")
            headers = {name: value for name, value in answer.headers.items() if name != "date"}
            seen.append((answer.status_code, headers, answer.text.replace(session.id, "ID")))
        assert seen[0] == seen[1]


async def test_new_sessions_are_spread_whoever_is_asked() -> None:
    async with cluster(3) as made:
        created = [(await made.served[0].client.post("/sessions")).json() for _ in range(9)]
        assert Counter(made.owner(answer["session_id"]) for answer in created) == {0: 3, 1: 3, 2: 3}
        assert [len(served.gateway.registry) for served in made.served] == [3, 3, 3]
        for answer in created:
            assert list(answer) == ["session_id", "base_url"]
            owner = made.served[made.owner(answer["session_id"])]
            assert answer["base_url"] == f"http://127.0.0.1:{owner.port}/sessions/{answer['session_id']}"
            state = await owner.client.get(answer["base_url"])
            assert state.json()["session_id"] == answer["session_id"]


@pytest.mark.parametrize(
    ("header", "host"), [("gateway.example:8700", "gateway.example"), ("[::1]", "[::1]"), ("a/b", "127.0.0.1")]
)
async def test_the_base_url_has_the_name_that_the_client_used(header: str, host: str) -> None:
    async with cluster() as made:
        for _ in range(2):
            created = (await made.served[0].client.post("/sessions", headers={"host": header})).json()
            port = made.served[made.owner(created["session_id"])].port
            assert created["base_url"] == f"http://{host}:{port}/sessions/{created['session_id']}"


async def test_a_client_without_a_host_header_gets_the_address_it_reached() -> None:
    async with cluster() as made:
        for _ in range(2):
            async with await made.served[0].connect() as connection:
                await connection.send(b"POST /sessions HTTP/1.0\r\n\r\n")
                created = json.loads((await connection.response()).body)
                assert created["base_url"].startswith("http://127.0.0.1:")


async def test_one_worker_alone_answers_as_ever() -> None:
    async with serving() as served:
        answer = await served.client.post("/sessions")
        assert answer.text == f'{{"session_id":"{answer.json()["session_id"]}"}}'


async def test_a_worker_that_takes_no_sessions_is_passed_over() -> None:
    async with cluster() as made:
        await made.served[1].gateway.registry.drain(grace=0)
        created = [(await made.served[0].client.post("/sessions")).json()["session_id"] for _ in range(4)]
        assert {made.owner(session_id) for session_id in created} == {0}
        await made.served[0].gateway.registry.drain(grace=0)
        refused = await made.served[0].client.post("/sessions")
        assert "shutting down" in error_text(refused, 503)
        assert refused.headers["retry-after"] == "1"
        assert refused.content == (await made.served[1].client.post("/sessions")).content


async def test_a_worker_that_is_down_gets_no_sessions_and_its_own_are_a_503() -> None:
    async with cluster() as made:
        _, through = await made.session(1)
        made.tell(1, up=False)
        created = [(await made.served[0].client.post("/sessions")).json()["session_id"] for _ in range(4)]
        assert {made.owner(session_id) for session_id in created} == {0}
        for answer in (await through.chat(user("a")), await through.served.client.get(through.path)):
            assert "worker 1, which has this session, is down" in error_text(answer, 503)
            assert answer.headers["retry-after"] == "1"
        made.tell(1, up=True)
        await through.turn(user("a"))


async def test_a_worker_that_is_asked_is_up_whatever_the_table_says_yet() -> None:
    async with cluster() as made:
        made.tell(0, up=False)
        created = [(await made.served[0].client.post("/sessions")).json()["session_id"] for _ in range(4)]
        assert Counter(map(made.owner, created)) == {0: 2, 1: 2}
        assert (await made.served[0].client.get("/health")).json()["status"] == "ok"


async def test_a_worker_that_nobody_answers_at_is_a_503_and_gets_no_sessions() -> None:
    async with cluster(urls=["http://127.0.0.1:9", "http://127.0.0.1:9"]) as made:
        _, through = await made.session(1)
        assert "worker 1" in error_text(await through.chat(user("a")), 503)
        created = [(await made.served[0].client.post("/sessions")).json()["session_id"] for _ in range(2)]
        assert {made.owner(session_id) for session_id in created} == {0}


async def test_a_turn_at_a_worker_that_goes_down_is_a_503_at_once() -> None:
    held = HeldCalls()
    async with cluster(engines=[ScriptedEngine(), ScriptedEngine(otherwise=held)]) as made:
        owned, through = await made.session(1)
        answers = []
        async with trio.open_nursery() as nursery:

            async def turn() -> None:
                answers.append(await through.chat(user("a")))

            nursery.start_soon(turn)
            await until(lambda: bool(held.waiting))
            made.tell(1, up=False)
        assert "is down" in error_text(answers[0], 503)
        # A dead worker would not do it; this one lives, and sees its client go.
        await until(lambda: not held.waiting)
        assert await owned.records() == []


async def test_a_client_that_goes_cancels_its_turn_at_the_other_worker(caplog: pytest.LogCaptureFixture) -> None:
    held = HeldCalls()
    async with cluster(engines=[ScriptedEngine(), ScriptedEngine(otherwise=held)]) as made:
        owned, through = await made.session(1)
        async with through.served.raw_client() as client, trio.open_nursery() as nursery:

            async def turn() -> None:
                await client.post(f"{through.path}/{CHAT}", json={"messages": [user("a")]})

            nursery.start_soon(turn)
            await until(lambda: bool(held.waiting))
            nursery.cancel_scope.cancel()
        await until(lambda: not held.waiting)
        await made.passing[0].settle()
        await settle()
        assert made.served[1].engine.cancelled == 1
        assert await owned.records() == []
    # Nothing was said to nobody.
    assert caplog.records == []


async def test_what_is_passed_on_is_waited_for() -> None:
    held = HeldCalls()
    async with cluster(engines=[ScriptedEngine(), ScriptedEngine(otherwise=held)]) as made:
        _, through = await made.session(1)
        order = []
        async with trio.open_nursery() as nursery:

            async def turn() -> None:
                assert (await through.chat(user("a"))).status_code == 200

            async def wait() -> None:
                await made.passing[0].settle()
                order.append("settled")

            await made.passing[0].settle()
            nursery.start_soon(turn)
            await until(lambda: bool(held.waiting))
            nursery.start_soon(wait)
            await settle()
            order.append("answered")
            held.waiting[0].answer(chat_answer())
        assert order == ["answered", "settled"]


async def test_an_answer_that_breaks_off_breaks_off(caplog: pytest.LogCaptureFixture) -> None:
    """Another worker that dies in the middle of its answer."""

    async def half(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, half, 0, host="127.0.0.1"))
        dying = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        async with cluster(urls=["http://127.0.0.1:9", dying]) as made:
            _, through = await made.session(1)
            with pytest.raises(httpx.RemoteProtocolError):
                await through.served.client.get(through.path)
            # The worker itself goes on.
            assert (await made.served[0].client.get("/health")).status_code == 200
        nursery.cancel_scope.cancel()
    assert caplog.records == []


async def test_what_describes_one_connection_stays_on_it() -> None:
    heads: list[bytes] = []

    async def answer(stream: trio.SocketStream) -> None:
        heads.append(await stream.receive_some())
        # Said to be encoded, which is for the client to undo.
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc")

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        other = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        async with cluster(urls=["http://127.0.0.1:9", other]) as made:
            _, through = await made.session(1)
            headers = [
                "host: h:1",
                "connection: close, x-mine",
                "x-mine: 1",
                "expect: 100-continue",
                "keep-alive: 5",
                "te: trailers",
                "X-Kept: 2",
            ]
            async with await through.served.connect() as connection:
                await connection.send(f"GET {through.path}?a HTTP/1.1\r\n".encode() + _lines(headers))
                response = await connection.response()
        assert (response.status, response.body, response.all("content-encoding")) == (200, b"abc", [b"gzip"])
        nursery.cancel_scope.cancel()
    mark = f"{HOP_HEADER.decode()}: {SECRET}".encode()
    assert heads == [
        b"\r\n".join((f"GET {through.path}?a HTTP/1.1".encode(), b"host: h", b"x-kept: 2", mark, b"", b""))
    ]


def _lines(headers: list[str]) -> bytes:
    return "".join(f"{line}\r\n" for line in (*headers, "")).encode()


async def test_a_request_is_passed_on_once() -> None:
    async with cluster() as made:
        _, through = await made.session(1)
        # What a worker would send that takes another for the owner.
        answer = await through.chat(user("a"), headers={HOP_HEADER.decode(): SECRET})
        assert error_text(answer, 421) == "worker 0 does not have this session"
        assert await through.records() == []


@pytest.mark.parametrize(("path", "shape"), SHAPES.items())
async def test_who_is_refused_by_a_worker_reads_it_in_the_words_of_its_api(path: str, shape: str) -> None:
    async with cluster() as made:
        _, through = await made.session(1)
        client, target = made.served[0].client, f"{through.path}/{path}"
        answer = await client.post(target, json={}, headers={HOP_HEADER.decode(): SECRET})
        assert answer.status_code == 421
        assert text_in(answer.json(), shape) == "worker 0 does not have this session"
        made.tell(1, up=False)
        answer = await client.post(target, json={})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "worker 1" in text_in(answer.json(), shape)


async def test_only_workers_can_say_that_a_request_was_passed_on() -> None:
    async with cluster() as made:
        owned, through = await made.session(1)
        name = HOP_HEADER.decode()
        for value in ("", "1", SECRET.upper(), f"{SECRET} "):
            answer = await through.chat(user(value), headers={name: value} if value.strip() != SECRET else None)
            assert answer.status_code == 200
            await owned.delete()
            owned, through = await made.session(1)
        created = [
            (await made.served[0].client.post("/sessions", headers={name: "1"})).json()["session_id"] for _ in range(4)
        ]
        assert Counter(map(made.owner, created)) == {0: 2, 1: 2}


async def test_the_mark_of_a_request_that_was_passed_on_stays_among_workers() -> None:
    async def echo(call: EngineCall) -> EngineAnswer:
        body = json.dumps([name for name, _ in call.headers]).encode()
        return EngineAnswer(200, (("content-type", "application/json"),), body)

    async with cluster(engines=[ScriptedEngine(), ScriptedEngine(otherwise=echo)]) as made:
        _, through = await made.session(1)
        answer = await through.served.client.get(f"{through.path}/v1/models")
        assert HOP_HEADER.decode() not in answer.json()
        assert HOP_HEADER.decode() not in answer.headers
        assert "user-agent" in answer.json()


async def test_health_is_that_of_all() -> None:
    async with cluster() as made:
        await made.session(0)
        made.tell(1, sessions=3, restarts=2)
        healthy = {
            "status": "ok",
            "session_server_instance_id": INSTANCE,
            "workers": [
                {"index": 0, "up": True, "restarts": 0, "sessions": 1},
                {"index": 1, "up": True, "restarts": 2, "sessions": 3},
            ],
        }
        answer = await made.served[0].client.get("/health")
        assert answer.json() == healthy
        assert list(answer.json()) == list(healthy)
        made.tell(1, up=False, sessions=0)
        answer = await made.served[0].client.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
        assert answer.json()["workers"][1] == {"index": 1, "up": False, "restarts": 2, "sessions": 0}
        async with await made.served[0].connect() as connection:
            await connection.send(b"HEAD /health HTTP/1.1\r\nhost: h\r\n\r\n")
            assert (await connection.response(to="HEAD")).status == 200
            # The connection is usable: no body came.
            await connection.send(b"GET /health HTTP/1.1\r\nhost: h\r\n\r\n")
            assert json.loads((await connection.response()).body)["status"] == "degraded"
        assert (await made.served[0].client.post("/health")).status_code == 405


def _metrics(text: str) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels["worker"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(("trio_sessions_sessions_open", "trio_sessions_worker"))
    }


async def _page(made: Cluster, index: int) -> dict[tuple[str, str], float]:
    answer = await made.served[index].client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return _metrics(answer.text)


async def test_metrics_are_those_of_all_from_whichever_is_asked() -> None:
    async with cluster() as made:
        await made.session(0)
        for _ in range(2):
            await made.session(1)
        made.tell(1, restarts=4)
        expected = {
            ("trio_sessions_sessions_open", "0"): 1,
            ("trio_sessions_sessions_open", "1"): 2,
            ("trio_sessions_worker_up", "0"): 1,
            ("trio_sessions_worker_up", "1"): 1,
            ("trio_sessions_worker_restarts_total", "0"): 0,
            ("trio_sessions_worker_restarts_total", "1"): 4,
        }
        assert await _page(made, 0) == expected
        assert await _page(made, 1) == expected
        made.tell(1, up=False)
        without = {**expected, ("trio_sessions_worker_up", "1"): 0}
        del without["trio_sessions_sessions_open", "1"]
        assert await _page(made, 0) == without


@pytest.mark.parametrize("path", ["/health", "/metrics"])
async def test_the_head_of_what_is_said_of_all_is_that_of_get(path: str) -> None:
    # The memory and the processor time of the process are other numbers each time, of other lengths.
    varies = {"date", "content-length"} if path == "/metrics" else {"date"}
    async with cluster() as made:
        heads = []
        for method in ("GET", "HEAD"):
            answer = await made.served[0].client.request(method, path)
            assert int(answer.headers["content-length"]) > 0
            same = [header for header in answer.headers.items() if header[0] not in varies]
            heads.append((answer.status_code, same))
        assert heads[0] == heads[1]


async def test_limits_on_bodies_hold_where_they_arrive() -> None:
    async with cluster(max_body_mb=0.001) as made:
        owned, through = await made.session(1)
        large = b"x" * 2000
        assert (await through.post(large)).content == (await owned.post(large)).content
        assert (await through.post(large)).status_code == 413


async def test_a_chunked_body_arrives_whole() -> None:
    async with cluster() as made:
        _, through = await made.session(1)
        body = json.dumps({"messages": [user("a")]}).encode()
        async with await through.served.connect() as connection:
            await connection.send(
                f"POST {through.path}/{CHAT} HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n"
                "expect: 100-continue\r\n\r\n".encode(),
            )
            assert b"100" in await connection.interim()
            await connection.send(f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")
            assert (await connection.response()).status == 200
        assert len(await through.records()) == 1


async def test_what_a_worker_has_no_room_for_is_said_by_the_one_that_asked_it() -> None:
    calls = HeldCalls()
    engines = [ScriptedEngine(), ScriptedEngine(otherwise=calls)]
    async with cluster(engines=engines, max_turns=1, turn_queue=0) as made:
        owned, through = await made.session(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(owned.chat, user("hi")))
            await until(lambda: bool(calls.waiting))
            response = await through.chat(user("hi"))
            assert error_text(response, 429).startswith("1 turns run and 0 wait")
            assert int(response.headers["retry-after"]) >= 1
            # The limit is that of a worker, and this one has turns of its own.
            assert (await (await made.session(0))[0].chat(user("hi"))).status_code == 200
            calls.waiting[0].answer(chat_answer())
        families = text_string_to_metric_families((await made.served[0].client.get("/metrics")).text)
        [refused] = [family for family in families if family.name == "trio_sessions_refused"]
        counted = {
            sample.labels["worker"]: sample.value for sample in refused.samples if sample.labels["limit"] == "turns"
        }
        assert counted == {"0": 0, "1": 1}
