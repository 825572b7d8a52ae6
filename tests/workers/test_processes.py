"""A supervisor and its workers as processes: what they serve, and how they die."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.conftest import Run, run  # noqa: F401 - a fixture
from tests.processes import Running, command
from tests.workers.test_front import untimed
from trio_sessions.client import Client
from trio_sessions.errors import ConfigurationError
from trio_sessions.render.load import load_renderer

SECONDS = 20.0
HANG = {"x-engine-fault": "hang"}
SLOW = {"x-engine-fault": "slow:1.5"}
# Longer than a server that stops leaves its answers.
VERY_SLOW = {"x-engine-fault": "slow:4"}


@dataclass(frozen=True)
class Workers:
    """Two workers in front of an engine; ``headers`` open everything of theirs."""

    gateway: Running
    engine: str
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.gateway.url

    def logged(self, event: str) -> list[dict[str, Any]]:
        """What was logged so far under this name."""
        lines = [json.loads(line) for line in self.gateway.log if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    @property
    def pids(self) -> dict[int, int]:
        """The process of each worker."""
        return {line["worker"]: line["pid"] for line in self.logged("worker started")}

    @property
    def urls(self) -> dict[int, str]:
        """Where each worker listens for itself."""
        return {line["worker"]: line["url"] for line in self.logged("worker started")}

    def health(self, *, of: int | None = None) -> dict[str, Any]:
        """What any worker, or a certain one, says of all."""
        answer: dict[str, Any] = httpx.get(f"{self.url if of is None else self.urls[of]}/health").json()
        return answer

    def create(self, *, owner: int) -> Session:
        """A new session of that worker."""
        while True:
            session = Session(**httpx.post(f"{self.url}/sessions", headers=self.headers).json())
            if session.owner == owner:
                return session
            httpx.delete(session.base_url, headers=self.headers)

    def through(self, session: Session) -> str:
        """The URL of a session at the worker that does not have it."""
        return f"{self.urls[1 - session.owner]}/sessions/{session.session_id}"

    def in_flight(self) -> int:
        """How many turns are at the engine."""
        count: int = httpx.get(f"{self.engine}/engine/stats").json()["in_flight"]
        return count


@dataclass(frozen=True)
class Session:
    """A session as its creation was answered."""

    session_id: str
    base_url: str
    token: str | None = None

    @property
    def owner(self) -> int:
        return int(self.session_id, 16) % 2


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with command("engine", "--port", "0") as engine:
        yield engine.url


@contextmanager
def serving(engine: str, *arguments: str) -> Iterator[Workers]:
    options = ("--port", "0", "--workers", "2", "--engine", engine, "--log-format", "json")
    with command("serve", *options, *arguments) as gateway:
        yield Workers(gateway, engine)


@pytest.fixture(scope="module")
def workers(engine: str) -> Iterator[Workers]:
    with serving(engine) as workers:
        yield workers
        assert workers.gateway.stop() == 0
        assert not any(map(alive, workers.pids.values()))


def until(holds: Callable[[], bool]) -> None:
    """Ask again and again until it holds."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"


def alive(pid: int) -> bool:
    """Whether that process runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def turn(url: str, text: str = "Hello", **options: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 8}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=SECONDS, **options)


class Asking(threading.Thread):
    """A turn that hangs at the engine, and what came of it."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__()
        self.url, self.options = url, options
        self.answer: httpx.Response | None = None
        self.broken: httpx.HTTPError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = turn(self.url, **self.options)
        except httpx.HTTPError as error:
            self.broken = error


def rollout(url: str) -> None:
    """Two turns, the second of them streamed."""
    agent = OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": "How is the weather in Zürich?"}]
    first = agent.chat.completions.create(model="default", messages=messages, seed=1)
    messages += [first.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "And in Łódź?"}]
    chunks = list(agent.chat.completions.create(model="default", messages=messages, seed=2, stream=True))
    assert len(chunks) == 1


def test_sessions_are_spread_and_are_the_same_through_either_worker(workers: Workers) -> None:
    banner = "".join(workers.gateway.output)
    urls = workers.urls
    assert f"  workers     2, each also at its own: {urls[0]}, {urls[1]}\n" in banner
    with httpx.Client() as client:
        created = [Session(**client.post(f"{workers.url}/sessions").json()) for _ in range(6)]
    assert Counter(session.owner for session in created) == {0: 3, 1: 3}
    assert all(session.base_url == f"{urls[session.owner]}/sessions/{session.session_id}" for session in created)
    direct, passed_on = created[0], created[1]
    rollout(direct.base_url)
    rollout(workers.through(passed_on))
    states = [httpx.get(url).content for url in (direct.base_url, passed_on.base_url, workers.through(passed_on))]
    assert states[1] == states[2]
    assert _unnamed(states[0]) == _unnamed(states[1])
    samples = [httpx.post(f"{url}/samples").content for url in (passed_on.base_url, workers.through(passed_on))]
    assert samples[0] == samples[1]
    assert len(samples[0]) > 1000
    for session in created:
        assert httpx.delete(f"{workers.url}/sessions/{session.session_id}").status_code == 204


