"""Workers that are killed, one or all of them with their supervisor, come back with their sessions."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx

from tests.workers.test_processes import Session, Workers, alive, engine, serving, until  # noqa: F401 - a fixture


class Agent:
    """Takes turns in one session and knows what it was told of it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.messages: list[Any] = [{"role": "user", "content": "Hello"}]
        self.seen = (b"", b"")

    def turn(self, url: str) -> None:
        body = {"messages": self.messages, "max_tokens": 16}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30)
        assert answer.status_code == 200, answer.text
        self.messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "More, please."}]
        self.seen = self.read(url)

    def read(self, url: str) -> tuple[bytes, bytes]:
        return httpx.get(url).content, httpx.post(f"{url}/samples").content


def url_at(workers: Workers, agent: Agent) -> str:
    """At the worker that has it, which listens elsewhere after a restart."""
    return f"{workers.urls[agent.session.owner]}/sessions/{agent.session.session_id}"


def test_sessions_outlive_their_worker_and_their_server(engine: str, tmp_path: Path) -> None:  # noqa: F811
    options = ("--store", str(tmp_path / "journal"))
    with serving(engine, *options) as workers:
        agents = [Agent(workers.create(owner=owner)) for owner in (0, 0, 1)]
        for agent in agents:
            agent.turn(url_at(workers, agent))
        os.kill(workers.pids[0], signal.SIGKILL)
        # Nobody listens for the others until the supervisor has seen it.
        until(lambda: httpx.get(workers.through(agents[0].session)).status_code == 503)
        down = httpx.get(workers.through(agents[0].session))
        assert down.json()["error"].endswith("is down; its sessions come back with it")
        until(lambda: workers.health(of=1)["status"] == "ok")
        assert workers.logged("worker ended")[-1]["sessions_lost"] == 0
        for agent in agents:
            assert agent.read(url_at(workers, agent)) == agent.seen
            agent.turn(url_at(workers, agent))
        # All at once, so that no worker sees the others go and drains.
        pids = workers.pids.values()
        for pid in (workers.gateway.process.pid, *pids):
            os.kill(pid, signal.SIGKILL)
        workers.gateway.process.wait()
        until(lambda: not any(map(alive, pids)))
    assert {file.name for file in tmp_path.glob("journal.?")} == {"journal.0", "journal.1"}
    with serving(engine, *options) as workers:
        for agent in agents:
            assert agent.read(workers.through(agent.session)) == agent.seen
            agent.turn(url_at(workers, agent))
        assert workers.gateway.stop() == 0
