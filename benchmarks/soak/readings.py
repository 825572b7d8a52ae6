"""What processes hold: read from ``/proc`` and from what they tell at ``/metrics``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.load.proc import rss_mib
from benchmarks.soak.life import Line

__all__ = ["Held", "Observer", "held_by_processes"]

_TURNS: Final = "trio_sessions_turns_total"


@dataclass(frozen=True, slots=True)
class Held:
    """What the gateway holds at a moment, all its processes together.

    Attributes:
        rss_mib: resident memory.
        descriptors: open files and sockets, that of whoever asks included.
        threads: of the operating system.
        tasks: of trio.
        sessions: that are open.
        turns: being handled.
        engine_calls: that the engine is answering.
    """

    rss_mib: float
    descriptors: int
    threads: int
    tasks: int
    sessions: int
    turns: int
    engine_calls: int


@dataclass(frozen=True, slots=True)
class Processes:
    """What the kernel says of processes, all together.

    Attributes:
        rss_mib: resident memory.
        descriptors: open files and sockets.
        threads: how many.
    """

    rss_mib: float
    descriptors: int
    threads: int


def held_by_processes(pids: Sequence[int]) -> Processes:
    """What processes hold.

    Raises:
        FileNotFoundError: one of them has ended.
    """
    return Processes(
        rss_mib=rss_mib(pids),
        descriptors=_entries(pids, "fd"),
        threads=_entries(pids, "task"),
    )


def _entries(pids: Iterable[int], folder: str) -> int:
    return sum(sum(1 for _ in Path(f"/proc/{pid}/{folder}").iterdir()) for pid in pids)


class Observer:
    """Asks a gateway and its engine, each over a connection that stays open, so that it counts every time.

    Args:
        gateway: its URL.
        engine: URL of the embedded engine behind it.
        pids: of the gateway's processes.
    """

    def __init__(self, gateway: str, engine: str, pids: Sequence[int]) -> None:
        self._gateway = Line(gateway)
        self._engine = Line(engine)
        self._pids = pids

    async def held(self) -> Held:
        """What is held now.

        Raises:
            Broken: one of them does not answer.
        """
        page = await self._page()
        stats = msgspec.json.decode((await self._engine.request("GET", "/engine/stats", headers={})).body)
        processes = held_by_processes(self._pids)
        return Held(
            rss_mib=processes.rss_mib,
            descriptors=processes.descriptors,
            threads=processes.threads,
            tasks=int(page["trio_sessions_tasks"]),
            sessions=int(page["trio_sessions_sessions_open"]),
            turns=int(page["trio_sessions_turns_in_flight"]),
            engine_calls=stats["in_flight"],
        )

    async def outcomes(self) -> Mapping[str, int]:
        """How many turns there were so far, by how they ended."""
        page = await self._page()
        return {
            name.removeprefix(_TURNS): int(value) for name, value in page.items() if name.startswith(_TURNS) and value
        }

    def close(self) -> None:
        """Close the connections."""
        self._gateway.close()
        self._engine.close()

    async def _page(self) -> Counter[str]:
        """Values by name, of several workers their sums; of turns by name and outcome."""
        answer = await self._gateway.request("GET", "/metrics", headers={})
        values: Counter[str] = Counter()
        for family in text_string_to_metric_families(answer.body.decode()):
            for sample in family.samples:
                values[sample.name + sample.labels.get("outcome", "")] += sample.value  # type: ignore[assignment]
        return values
