"""The document says what is served: requests made from it, and such as it forbids, are answered as it says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import requests
import schemathesis
import trio
from hypothesis import given
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.engine.embedded_fixtures import engine
from tests.hostile.background import Background, background
from tests.hostile.budget import effort
from tests.web.support import Served, serving, user
from trio_sessions.engine.embedded import serve_engine
from trio_sessions.engine.sglang import SGLangEngine
from trio_sessions.render.load import load_renderer
from trio_sessions.web.openapi import openapi_document

CHECKS = [
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
]
# The scripted prompt can always be tokenized, and this engine can always be reached.
NEVER = {500, 502, 503}


def described() -> dict[str, Any]:
    """The document, with nothing left to the engine where its answers are those of turns: this one's are all known."""
    document: dict[str, Any] = json.loads(openapi_document())
    for path in document["paths"].values():
        for operation in path.values():
            if operation["tags"] == ["turns"]:
                operation["responses"].pop("default", None)
    return document


OPERATIONS = [operation.ok() for operation in schemathesis.openapi.from_dict(described()).get_all_operations()]


def cases() -> st.SearchStrategy[Case]:
    """Requests that the document describes, and, where there is something to be wrong, such as it forbids."""
    forbidden = [operation for operation in OPERATIONS if operation.path_parameters or operation.body]
    return st.one_of(
        st.sampled_from(operations).flatmap(lambda operation, mode=mode: operation.as_strategy(mode))
        for operations, mode in ((OPERATIONS, GenerationMode.POSITIVE), (forbidden, GenerationMode.NEGATIVE))
    )


@asynccontextmanager
async def gateway(mode: str) -> AsyncIterator[Served]:
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve_engine, engine())
        async with (
            SGLangEngine(url, timeout=20) as client,
            serving(client, renderer=load_renderer("builtin"), mode=mode, stream_grace=0.0) as served,
        ):
            yield served
        nursery.cancel_scope.cancel()


@pytest.fixture(scope="module", params=["linear", "tree"])
def served(request: pytest.FixtureRequest) -> Iterator[Background[Served]]:
    with background(lambda: gateway(request.param)) as made:
        yield made


@pytest.fixture(scope="module")
def http() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        yield session


@effort(50)
@given(case=cases(), known=st.integers(0, 7))
def test_answers_are_as_described(served: Background[Served], http: requests.Session, case: Case, known: int) -> None:
    base = f"http://127.0.0.1:{served.value.port}"
    if known and "session_id" in (case.path_parameters or {}):
        case.path_parameters["session_id"] = served.run(session_with_a_turn, served.value)
    response = case.call(base_url=base, session=http, timeout=20)
    assert response.status_code not in NEVER, response.text
    case.validate_response(response, checks=CHECKS)


def test_every_operation_can_be_asked_for() -> None:
    """Which it could not be if there were no value that its parameters and its body allow."""
    assert len(OPERATIONS) == sum(len(path) for path in described()["paths"].values())


async def session_with_a_turn(served: Served) -> str:
    session = await served.session()
    await session.turn(user("hello"), max_tokens=3)
    return session.id
