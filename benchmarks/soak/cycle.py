"""What an agent does, over and over."""

from __future__ import annotations

import random
from typing import Final

from benchmarks.soak.acts import ACTS, delete
from benchmarks.soak.dialects import DIALECTS
from benchmarks.soak.life import Life, Line
from benchmarks.soak.peer import Broken
from benchmarks.soak.tally import Tally

__all__ = ["cycle"]

_MOST_ACTS: Final = 12


async def cycle(line: Line, draw: random.Random, tally: Tally) -> None:
    """A session's whole life; what breaks in it is complained of."""
    try:
        life = await Life.begin(line, draw.choice(DIALECTS), draw, tally)
    except Broken as broken:
        tally.complain(f"create: {broken}")
        return
    if life is None:
        return
    for act in draw.choices(ACTS, [act.weight for act in ACTS], k=draw.randrange(1, _MOST_ACTS)):
        tally.acts[act.name] += 1
        try:
            await act.run(life)
        except Broken as broken:
            tally.complain(f"{act.name}: {broken}")
            break
    try:
        await delete(life)
    except Broken as broken:
        tally.complain(f"delete: {broken}")