def _unnamed(state: bytes) -> dict[str, Any]:
    """Without what the engine counts on."""
    value = untimed(state)
    for record in value["records"]:
        for name in ("id", "created"):
            del record["response"][name]
        for choice in record["response"]["choices"]:
            for name in ("id", "e2e_latency", "cached_tokens"):
                choice["meta_info"].pop(name, None)
    return value


def test_the_client_asks_the_worker(workers: Workers) -> None:
    with Client(workers.url) as client:
        for _ in range(2):
            with client.session() as session:
                assert not session.base_url.startswith(workers.url)
                session.chat([{"role": "user", "content": "Hello"}])
                [sample] = session.samples().samples
                assert sample.loss_mask.sum() > 0


def test_the_snippet_of_the_page_goes_to_the_worker(workers: Workers) -> None:
    page = (Path(__file__).parents[2] / "docs" / "workers.md").read_text(encoding="utf-8")
    [snippet] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    program = snippet.replace("http://127.0.0.1:8700", workers.url)
    assert program != snippet
    names: dict[str, Any] = {}
    exec(program, names)
    assert len(names["records"]) == 1
    assert names["session_url"].startswith(tuple(workers.urls.values()))
    assert httpx.delete(names["session_url"]).status_code == 204


def test_a_killed_worker_takes_its_sessions_and_nothing_else(workers: Workers) -> None:
    lost, kept = workers.create(owner=0), workers.create(owner=1)
    assert turn(kept.base_url).status_code == 200
    # Each knows of the other what the supervisor was told.
    until(lambda: [workers.health(of=1 - index)["workers"][index]["sessions"] for index in (0, 1)] == [1, 1])
    before = workers.health()
    restarts = [worker["restarts"] for worker in before["workers"]]
    direct, passed_on = Asking(lost.base_url, headers=HANG), Asking(workers.through(lost), headers=HANG)
    until(lambda: workers.in_flight() == 2)
    os.kill(workers.pids[0], signal.SIGKILL)
    direct.join()
    assert isinstance(direct.broken, httpx.RemoteProtocolError | httpx.ReadError)
    passed_on.join()
    assert passed_on.answer is not None
    assert passed_on.answer.status_code == 503
    assert passed_on.answer.headers["retry-after"] == "1"
    assert "worker 0, which has this session, is down" in passed_on.answer.json()["error"]
    assert turn(kept.base_url).status_code == 200
    # A client that comes back waits at its port until the worker is there again, and learns the truth.
    gone = turn(lost.base_url)
    assert (gone.status_code, gone.json()) == (404, {"error": f"session not found: session_id={lost.session_id}"})
    until(lambda: workers.health()["status"] == "ok")
    assert httpx.get(workers.through(lost)).json() == gone.json()
    until(lambda: workers.health(of=0)["workers"][1]["sessions"] == 1)
    assert workers.health(of=0) == {
        "status": "ok",
        "session_server_instance_id": before["session_server_instance_id"],
        "workers": [
            {"index": 0, "up": True, "restarts": restarts[0] + 1, "sessions": 0},
            {"index": 1, "up": True, "restarts": restarts[1], "sessions": 1},
        ],
    }
    counted = {
        sample.labels["worker"]: sample.value
        for family in text_string_to_metric_families(httpx.get(f"{workers.url}/metrics").text)
        for sample in family.samples
        if sample.name == "trio_sessions_worker_restarts_total"
    }
    assert counted == {"0": restarts[0] + 1, "1": restarts[1]}
    ended = workers.logged("worker ended")[-1]
    told = {name: ended[name] for name in ("level", "worker", "how", "sessions_lost")}
    assert told == {"level": "warning", "worker": 0, "how": "was killed by SIGKILL", "sessions_lost": 1}
    again = workers.create(owner=0)
    assert again.base_url.startswith(lost.base_url.rpartition("/sessions/")[0])
    rollout(again.base_url)


def test_a_worker_that_is_told_to_end_drains_and_is_replaced(workers: Workers) -> None:
    before = workers.health()["workers"][1]["restarts"]
    os.kill(workers.pids[1], signal.SIGTERM)
    until(lambda: workers.health()["workers"][1]["restarts"] == before + 1 and workers.health()["status"] == "ok")
    assert workers.logged("worker ended")[-1]["how"] == "ended with status 0"
    rollout(workers.create(owner=1).base_url)


