"""Asks for ``/health`` every few milliseconds: ``python -m benchmarks.load.prober URL``.

It goes on until its input is closed, then prints a ``Probe`` as JSON.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Final

import msgspec

from benchmarks.load.http import Connection
from benchmarks.load.shapes import Probe

_EVERY_SECONDS: Final = 0.01


def main() -> None:
    """Probe until standard input is closed."""
    probe = asyncio.run(_probe(sys.argv[1]))
    print(msgspec.json.encode(probe).decode(), flush=True)  # noqa: T201


async def _probe(url: str) -> Probe:
    closed = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    connection = await Connection.open(url)
    waited: list[float] = []
    # Once in any case: a short load may be over before this has begun.
    while not waited or not closed.done():
        began = time.perf_counter()
        answer = await connection.request("GET", "/health")
        waited.append((time.perf_counter() - began) * 1000)
        if answer.status != 200:
            raise ValueError(f"/health answered {answer.status}")
        await asyncio.sleep(_EVERY_SECONDS)
    await connection.close()
    return Probe(waited)


if __name__ == "__main__":
    main()
