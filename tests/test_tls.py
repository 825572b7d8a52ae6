"""https, over real ports, with certificates of a minute ago."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.testing

from tests.certificates import self_signed
from tests.web.support import CHAT, LIMIT_SECONDS, tasks, until, user
from trio_sessions import serve as serving
from trio_sessions.client import NO_RETRIES, AsyncClient, GatewayUnreachable
from trio_sessions.config import Settings
from trio_sessions.errors import ConfigurationError
from trio_sessions.hosting import server_tls
from trio_sessions.render.base import Renderer
from trio_sessions.serve import Running
from trio_sessions.testing.engine import ScriptedEngine
from trio_sessions.testing.toy import ToyRenderer

KEY = "a-key-of-24-characters-x"


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate and its key."""
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
async def start(monkeypatch: pytest.MonkeyPatch, pair: tuple[Path, Path]) -> AsyncIterator[Any]:
    """Starts ``serve`` with that certificate; what it loads and asks is a toy."""

    async def toy(_: Settings) -> Renderer:
        return ToyRenderer()

    monkeypatch.setattr(serving, "load_renderer_of", toy)
    monkeypatch.setattr(serving, "engine_at", lambda *_: _Engine())
    with trio.fail_after(LIMIT_SECONDS):
        async with trio.open_nursery() as nursery:

            async def begin(**settings: Any) -> Running:
                made = Settings(port=0, engine="http://127.0.0.1:1", tls_cert=pair[0], tls_key=pair[1], **settings)
                running: Running = await nursery.start(serving.serve, made)
                return running

            yield begin
            nursery.cancel_scope.cancel()


class _Engine(ScriptedEngine):
    async def __aenter__(self) -> _Engine:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