def test_ctrl_c_drains_turns_wherever_they_came_in_also_where_that_takes_keys(engine: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("a-key-of-24-characters-x\n", encoding="utf-8")
    with serving(engine, "--api-key-file", str(keys)) as without:
        for url in (without.url, *without.urls.values()):
            assert [httpx.get(f"{url}{path}").status_code for path in ("/sessions", "/metrics")] == [401, 401]
        workers = replace(without, headers={"x-api-key": "a-key-of-24-characters-x"})
        assert httpx.get(f"{workers.url}/metrics", headers=workers.headers).status_code == 200
        sessions = [workers.create(owner=owner) for owner in (0, 1, 0, 1)]
        urls = [session.base_url for session in sessions[:2]] + [workers.through(session) for session in sessions[2:]]
        turns = [
            Asking(url, headers={**SLOW, "authorization": f"Bearer {session.token}"})
            for url, session in zip(urls, sessions, strict=True)
        ]
        until(lambda: workers.in_flight() == 4)
        # A terminal sends it to all of them.
        for pid in (*workers.pids.values(), workers.gateway.process.pid):
            os.kill(pid, signal.SIGINT)
        until(lambda: len(workers.logged("draining")) == 3)
        assert workers.gateway.process.wait(SECONDS) == 0
        for asked in turns:
            asked.join()
        assert [asked.answer and asked.answer.status_code for asked in turns] == [200] * 4
        assert not any(map(alive, workers.pids.values()))
        with pytest.raises(httpx.ConnectError):
            httpx.get(workers.url)
        assert "Traceback" not in "".join(workers.gateway.log)


def test_without_their_supervisor_workers_drain_and_end(engine: str) -> None:
    with serving(engine) as workers:
        # The worker that it came in at has no turn of its own to wait for.
        asked = Asking(workers.through(workers.create(owner=0)), headers=VERY_SLOW)
        until(lambda: workers.in_flight() == 1)
        workers.gateway.process.kill()
        until(lambda: not any(map(alive, workers.pids.values())))
        asked.join()
        assert asked.answer is not None
        assert asked.answer.status_code == 200


def test_a_second_signal_ends_them_all_at_once(engine: str) -> None:
    with serving(engine, "--drain-timeout", "600") as workers:
        asked = Asking(workers.create(owner=1).base_url, headers=HANG)
        until(lambda: workers.in_flight() == 1)
        workers.gateway.process.send_signal(signal.SIGTERM)
        until(lambda: len(workers.logged("draining")) == 3)
        assert workers.gateway.stop() == 0
        asked.join()
        assert isinstance(asked.broken, httpx.RemoteProtocolError | httpx.ReadError)
        assert not any(map(alive, workers.pids.values()))


def test_a_tokenizer_that_no_worker_can_load_is_told_once_as_without_workers(run: Run) -> None:  # noqa: F811
    with pytest.raises(ConfigurationError) as refused:
        load_renderer(".")
    complaint = _complaint(run, "--tokenizer", ".")
    assert complaint == f"trio-sessions: error: {' '.join(str(refused.value).split())}"


def test_workers_find_what_the_command_finds(run: Run, tmp_path: Path) -> None:  # noqa: F811
    # Beside the command, where `python -m` finds it.
    (tmp_path / "my_hooks.py").write_text("pick = 'not a function'\n", encoding="utf-8")
    complaint = _complaint(run, "--sample-picker", "my_hooks.pick")
    assert complaint.endswith("sample picker 'my_hooks.pick' is not callable")


def _complaint(run: Run, *wrong: str) -> str:  # noqa: F811
    """What is said about a command line that every worker refuses."""
    done = run("serve", "--port", "0", "--workers", "2", "--engine", "http://127.0.0.1:9", *wrong)
    assert (done.status, done.out) == (2, "")
    assert done.err.count("trio-sessions: error: ") == 1
    assert "Traceback" not in done.err
    return done.err.splitlines()[-1]


def test_a_port_of_a_worker_that_is_taken_is_one_line_and_status_1(run: Run) -> None:  # noqa: F811
    with socket.create_server(("127.0.0.1", 0)) as taken:
        base = taken.getsockname()[1]
        done = run("serve", "--port", "0", "--workers", "2", "--worker-port-base", str(base))
    assert done.status == 1
    complaint = done.err.splitlines()[-1]
    assert complaint.startswith(f"trio-sessions: error: cannot listen on 127.0.0.1:{base}: ")
    assert "choose another --worker-port-base" in complaint
