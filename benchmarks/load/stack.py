"""Engine, session server and load generator as processes of their own, and one run of a load on them."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import msgspec
import trio

from benchmarks.load.proc import pids_of_session, rss_mib
from benchmarks.load.processes import ProcessFailed, Running, running, talk
from benchmarks.load.shapes import Job, Load, Outcome, Probe
from benchmarks.options import Show
from benchmarks.tokenizers import qwen3_tokenizer

__all__ = ["GATEWAY", "GATEWAY_WITH_JOURNAL", "PEER", "Run", "Server", "Stack", "collect", "stack"]

_WARM_UP: Final = Load(name="warm-up", sessions=2, turns=4, routing_bytes=384)
_GIVE_UP_SECONDS: Final = 300.0
_JOURNAL_BYTES: Final = re.compile(r"^trio_sessions_journal_bytes_total (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Server:
    """A session server that can be started.

    Attributes:
        name: for tables.
        command: what to run, without the engine's URL.
        journal: whether it is given a file to write sessions down in, a new one every time it is started.
    """

    name: str
    command: tuple[str, ...]
    journal: bool = False


# Both with the same tokenizer, both quiet, both asking the engine for routing replay and writing tools as they come.
_PYTHON: Final = (sys.executable, "-m")
_GATEWAY: Final = (
    *(*_PYTHON, "trio_sessions.cli", "serve", "--port", "0", "--log-level", "error"),
    *("--routing-replay", "--num-layers", "12", "--tokenizer", str(qwen3_tokenizer()), "--tools-as", "given"),
)
# The peer writes nothing down.
GATEWAY: Final = Server("gateway", (*_GATEWAY, "--store", "memory"))
GATEWAY_WITH_JOURNAL: Final = Server("gateway with a journal", _GATEWAY, journal=True)
PEER: Final = Server("peer", (*_PYTHON, "benchmarks.peer", "--tokenizer", str(qwen3_tokenizer())))


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a load.

    Attributes:
        outcome: what its clients found.
        rss_idle_mib: resident memory of the server before it had served anything.
        journal_bytes: of events that it wrote down meanwhile; 0 without a journal.
    """

    outcome: Outcome
    rss_idle_mib: float
    journal_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Stack:
    """A session server that runs in front of an engine of its own.

    Attributes:
        name: of the server.
        server: the process that was started.
        pids: of all its processes.
        rss_idle_mib: its resident memory before it had served anything.
        journal: whether it writes sessions down.
    """

    name: str
    server: Running
    pids: Sequence[int]
    rss_idle_mib: float
    journal: bool

    async def drive(self, load: Load, show: Show) -> Run:
        """Send a load.

        Raises:
            ProcessFailed: a turn failed, or it took too long.
        """
        job = Job(load=load, url=self.server.url, pids=list(self.pids), give_up_seconds=_GIVE_UP_SECONDS)
        written_before = await self._journal_bytes()
        try:
            last = await talk(
                (*_PYTHON, "benchmarks.load.client"),
                what=f"the load {load.name!r} on the {self.name}",
                send=msgspec.json.encode(job),
                on_line=lambda line: show.done(int(line)),
            )
        except ProcessFailed as failed:
            raise ProcessFailed(f"{failed}\n\nthe {self.name} said:\n{self.server.said()}") from failed
        return Run(
            outcome=msgspec.json.decode(last, type=Outcome),
            rss_idle_mib=self.rss_idle_mib,
            journal_bytes=await self._journal_bytes() - written_before,
        )

    async def _journal_bytes(self) -> float:
        """Bytes of events that it has written down so far."""
        if not self.journal:
            return 0.0
        async with httpx.AsyncClient(timeout=_GIVE_UP_SECONDS) as client:
            metrics = (await client.get(f"{self.server.url}/metrics")).raise_for_status().text
        found = _JOURNAL_BYTES.search(metrics)
        if found is None:
            raise ProcessFailed(f"the {self.name} does not say how much it has written down")
        return float(found.group(1))

    async def drive_and_probe(self, load: Load, show: Show) -> tuple[Run, Probe]:
        """Send a load, and ask for ``/health`` all the while."""
        runs: list[Run] = []
        probes: list[Probe] = []
        over = trio.Event()

        async def probe() -> None:
            last = await talk(
                (*_PYTHON, "benchmarks.load.prober", self.server.url),
                what="the prober",
                send=b"",
                on_line=lambda _: None,
                until=over,
            )
            probes.append(msgspec.json.decode(last, type=Probe))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(probe)
            runs.append(await self.drive(load, show))
            over.set()
        return runs[0], probes[0]


@asynccontextmanager
async def stack(server: Server, show: Show) -> AsyncIterator[Stack]:
    """Start an engine and ``server``, and warm the server up."""
    show.step(f"starting the {server.name}")
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        store = ("--store", str(Path(folder) / "journal")) if server.journal else ()
        async with (
            running((*_PYTHON, "benchmarks.load.engine"), what="the engine") as engine,
            running((*server.command, *store, "--engine", engine.url), what=f"the {server.name}") as started,
        ):
            pids = pids_of_session(started.pid)
            ready = Stack(
                name=server.name, server=started, pids=pids, rss_idle_mib=rss_mib(pids), journal=server.journal
            )
            await ready.drive(_WARM_UP, show)
            yield ready


async def collect(
    servers: Sequence[Server], loads: Sequence[Load], *, repeats: int, fresh: bool, show: Show
) -> Mapping[str, Mapping[str, Sequence[Run]]]:
    """Run every load on every server, several times; servers take turns, and every other time in reverse.

    Args:
        servers: names differ.
        loads: names differ.
        repeats: how often.
        fresh: start a server anew for every run, so that what it remembers of the last one is not counted.
        show: where to say what is being done.

    Returns:
        By the server's name, then the load's: one run a repeat.
    """
    runs: dict[str, dict[str, list[Run]]] = {server.name: {load.name: [] for load in loads} for server in servers}
    async with AsyncExitStack() as lasting:
        kept = {} if fresh else {s.name: await lasting.enter_async_context(stack(s, show)) for s in servers}
        for repeat in range(repeats):
            for load in loads:
                for server in servers if repeat % 2 == 0 else reversed(servers):
                    async with AsyncExitStack() as passing:
                        ready = kept[server.name] if kept else await passing.enter_async_context(stack(server, show))
                        show.step(f"{repeat + 1} of {repeats}: {load.name}, {server.name}", load.sessions * load.turns)
                        runs[server.name][load.name].append(await ready.drive(load, show))
    return runs
