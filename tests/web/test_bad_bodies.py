"""Bad bodies are 400 with a sentence that says what is wrong, and change nothing."""

from __future__ import annotations

import pytest

from tests.web.support import Session, error_text, user

NO_MESSAGES = "messages must be a list with at least one message"

WRONG = [
    (b"", NO_MESSAGES),
    (b"{}", NO_MESSAGES),
    (b'{"messages":null}', NO_MESSAGES),
    (b'{"messages":[]}', NO_MESSAGES),
    (b"[]", "the request body must be a JSON object, got a list"),
    (b'[{"role":"user"}]', "the request body must be a JSON object, got a list"),
    (b"null", "the request body must be a JSON object, got null"),
    (b'"x"', "the request body must be a JSON object, got a string"),
    (b"1", "the request body must be a JSON object, got a number"),
    (b"true", "the request body must be a JSON object, got a boolean"),
    (b'{"messages":{}}', "messages must be a list, got an object"),
    (b'{"messages":"hi"}', "messages must be a list, got a string"),
    (b'{"messages":7}', "messages must be a list, got a number"),
    (b'{"messages":["hi"]}', "messages[0] must be an object, got a string"),
    (b'{"messages":[{"role":"user","content":"a"},null]}', "messages[1] must be an object, got null"),
    (b'{"messages":[[]]}', "messages[0] must be an object, got a list"),
    (b'{"messages":[{}]}', "messages[0] has no role"),
    (b'{"messages":[{"content":"a"}]}', "messages[0] has no role"),
    (b'{"messages":[{"role":null}]}', "messages[0].role must be a string, got null"),
    (b'{"messages":[{"role":1}]}', "messages[0].role must be a string, got a number"),
    (b'{"messages":[{"role":"user"}],"tools":{}}', "tools must be a list, got an object"),
]

MALFORMED = [
    b" ",
    b"{",
    b"not json",
    b'{"messages":[}',
    b'{"a":NaN}',
    b'{"a":Infinity}',
    b"{'a':1}",
    b'{"a":1,}',
    b'{"messages":[{"role":"user","content":"\xff"}]}',
    b'{"messages":[{"role":"user","content":"\\ud800"}]}',
    b'{"a":1}{"a":1}',
    b'{"a":"\n"}',
    b"\xef\xbb\xbf{}",
]


@pytest.mark.parametrize(("body", "text"), WRONG)
async def test_a_body_of_the_wrong_shape(session: Session, body: bytes, text: str) -> None:
    await session.turn(user("hi"))
    async with session.unchanged():
        assert error_text(await session.post(body), 400) == text
    assert len(session.served.engine.calls) == 1


@pytest.mark.parametrize("body", MALFORMED)
async def test_malformed_json(session: Session, body: bytes) -> None:
    async with session.unchanged():
        text = error_text(await session.post(body), 400)
    assert text.startswith("invalid JSON body:")
    assert len(text) > len("invalid JSON body: ")
    assert session.served.engine.calls == []


@pytest.mark.parametrize(
    "value",
    [b"[" * 200 + b"]" * 200, b'{"a":' * 200 + b"1" + b"}" * 200, b"[" * 100_000 + b"]" * 100_000],
    ids=["lists", "objects", "abyss"],
)
@pytest.mark.parametrize("place", [b'{"messages":[{"role":"user","content":%s}]}', b'{"messages":[],"x":%s}', b"%s"])
async def test_nesting_past_the_limit(session: Session, value: bytes, place: bytes) -> None:
    async with session.unchanged():
        assert "nested" in error_text(await session.post(place % value), 400)
    await session.turn(user("hi"))


async def test_nesting_within_the_limit(session: Session) -> None:
    value = b"[" * 100 + b"]" * 100
    body = b'{"messages":[{"role":"user","content":"hi"}],"x":' + value + b"}"
    assert (await session.post(body)).status_code == 200
    assert value in session.served.engine.calls[0].body


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
async def test_the_content_type_of_the_request_does_not_matter(session: Session, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    assert (await session.post(b'{"messages":[{"role":"user","content":"hi"}]}', headers=headers)).status_code == 200


@pytest.mark.parametrize("content", [None, 1, ["a"], [{"type": "text", "text": "é"}], {"x": []}, "", "\0"])
async def test_content_of_any_shape_is_the_templates_business(session: Session, content: object) -> None:
    response = await session.chat({"role": "user", "content": content})
    assert response.status_code == 200
    assert session.served.engine.body()["messages"] == [{"role": "user", "content": content}]


def with_number(number: str) -> bytes:
    return b'{"messages":[{"role":"user","content":"hi"}],"x":' + number.encode() + b"}"


async def test_a_whole_number_of_any_size_reaches_the_engine_as_it_is(session: Session) -> None:
    number = "123456789012345678901234567890"
    assert (await session.post(with_number(number))).status_code == 200
    assert f'"x":{number}'.encode() in session.served.engine.calls[0].body


async def test_a_number_beyond_a_float_is_malformed(session: Session) -> None:
    async with session.unchanged():
        assert error_text(await session.post(with_number("1e999")), 400).startswith("invalid JSON body:")


async def test_keys_twice_are_taken_as_json_does(session: Session) -> None:
    body = b'{"logprobs":false,"logprobs":false,"messages":[],"messages":[{"role":"user","content":"hi"}]}'
    assert (await session.post(body)).status_code == 200
    assert session.served.engine.calls[0].body.count(b'"logprobs"') == 1
    assert session.served.engine.body()["logprobs"] is True
