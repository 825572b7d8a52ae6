"""``/openapi.json`` is valid, describes the routes that there are, and says of their answers what is true."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.web.support import CHAT, Serve, Served, Session, user
from trio_sessions.config import Settings
from trio_sessions.service.gateway import Gateway
from trio_sessions.service.proxy import ALLOWED_PATHS
from trio_sessions.testing.engine import ScriptedEngine, chat_answer
from trio_sessions.testing.store import RecordingStore
from trio_sessions.testing.toy import ToyRenderer
from trio_sessions.web.app import create_app
from trio_sessions.web.dialects.routes import COUNTS, DIALECTS
from trio_sessions.web.errors import STATUS
from trio_sessions.web.openapi import openapi_document

DOCUMENT: dict[str, Any] = json.loads(openapi_document())
ENGINE_PATHS = {*ALLOWED_PATHS, "v1/models/{model}"}
# What routes have without being asked, and what is nothing that a client would look for.
UNSAID = {"HEAD", "OPTIONS"}


def test_it_is_valid() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()


async def test_it_is_served(served: Served) -> None:
    answer = await served.client.get("/openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.content == openapi_document()


def served_paths() -> Iterator[tuple[str, set[str]]]:
    """Every path that is served, as the document spells it, and its methods."""
    app = create_app(Gateway(Settings(), engine=ScriptedEngine(), renderer=ToyRenderer()))
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<(?:path:)?(\w+)>", r"{\1}", rule.rule)
        methods = set(rule.methods or ()) - UNSAID
        if path.endswith("/{path}"):
            base = path.removesuffix("{path}")
            yield from ((f"{base}{below}", methods) for below in ENGINE_PATHS)
            # What is in front of the application takes these away from it.
            yield from ((f"{base}{below}", {"POST"}) for below in (*DIALECTS, *COUNTS))
        else:
            yield path, methods


def test_it_has_every_route_and_no_other() -> None:
    served: dict[str, set[str]] = {}
    for path, methods in served_paths():
        served.setdefault(path, set()).update(methods)
    described = {path: {method.upper() for method in operations} for path, operations in DOCUMENT["paths"].items()}
    assert described.keys() == served.keys()
    for path, methods in described.items():
        # Of what is passed on one method stands for all; what the engine makes of another is its own business.
        passed_on = path.rpartition("/sessions/{session_id}/")[2].removeprefix("agents/{agent}/") in ENGINE_PATHS
        assert methods <= served[path] if passed_on else methods == served[path], path


def test_names_are_unique_and_parameters_are_those_of_the_path() -> None:
    operations = [(path, operation) for path, all_ in DOCUMENT["paths"].items() for operation in all_.values()]
    names = [operation["operationId"] for _, operation in operations]
    assert len(set(names)) == len(names)
    for path, operation in operations:
        in_path = [parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "path"]
        assert in_path == re.findall(r"\{(\w+)\}", path)


def test_every_status_of_the_table_is_described_where_it_can_come() -> None:
    """499 is nobody's to read, and a 409 that would come again is a 400 in the other dialects."""
    chat = DOCUMENT["paths"][f"/sessions/{{session_id}}/{CHAT}"]["post"]["responses"]
    samples = DOCUMENT["paths"]["/sessions/{session_id}/samples"]["post"]["responses"]
    assert {str(status) for status in STATUS.values()} - {"499"} <= chat.keys() | samples.keys()


def test_what_is_told_to_be_needed_is_defined() -> None:
    names = set(re.findall(r'"#/components/schemas/(\w+)"', openapi_document().decode()))
    assert names == DOCUMENT["components"]["schemas"].keys()


def resolved(response: dict[str, Any]) -> dict[str, Any]:
    """A response, which may be one of those that many operations have."""
    name = response.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = DOCUMENT["components"]["responses"][name] if name else response
    return found


def check(path: str, method: str, answer: Any) -> None:
    """An answer is one that the document has."""
    responses = DOCUMENT["paths"][path][method]["responses"]
    described = resolved(responses[str(answer.status_code)])
    kind = answer.headers["content-type"].partition(";")[0]
    assert kind in described["content"]
    schema = described["content"][kind].get("schema")
    if kind == "application/json":
        Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(answer.json())


BODIES = {
    CHAT: {"messages": [user("hi")]},
    "v1/messages": {"messages": [user("hi")], "max_tokens": 5},
    "v1/v1/messages": {"messages": [user("hi")], "max_tokens": 5},
    "v1/responses": {"input": "hi"},
    "v1/messages/count_tokens": {"messages": [user("hi")]},
}


@pytest.mark.parametrize("mode", ["linear", "tree"])
@pytest.mark.parametrize("path", BODIES)
async def test_answers_of_turns_are_as_described(serve: Serve, mode: str, path: str) -> None:
    script = [
        chat_answer("ok", message={"role": "assistant", "content": "ok", "reasoning_content": "hm", "tool_calls": []}),
        chat_answer("é", finish_reason="length"),
        OSError("unexpected"),
    ]
    session = await (await serve(ScriptedEngine(*script), mode=mode)).session()
    target = f"/sessions/{{session_id}}/{path}"
    for body, status in (
        (BODIES[path], 200),
        (BODIES[path], 200),
        ({**BODIES[path], "stream": True}, 200 if path.endswith("count_tokens") else 500),
        ({**BODIES[path], "stream": True}, 200),
        ({}, 400),
        ([], 400),
    ):
        answer = await session.served.client.post(f"{session.path}/{path}", json=body)
        assert answer.status_code == status, answer.text
        check(target, "post", answer)
    answer = await session.served.client.post(f"/sessions/nope/{path}", json=BODIES[path])
    check(target, "post", answer)
    check("/sessions/{session_id}", "get", await session.served.client.get(session.path))


def test_keys_are_missed_where_they_are_asked_for() -> None:
    for path, operations in DOCUMENT["paths"].items():
        for operation in operations.values():
            wanted = set() if operation.get("security") == [] else {"401", "403"}
            assert operation["responses"].keys() & {"401", "403"} == wanted, path


async def test_a_session_that_is_damaged_is_as_described(serve: Serve) -> None:
    store = RecordingStore()
    session = await (await serve(store=store)).session()
    await session.turn(user("hi"))
    store.payloads[session.id] *= 2
    served = await serve(store=store)
    served.gateway.registry.take_found()
    for method, below, body in (
        ("get", "", None),
        ("post", "/samples", {}),
        ("post", "/tokenize", {}),
        ("get", "/v1/models", None),
        ("post", f"/{CHAT}", BODIES[CHAT]),
    ):
        answer = await served.client.request(method.upper(), f"{session.path}{below}", json=body)
        assert answer.status_code == 500
        check(f"/sessions/{{session_id}}{below}", method, answer)
    assert (await served.client.delete(session.path)).status_code == 204


async def test_answers_of_the_control_plane_are_as_described(session: Session) -> None:
    client = session.served.client
    await session.turn(user("hi"))
    for path in ("/health", "/metrics", "/openapi.json"):
        check(path, "get", await client.get(path))
    check("/sessions", "post", await client.post("/sessions"))
    samples = f"{session.path}/samples"
    for body in ({}, {"max_seq_len": 0}, {"rewards": {"nobody": 1}}):
        check("/sessions/{session_id}/samples", "post", await client.post(samples, json=body))
    check("/sessions/{session_id}", "get", await client.get("/sessions/nope"))
    check("/sessions/{session_id}", "delete", await client.delete("/sessions/nope"))
