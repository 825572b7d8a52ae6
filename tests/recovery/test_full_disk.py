"""A disk that is full under a server: turns are refused, nothing else happens, and it goes on when there is room."""

from __future__ import annotations

import json
import resource
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.processes import Running, command
from tests.recovery.test_kills import engine, server  # noqa: F401 - a fixture

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sets a limit of another process")
SAYS = "the journal cannot be written"


class Client:
    """Takes turns in one session."""

    def __init__(self, url: str, session_id: str, messages: list[Any] | None = None) -> None:
        self.http = httpx.Client(base_url=url, timeout=30)
        self.path = f"/sessions/{session_id}"
        self.messages = messages or [{"role": "user", "content": "Hello"}]

    def close(self) -> None:
        self.http.close()

    def ask(self, **fields: Any) -> httpx.Response:
        body = {"messages": self.messages, "max_tokens": 16, **fields}
        return self.http.post(f"{self.path}/v1/chat/completions", json=body)

    def turn(self) -> None:
        answer = self.ask()
        assert answer.status_code == 200, answer.text
        self.messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "More, please."}]

    def read(self) -> tuple[bytes, bytes]:
        state, samples = self.http.get(self.path), self.http.post(f"{self.path}/samples")
        assert (state.status_code, samples.status_code) == (200, 200)
        return state.content, samples.content


def limit_files(gateway: Running, size: int) -> None:
    """No file of that process gets longer: as on a disk that is full."""
    resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_full_disk_refuses_turns_and_loses_nothing(engine: str, tmp_path: Path) -> None:  # noqa: F811
    journal = tmp_path / "journal"
    log = tmp_path / "journal-wal"
    with command(*server(engine, journal)) as gateway, ExitStack() as stack:
        session_id, empty = (httpx.post(f"{gateway.url}/sessions").json()["session_id"] for _ in range(2))
        client, other = (stack.enter_context(closing(Client(gateway.url, name))) for name in (session_id, empty))
        client.turn()
        client.turn()
        before = client.read()
        for spare in (0, 5000):
            limit_files(gateway, log.stat().st_size + spare)
            for refused in (client.ask(), client.ask(stream=True)):
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                assert refused.json()["error"].startswith(SAYS)
            message = {"role": "user", "content": "Hello"}
            refused = other.http.post(
                f"{other.path}/v1/messages", json={"model": "m", "max_tokens": 5, "messages": [message]}
            )
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.json()["error"]["type"] == "overloaded_error"
            assert refused.json()["error"]["message"].startswith(SAYS)
            refused = other.http.post(f"{other.path}/v1/responses", json={"model": "m", "input": "Hello"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.json()["error"]["message"].startswith(SAYS)
            assert httpx.post(f"{gateway.url}/sessions").status_code == 503
            assert client.http.delete(client.path).status_code == 503
            assert client.read() == before
            assert json.loads(other.read()[0])["records"] == []
            assert httpx.get(f"{gateway.url}/health").json()["status"] == "ok"
            limit_files(gateway, resource.RLIM_INFINITY)
            client.turn()
            before = client.read()
        gateway.process.kill()
        assert "Traceback" not in "".join(gateway.log)
    with command(*server(engine, journal)) as again, closing(Client(again.url, session_id, client.messages)) as back:
        assert back.read() == before
        back.turn()
        assert len(json.loads(back.read()[0])["records"]) == 5
        assert again.stop() == 0
        assert "damaged" not in "".join(again.log)