@asynccontextmanager
async def trusting(running: Running, certificate: Path, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client that believes the certificate."""
    context = ssl.create_default_context(cafile=certificate)
    if "show" in options:
        context.load_cert_chain(*options.pop("show"))
    async with httpx.AsyncClient(base_url=running.base_url, verify=context, trust_env=False, **options) as client:
        yield client


async def test_a_turn_a_stream_and_a_large_body(start: Any, pair: tuple[Path, Path]) -> None:
    running = await start(api_key=(KEY,))
    assert running.base_url.startswith("https://127.0.0.1:")
    async with trusting(running, pair[0]) as client:
        assert (await client.post("/sessions")).status_code == 401
        made = (await client.post("/sessions", headers={"x-api-key": KEY})).json()
        headers = {"authorization": f"Bearer {made['token']}"}
        path = f"/sessions/{made['session_id']}"
        answer = await client.post(f"{path}/{CHAT}", json={"messages": [user("hi")]}, headers=headers)
        assert answer.status_code == 200
        message = answer.json()["choices"][0]["message"]
        long = [user("hi"), message, user("x" * 300_000)]
        for stream in (True, False):
            body = {"messages": long, "stream": stream}
            answer = await client.post(f"{path}/{CHAT}", json=body, headers=headers)
            assert answer.status_code == 200
            assert answer.text.endswith("data: [DONE]\n\n") is stream
        records = await client.get(path, headers={"x-api-key": KEY})
        assert len(records.json()["records"]) == 2
        assert len(records.content) > 300_000


async def test_nothing_but_http1_is_agreed_on(start: Any, pair: tuple[Path, Path]) -> None:
    running = await start()
    port = httpx.URL(running.base_url).port
    assert port is not None
    context = ssl.create_default_context(cafile=pair[0])
    for offered, agreed in ((["h2", "http/1.1"], "http/1.1"), (["h2"], None)):
        context.set_alpn_protocols(offered)
        async with await trio.open_ssl_over_tcp_stream(
            "127.0.0.1", port, ssl_context=context, https_compatible=True
        ) as stream:
            await stream.do_handshake()
            assert stream.selected_alpn_protocol() == agreed


async def test_a_client_that_speaks_no_tls_is_dropped(start: Any, pair: tuple[Path, Path]) -> None:
    running = await start()
    port = httpx.URL(running.base_url).port
    assert port is not None
    # What runs beside the server is not all there yet when it says that it serves.
    await trio.testing.wait_all_tasks_blocked()
    before = tasks()
    for said in (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\x00" * 300, b""):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            if not said:
                continue
            await stream.send_all(said)
            received = b""
            try:
                while chunk := await stream.receive_some():
                    received += chunk
            except trio.BrokenResourceError:
                pass
            assert b"HTTP" not in received
    async with trusting(running, pair[0]) as client:
        assert (await client.get("/health")).status_code == 200
    await until(lambda: tasks() <= before)


async def test_a_client_that_does_not_believe_it(start: Any) -> None:
    running = await start()
    async with AsyncClient(running.base_url, retry=NO_RETRIES) as client:
        with pytest.raises(GatewayUnreachable, match="ConnectError"):
            await client.health()


async def test_our_client_believes_what_the_system_does(
    start: Any, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(pair[0]))
    running = await start(api_key=(KEY,))
    async with AsyncClient(running.base_url, api_key=KEY) as client, client.session() as session:
        assert (await session.chat([user("hi")])).message["content"] == "ok"
        assert session.base_url.startswith("https://")


async def test_clients_that_need_a_certificate(start: Any, pair: tuple[Path, Path], tmp_path: Path) -> None:
    theirs = self_signed(tmp_path, name="client")
    strangers = self_signed(tmp_path, name="stranger")
    running = await start(tls_ca=theirs[0])
    async with trusting(running, pair[0], show=theirs) as client:
        assert (await client.get("/health")).status_code == 200
    for options in ({}, {"show": strangers}):
        async with trusting(running, pair[0], **options) as client:
            with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
                await client.get("/health")


async def test_stopping_ends_idle_connections(start: Any, pair: tuple[Path, Path]) -> None:
    """Which the fixture waits for: a connection that hung would run into its limit."""
    running = await start()
    async with trusting(running, pair[0]) as client:
        assert (await client.get("/health")).status_code == 200


def encrypted(key: Path, folder: Path) -> Path:
    """The same key under a password."""
    out = folder / "encrypted.pem"
    subprocess.run(
        ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out", out],
        check=True,
        capture_output=True,
    )
    return out


@pytest.mark.parametrize(
    "case", ["no certificate", "no key", "no ca", "folder", "swapped", "text", "other key", "encrypted", "ca is text"]
)
def test_files_that_cannot_be_used_are_named(pair: tuple[Path, Path], tmp_path: Path, case: str) -> None:
    certificate, key = pair
    text = tmp_path / "text.pem"
    text.write_text("hello")
    absent = tmp_path / "absent.pem"
    ca: Path | None = None
    match case:
        case "no certificate":
            certificate, named = absent, "--tls-cert: cannot read"
        case "no key":
            key, named = absent, "--tls-key: cannot read"
        case "no ca":
            ca, named = absent, "--tls-ca: cannot read"
        case "folder":
            certificate, named = tmp_path, "--tls-cert: cannot read"
        case "swapped":
            certificate, key, named = key, certificate, "--tls-cert"
        case "text":
            certificate, named = text, "--tls-cert"
        case "other key":
            key, named = self_signed(tmp_path)[1], "--tls-key"
        case "encrypted":
            key, named = encrypted(key, tmp_path), "--tls-key"
        case _:
            ca, named = text, "--tls-ca"
    with pytest.raises(ConfigurationError) as refused:
        server_tls(certificate, key, client_ca=ca)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"tls_cert": Path("c")}, "--tls-cert and --tls-key"),
        ({"tls_key": Path("k")}, "--tls-cert and --tls-key"),
        ({"tls_ca": Path("a")}, "--tls-ca"),
        ({"tls_cert": Path("c"), "tls_key": Path("k"), "workers": 2}, "--workers is 2"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings(**settings)
    assert named in str(refused.value)
