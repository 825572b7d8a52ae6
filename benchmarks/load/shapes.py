"""What a load is, and what one run of it found. Both travel between processes as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

__all__ = ["SMALLEST_CALL", "Job", "Load", "Outcome", "Probe"]

# An answer of fewer ids is a few words, and a user's reply follows; one of more calls a tool.
SMALLEST_CALL: Final = 16


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop of sessions: each sends its whole history, waits for the answer, appends to it, goes on.

    Attributes:
        name: for tables.
        sessions: how many in all.
        turns: of each session.
        in_flight: how many sessions run at once; None for all of them.
        answer_ids: how many ids the engine samples on a turn.
        appended_chars: characters of the tool result, or the user's words, that follow an answer.
        prompt_chars: characters of the first user message.
        engine_seconds: how long the engine takes for an answer, beside making it.
        routing_bytes: of routing replay per token, before base64; 0 for none.
        weighed: whether its sessions are large enough to tell from resident memory what one takes.
    """

    name: str
    sessions: int
    turns: int
    in_flight: int | None = None
    answer_ids: int = 128
    appended_chars: int = 250
    prompt_chars: int = 600
    engine_seconds: float = 0.0
    routing_bytes: int = 0
    weighed: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """What a load generator is told.

    Attributes:
        load: what to send.
        url: of the session server.
        pids: of the server's processes, whose processor time and memory are read.
        give_up_seconds: a run that takes longer is a failure.
    """

    load: Load
    url: str
    pids: list[int]
    give_up_seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run found.

    Attributes:
        turns: that were answered.
        seconds: from the first request to the last answer.
        cpu_seconds: processor time of the server's processes meanwhile, user and system.
        client_cpu_seconds: of the load generator itself.
        added_ms: for every turn, how long its client waited beyond the time the engine took.
        rss_before_mib: resident memory of the server before the first turn.
        rss_after_mib: after the last turn, while the sessions are still there.
        rss_peak_mib: the most that was seen in between.
        cpu_ms_by_turn: mean over sessions of the processor time that turn 1, 2, ... cost; empty where sessions overlap.
    """

    turns: int
    seconds: float
    cpu_seconds: float
    client_cpu_seconds: float
    added_ms: list[float]
    rss_before_mib: float
    rss_after_mib: float
    rss_peak_mib: float
    cpu_ms_by_turn: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Probe:
    """What asking for ``/health`` all the while found.

    Attributes:
        waited_ms: how long each request took.
    """

    waited_ms: list[float]
