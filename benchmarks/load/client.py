"""The load generator: ``python -m benchmarks.load.client`` reads a ``Job`` as JSON from its input.

It prints how many turns are done now and then, one number a line, and last an ``Outcome`` as JSON.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from benchmarks.load.engine import answer_parts
from benchmarks.load.http import Answer, Connection
from benchmarks.load.proc import cpu_seconds, rss_mib
from benchmarks.load.shapes import SMALLEST_CALL, Job, Load, Outcome

__all__ = ["TOOLS"]

TOOLS: Final[list[dict[str, Any]]] = [
    {
        "type": "function",
        "function": {
            "name": "run",
            "description": "Run a command in the sandbox and return what it printed.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}},
                "required": ["command"],
            },
        },
    }
]
_SAMPLE_SECONDS: Final = 0.05
_REPORT_SECONDS: Final = 0.5
_LINE: Final = "12:04:11 build: 318 targets, 2 warnings, see the report for what changed and why\n"


class _Created(msgspec.Struct):
    session_id: str
    base_url: str | None = None


class _Choice(msgspec.Struct):
    message: msgspec.Raw


class _Chat(msgspec.Struct):
    choices: list[_Choice]


_chat = msgspec.json.Decoder(_Chat)


def main() -> None:
    """Run the job on standard input."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    outcome = asyncio.run(_run(job))
    print(msgspec.json.encode(outcome).decode(), flush=True)  # noqa: T201


async def _run(job: Job) -> Outcome:
    async with asyncio.timeout(job.give_up_seconds):
        return await _Generator(job).run()


class _Generator:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._load = job.load
        self._added_ms: list[float] = []
        self._peak = 0.0
        at_once = self._load.in_flight or self._load.sessions
        self._seats = asyncio.Semaphore(at_once)
        self._cpu_by_turn = [0.0] * self._load.turns if at_once == 1 else []

    async def run(self) -> Outcome:
        load, pids = self._load, self._job.pids
        sessions = await _create(self._job)
        before = rss_mib(pids)
        cpu, own_cpu, began = cpu_seconds(pids), time.process_time(), time.perf_counter()
        watch = asyncio.create_task(self._watch())
        async with asyncio.TaskGroup() as group:
            for index, session in enumerate(sessions):
                group.create_task(self._drive(session, index))
        seconds = time.perf_counter() - began
        cpu, own_cpu = cpu_seconds(pids) - cpu, time.process_time() - own_cpu
        watch.cancel()
        after = rss_mib(pids)
        for session in sessions:
            await session.delete()
        return Outcome(
            turns=len(self._added_ms),
            seconds=seconds,
            cpu_seconds=cpu,
            client_cpu_seconds=own_cpu,
            added_ms=self._added_ms,
            rss_before_mib=before,
            rss_after_mib=after,
            rss_peak_mib=max(self._peak, after),
            cpu_ms_by_turn=[seconds * 1000 / load.sessions for seconds in self._cpu_by_turn],
        )

    async def _drive(self, session: _Session, index: int) -> None:
        async with self._seats:
            # Agents do not start in step; with an engine that takes long they would otherwise stay in it.
            await asyncio.sleep(self._load.engine_seconds * index / self._load.sessions)
            # Not earlier: a server may hang up on a connection that is idle for some seconds.
            connection = await Connection.open(session.url)
            for turn in range(self._load.turns):
                with self._counted(turn):
                    added = await session.turn(connection)
                self._added_ms.append(added * 1000)
            await connection.close()

    @contextmanager
    def _counted(self, turn: int) -> Iterator[None]:
        if not self._cpu_by_turn:
            yield
            return
        before = cpu_seconds(self._job.pids)
        yield
        self._cpu_by_turn[turn] += cpu_seconds(self._job.pids) - before

    async def _watch(self) -> None:
        reported = time.perf_counter()
        while True:
            await asyncio.sleep(_SAMPLE_SECONDS)
            self._peak = max(self._peak, rss_mib(self._job.pids))
            if time.perf_counter() - reported > _REPORT_SECONDS:
                reported = time.perf_counter()
                print(len(self._added_ms), flush=True)  # noqa: T201


class _Session:
    """One agent: where its turns go, and its history as it stands on the wire."""

    def __init__(self, url: str, path: str, load: Load) -> None:
        self.url = url
        self._path = path
        self._headers = (
            f"x-bench-ids: {load.answer_ids}\r\nx-bench-seconds: {load.engine_seconds}\r\n"
            f"x-bench-routing: {load.routing_bytes}\r\n"
        ).encode()
        self._head = b'{"model":"bench","temperature":1.0,"tools":' + msgspec.json.encode(TOOLS) + b',"messages":['
        self._history = [
            msgspec.json.encode({"role": "system", "content": "You are a careful engineer. Answer with one call."}),
            msgspec.json.encode({"role": "user", "content": _text(load.prompt_chars)}),
        ]
        author = {"role": "tool", "tool_call_id": "call_0"} if load.answer_ids >= SMALLEST_CALL else {"role": "user"}
        self._appended = msgspec.json.encode({**author, "content": _text(load.appended_chars)})
        self._expected = len(answer_parts(load.answer_ids)[0]) // 2

    async def turn(self, connection: Connection) -> float:
        """Send the history and append to it; seconds beyond what the engine took."""
        body = b"".join((self._head, b",".join(self._history), b"]}"))
        began = time.perf_counter()
        answer = await connection.request("POST", f"{self._path}/v1/chat/completions", body=body, headers=self._headers)
        seconds = time.perf_counter() - began
        said = _chat.decode(_good(answer).body).choices[0].message
        # A server that answers less does less, and one that sends the replay payload on does something else.
        if len(answer.body) < self._expected or b'"routed_experts"' in answer.body:
            raise ValueError(f"not the answer of a session server: {answer.body[:200]!r}")
        self._history += [bytes(said), self._appended]
        return seconds - int(answer.headers[b"x-bench-engine-us"]) / 1e6

    async def delete(self) -> None:
        """Delete the session."""
        connection = await Connection.open(self.url)
        _good(await connection.request("DELETE", self._path))
        await connection.close()


async def _create(job: Job) -> list[_Session]:
    sessions = []
    connection = await Connection.open(job.url)
    for _ in range(job.load.sessions):
        answer = _good(await connection.request("POST", "/sessions"))
        created = msgspec.json.decode(answer.body, type=_Created)
        # A server of several processes says which of them has the session.
        url = created.base_url or job.url
        prefix = urlsplit(url).path.partition("/sessions/")[0].rstrip("/")
        sessions.append(_Session(url, f"{prefix}/sessions/{created.session_id}", job.load))
    await connection.close()
    return sessions


def _good(answer: Answer) -> Answer:
    if answer.status not in (200, 204):
        raise ValueError(f"status {answer.status}: {answer.body[:400]!r}")
    return answer


def _text(characters: int) -> str:
    return (_LINE * (characters // len(_LINE) + 1))[:characters]


if __name__ == "__main__":
    main()
