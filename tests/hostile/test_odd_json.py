"""Whatever stands in a body, in whatever place: it is served or refused in the API's words, and stays apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile.budget import effort
from tests.hostile.documents import DOCUMENTS
from tests.hostile.stand import Stand, standing
from tests.web.shapes import shape_of, text_in
from trio_sessions.render.load import load_renderer
from trio_sessions.testing.strategies import odd_json

# What the scripted engine, the template and the retries of the attacker itself can lead to.
REFUSALS = {400, 404, 409, 422}


@pytest.fixture(scope="module", params=["linear", "tree"])
def stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    with standing(load_renderer("builtin"), mode=request.param, stream_grace=0.0) as made:
        yield made


def strict(raw: bytes) -> Any:
    """The JSON in ``raw``, which every reader has to read."""

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(constant)

    decoded = json.loads(raw.decode(), parse_constant=refuse)
    # Which it is not where a text is half a character.
    json.dumps(decoded, ensure_ascii=False).encode()
    return decoded


def examine(stand: Stand, path: str, body: bytes) -> None:
    stand.renew()
    answer = stand.post(f"/sessions/{stand.session_id}/{path}", body)
    kind = answer.headers["content-type"].partition(";")[0]
    if answer.status_code != 200:
        assert answer.status_code in REFUSALS, answer.text
        if kind == "text/plain":
            assert (path, answer.status_code) == ("samples", 422)
        else:
            assert text_in(strict(answer.content), shape_of(f"/{path}"))
    elif kind == "application/json":
        strict(answer.content)
    elif kind == "text/event-stream":
        for line in answer.content.splitlines():
            if line.startswith(b"data: {"):
                assert b"internal_error" not in line
                strict(line.removeprefix(b"data: "))
    for request in stand.engine.requests:
        strict(request.body)
    strict(stand.state())


@pytest.mark.parametrize("path", DOCUMENTS)
def test_odd_json(stand: Stand, path: str) -> None:
    @effort(15)
    @given(body=odd_json(DOCUMENTS[path]))
    def bodies(body: bytes) -> None:
        examine(stand, path, body)

    bodies()


@effort(20)
@given(path=st.sampled_from(sorted(DOCUMENTS)), body=st.binary(max_size=40))
def test_no_json(stand: Stand, path: str, body: bytes) -> None:
    examine(stand, path, body)
