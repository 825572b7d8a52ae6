"""What clients make of keys and tokens."""

from __future__ import annotations

import pickle

import pytest

from tests.client.drivers import Driver
from tests.client.scripted import Reply, Scripted
from trio_sessions.client import (
    AsyncClient,
    AuthenticationFailed,
    Client,
    PermissionRefused,
    RequestRefused,
    SessionNotFound,
)
from trio_sessions.errors import ConfigurationError

KEY = "a-key-of-24-characters-x"
HEALTHY = Reply.json({"status": "ok", "session_server_instance_id": "i"})


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIO_SESSIONS_API_KEY", raising=False)


def sent(driver: Driver, server: Scripted, url: str, **options: object) -> str | None:
    async def scenario(client):
        await client.health()

    server.otherwise = lambda _: HEALTHY
    driver.run(url, scenario, **options)
    return server.received[-1].headers.get("authorization")


def test_the_key_is_sent_as_a_bearer(driver: Driver, server: Scripted, url: str, monkeypatch) -> None:
    assert sent(driver, server, url) is None
    assert sent(driver, server, url, api_key=KEY) == f"Bearer {KEY}"
    monkeypatch.setenv("TRIO_SESSIONS_API_KEY", "first-of-some  second")
    assert sent(driver, server, url) == "Bearer first-of-some"
    assert sent(driver, server, url, api_key=KEY) == f"Bearer {KEY}"
    # What the caller says of the header itself goes first.
    assert sent(driver, server, url, api_key=KEY, headers={"Authorization": "Basic eA=="}) == "Basic eA=="
    monkeypatch.setenv("TRIO_SESSIONS_API_KEY", " ")
    assert sent(driver, server, url) is None


@pytest.mark.parametrize("key", ["", "a b", "a\n", "\u00e9"])
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_what_no_header_carries_is_refused(kind: type, key: str) -> None:
    with pytest.raises(ConfigurationError, match="API key"):
        kind(api_key=key)


def test_a_session_has_its_token(driver: Driver, server: Scripted, url: str) -> None:
    server.script = [
        Reply.json({"session_id": "s", "token": "ts-x"}),
        Reply.json({"session_id": "s"}),
        Reply.json({"session_id": "s", "token": 1}),
    ]

    async def scenario(client):
        with_token, without = await client.create_session(), await client.create_session()
        assert "ts-x" not in repr(with_token)
        assert client.attach("s").token is None
        with pytest.raises(Exception, match="token"):
            await client.create_session()
        return with_token.token, without.token

    assert driver.run(url, scenario) == ("ts-x", None)


@pytest.mark.parametrize(
    ("status", "kind"), [(401, AuthenticationFailed), (403, PermissionRefused), (404, SessionNotFound)]
)
def test_a_refusal_has_a_type(driver: Driver, server: Scripted, url: str, status: int, kind: type) -> None:
    text = "session not found: session_id=s"
    server.otherwise = lambda _: Reply.error(status, text)

    async def scenario(client):
        for call in (client.attach("s").read, client.attach("s").delete, client.attach("s").samples):
            with pytest.raises(kind, match=text) as refused:
                await call()
            assert refused.value.status == status
            assert type(pickle.loads(pickle.dumps(refused.value))) is kind

    driver.run(url, scenario)
    # Nothing is tried again.
    assert len(server.received) == 3
    assert issubclass(AuthenticationFailed, RequestRefused)


def test_the_openai_shape_is_read_too(driver: Driver, server: Scripted, url: str) -> None:
    server.script = [Reply.json({"error": {"message": "no valid API key", "code": "invalid_api_key"}}, 401)]

    async def scenario(client):
        with pytest.raises(AuthenticationFailed, match="no valid API key"):
            await client.attach("s").chat([{"role": "user", "content": "a"}])

    driver.run(url, scenario)
