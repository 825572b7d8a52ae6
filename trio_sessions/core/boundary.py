"""Where every id of a sequence comes from, and what happened at the seams between turns.

A prompt is the ids that stand plus what was rendered anew. Whatever is not plainly one or the other is declared here:
nothing at a seam is silent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, TypeAlias

__all__ = ["BoundaryEvent", "BoundaryKind", "Origin", "late_tool_results"]

BoundaryKind: TypeAlias = Literal[
    "stop_replaced", "other_stop", "turn_closed", "tools_changed", "template_kwargs_changed", "late_tool_result"
]
"""
``stop_replaced``: the last sampled id was the opener of another role and became the right one.
``other_stop``: the turn ended with another stop id than the template writes there; it was kept.
``turn_closed``: the engine left the turn without a stop id, and a close was added.
``tools_changed``, ``template_kwargs_changed``: the request renders with others than the checkpoint it extends.
``late_tool_result``: a tool result answers no call of the turn before it.
"""


class Origin(IntEnum):
    """Where an id comes from; only sampled ids are trained."""

    TEMPLATE = 0
    SAMPLED = 1
    SYNTHETIC = 2


@dataclass(frozen=True, slots=True)
class BoundaryEvent:
    """Something declared at the seam before a turn.

    Attributes:
        kind: what happened.
        position: index of the first id it concerns, in the prompt of the turn.
        detail: one sentence for people; it quotes no message.
    """

    kind: BoundaryKind
    position: int
    detail: str

    def to_json(self) -> dict[str, Any]:
        """The event as JSON-like values."""
        return {"kind": self.kind, "position": self.position, "detail": self.detail}


def late_tool_results(
    stored: Sequence[Mapping[str, Any]], appended: Sequence[Mapping[str, Any]], *, position: int
) -> tuple[BoundaryEvent, ...]:
    """Events for tool results of ``appended`` that answer no call of the last stored turn.

    A result that came in an earlier request stands before that turn; a template that merges adjacent results would
    have put the two together.

    Args:
        stored: the reused messages, the last of which is an assistant's.
        appended: what the request adds.
        position: where ``appended`` starts in the prompt, and is said to be of each of them.
    """
    calls = stored[-1].get("tool_calls") if stored else None
    called = [call.get("id") for call in calls or () if isinstance(call, Mapping)]
    texts = {call_id for call_id in called if isinstance(call_id, str)}
    others = [call_id for call_id in called if not isinstance(call_id, str)]
    late = []
    for index, message in enumerate(appended, start=len(stored)):
        if message.get("role") != "tool":
            continue
        answered = message.get("tool_call_id")
        # A result without an id answers whatever was called last, a call without one is answered by any result. Ids
        # are what an engine and a client sent: nothing says that they are text.
        known = answered in texts if isinstance(answered, str) else answered in others
        if not called or (answered and all(called) and not known):
            late.append(index)
    return tuple(
        BoundaryEvent("late_tool_result", position, f"message {index} answers no call of the turn before it")
        for index in late
    )
