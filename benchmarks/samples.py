"""How long the event loop stands still while the samples of a large session are assembled.

``python -m benchmarks.samples [--quick]`` builds a session whose engine answers hold replay payloads of 200 MB in all,
asks for its samples, and prints the longest time that a task which only wakes up every millisecond had to wait.
"""

from __future__ import annotations

import argparse
import base64
import logging
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import structlog
import trio
from rich.console import Console
from rich.table import Table

from trio_sessions.config import Settings
from trio_sessions.core import json
from trio_sessions.engine.base import EngineAnswer, EngineCall
from trio_sessions.service.gateway import Gateway
from trio_sessions.service.session import Session
from trio_sessions.service.turn import TurnRequest
from trio_sessions.testing.engine import ScriptedEngine, chat_answer
from trio_sessions.testing.toy import ToyRenderer, sampled_ids
from trio_sessions.web.dialects.chat import ChatDialect

_LAYERS = 40
_TOP_K = 8


@dataclass(frozen=True, slots=True)
class Assembly:
    """What one assembly cost.

    Attributes:
        megabytes: of engine answers that the session holds.
        payload_megabytes: of the samples.
        seconds: from the request to the payload, median.
        stall_ms: longest wait of another task meanwhile, median.
    """

    megabytes: float
    payload_megabytes: float
    seconds: float
    stall_ms: float


def measure(*, turns: int = 20, tokens: int = 800, repeats: int = 3) -> Assembly:
    """Assemble the samples of a session of so many turns, each of which samples so many ids."""
    return trio.run(_measure, turns, tokens, repeats)


async def _measure(turns: int, tokens: int, repeats: int) -> Assembly:
    gateway = Gateway(
        Settings(engine="http://unused", routing_replay=True, num_layers=_LAYERS),
        engine=ScriptedEngine(otherwise=_answer_with(tokens)),
        renderer=ToyRenderer(),
    )
    session = gateway.registry.create()
    messages: list[dict[str, Any]] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"question {turn}"})
        await _turn(gateway, session, messages)
        messages.append({"role": "assistant", "content": "x" * (tokens - 1)})
    held = sum(len(node.record.response) for node in session.history.nodes)
    costs = [await _collect(gateway, session) for _ in range(repeats)]
    return Assembly(
        megabytes=held / 2**20,
        payload_megabytes=costs[0][0] / 2**20,
        seconds=statistics.median(cost[1] for cost in costs),
        stall_ms=statistics.median(cost[2] for cost in costs),
    )


async def _turn(gateway: Gateway, session: Session, messages: list[dict[str, Any]]) -> None:
    request = TurnRequest(method="POST", query="", headers=(), body=json.encode({"messages": messages}))
    await gateway.turns.run(session, request, ChatDialect())


async def _collect(gateway: Gateway, session: Session) -> tuple[int, float, float]:
    longest = 0.0

    async def wake() -> None:
        nonlocal longest
        while True:
            due = trio.current_time() + 0.001
            await trio.sleep_until(due)
            longest = max(longest, trio.current_time() - due)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wake)
        began = time.perf_counter()
        payload = await gateway.samples.collect(session, b"")
        seconds = time.perf_counter() - began
        nursery.cancel_scope.cancel()
    return len(payload), seconds, longest * 1000


def _answer_with(tokens: int) -> Callable[[EngineCall], Awaitable[EngineAnswer]]:
    async def answer(call: EngineCall) -> EngineAnswer:
        prompt = len(json.decode(call.body)["input_ids"])
        rows = np.zeros((prompt + tokens - 1, _LAYERS, _TOP_K), dtype=np.int32)
        text = "x" * (tokens - 1)
        return chat_answer(
            text,
            token_ids=sampled_ids(text),
            meta_info={"routed_experts": base64.b64encode(rows.tobytes()).decode()},
        )

    return answer


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small session, to see that it runs")
    options: Mapping[str, Any] = vars(parser.parse_args())
    # Every turn is logged otherwise.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    found = measure(turns=2, tokens=50, repeats=1) if options["quick"] else measure()
    table = Table("held, MB", "samples, MB", "assembled in, s", "stall, ms", title="samples of one session")
    table.add_row(
        f"{found.megabytes:.0f}", f"{found.payload_megabytes:.0f}", f"{found.seconds:.2f}", f"{found.stall_ms:.0f}"
    )
    Console().print(table)


if __name__ == "__main__":
    main()
