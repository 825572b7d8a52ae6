"""The loads of the suite. Those that have a target in common with a measured reference have its numbers."""

from __future__ import annotations

from typing import Final

from benchmarks.load.shapes import Load

__all__ = ["FLAT", "HUGE", "LOADS", "QUICK_FLAT", "QUICK_HUGE", "QUICK_LOADS"]

ONE: Final = Load(name="1 session x 30 turns", sessions=1, turns=30)
SIXTEEN: Final = Load(name="16 x 30", sessions=16, turns=30)
SIXTY_FOUR: Final = Load(name="64 x 20", sessions=64, turns=20)
# 12 layers, the 8 best experts, 4 bytes each: 512 bytes as base64.
REPLAY: Final = Load(name="16 x 30, 512 B/token of replay", sessions=16, turns=30, routing_bytes=384, weighed=True)
IN_FLIGHT: Final = Load(name="256 x 6, engine takes 1.5 s", sessions=256, turns=6, engine_seconds=1.5)
LARGE: Final = Load(name="12 x 50 to 100k tokens", sessions=12, turns=50, answer_ids=1880, weighed=True)

LOADS: Final = (ONE, SIXTEEN, SIXTY_FOUR, REPLAY, IN_FLIGHT, LARGE)
# One after the other, so that what a turn costs can be told from the others'.
FLAT: Final = Load(name="200 turns of a few words", sessions=3, turns=200, in_flight=1, answer_ids=4, appended_chars=8)
# An answer of about 4 MB, most of it log probs.
HUGE: Final = Load(name="answers of 4 MB", sessions=12, turns=6, in_flight=4, answer_ids=115_000)

QUICK_LOADS: Final = (
    # So large that what start-up and warm-up have freed does not hold it.
    Load(name="2 x 4 to 120k tokens", sessions=2, turns=4, answer_ids=30_000, weighed=True),
    Load(name="2 x 3", sessions=2, turns=3),
    Load(name="2 x 3, 512 B/token of replay", sessions=2, turns=3, routing_bytes=384),
    Load(name="4 x 2, engine takes 0.1 s", sessions=4, turns=2, engine_seconds=0.1),
)
QUICK_FLAT: Final = Load(
    name="12 turns of a few words", sessions=1, turns=12, in_flight=1, answer_ids=4, appended_chars=8
)
QUICK_HUGE: Final = Load(name="answers of 200 kB", sessions=2, turns=2, in_flight=2, answer_ids=6000)
