"""SIGKILL at any moment: every turn that was answered is there afterwards, to the byte."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.processes import Running, command
from tests.recovery.agents import Crowd

# In all, of which each case has a share; the proof takes a hundred.
KILLS = int(os.environ.get("TRIO_SESSIONS_KILLS", "4"))
SEED = int(os.environ.get("TRIO_SESSIONS_KILLS_SEED", str(random.randrange(2**32))))
SHARES = {("linear", "full"): 0.4, ("tree", "full"): 0.4, ("tree", "relaxed"): 0.1, ("linear", "relaxed"): 0.1}
CASES = [(*case, round(KILLS * share)) for case, share in SHARES.items() if round(KILLS * share)]
_START_SECONDS = 2.5


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with command("engine", "--port", "0", "--latency", "0.01") as engine:
        yield engine.url


def server(engine: str, journal: Path, *options: str) -> tuple[str, ...]:
    return ("serve", "--port", "0", "--engine", engine, "--store", str(journal), "--log-format", "json", *options)


def complaints(log: list[str]) -> list[dict[str, Any]]:
    """What a server logged that is no good sign."""
    lines = [json.loads(line) for line in log if line.startswith("{")]
    assert "Traceback" not in "".join(log)
    return [line for line in lines if line["level"] in ("error", "critical")]


async def kill_while_it_starts(arguments: tuple[str, ...], rng: random.Random) -> None:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "trio_sessions.cli", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    await trio.sleep(rng.random() * _START_SECONDS)
    process.kill()
    await process.wait()


# httpx leaves the bodies of requests that break to the garbage collector.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator object ByteStream")
@pytest.mark.parametrize(("mode", "durability", "kills"), CASES)
async def test_whatever_was_answered_is_there_after_a_kill(
    engine: str, tmp_path: Path, mode: str, durability: str, kills: int
) -> None:
    rng = random.Random(SEED)
    crowd = Crowd(tree=mode == "tree", relaxed=durability == "relaxed", rng=rng)
    options = ["--mode", mode, "--on-truncated", "close", "--sample-picker", "keep_all", "--durability", durability]
    if rng.random() < 0.5:
        # Most sessions are in the journal alone.
        options += ["--max-memory-mb", "1"]
    arguments = server(engine, tmp_path / "journal", *options)
    print(f"TRIO_SESSIONS_KILLS_SEED={SEED}", *arguments)
    for number in range(kills + 1):
        async with AsyncExitStack() as stack:
            if number % 10 == 9:
                await kill_while_it_starts(arguments, rng)
            gateway: Running = await trio.to_thread.run_sync(stack.enter_context, command(*arguments))
            if number == kills:
                await crowd.check(gateway.url)
                gateway.process.terminate()
            else:
                await end_sometime(gateway, crowd, rng, signal.SIGTERM if number % 5 == 4 else signal.SIGKILL)
            status = await trio.to_thread.run_sync(gateway.process.wait)
            assert status in (0, -signal.SIGKILL)
            crowd.tally.kills += status != 0
        assert complaints(gateway.log) == []
    print(crowd.tally)
    assert crowd.tally.turns > 0
    assert crowd.tally.equal > 0


async def end_sometime(gateway: Running, crowd: Crowd, rng: random.Random, how: signal.Signals) -> None:
    """Check what has to be there, take turns, and end the server meanwhile."""
    if crowd.books and how is signal.SIGKILL and rng.random() < 0.1:
        # While sessions are brought back.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crowd.check, gateway.url)
            await trio.sleep(rng.random() * 0.3)
            gateway.process.kill()
        return
    await crowd.check(gateway.url)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(crowd.run, gateway.url)
        await trio.sleep(0.1 + rng.random() * 0.9)
        gateway.process.send_signal(how)
