"""Where every id of a sample comes from, and what became of sampled ids that are not trained.

It stands in a sample's metadata under ``provenance``, next to what the contract asks for:

``spans``: entries ``{turn, kind, start, end}`` that tile the sample's tokens in order. ``kind`` is ``prompt``
(rendered), ``synthetic`` (a close that was added) or ``sampled``; a sampled span names the ``weight_version`` that
sampled it. ``turn`` is the index of the record, from 0.
``boundary_events``: what was declared at the seams, each with its ``turn``.
``loss_masked``: how many ids of the sample have no loss, by reason; with the trained ones they are all of them.
``not_in_sample``: how many sampled ids of the line the sample leaves out, by reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trio_sessions.core.samples.turns import Turn

__all__ = ["PROVENANCE", "describe_turns", "lifecycle", "sampled_spans", "with_shared"]

PROVENANCE: Final = "provenance"


def describe_turns(
    turns: Sequence[Turn], ends: Sequence[int], not_in_sample: Mapping[str, int]
) -> dict[str, list[dict[str, Any]] | dict[str, int]]:
    """The provenance of the sample of ``turns``.

    Args:
        turns: the turns it holds, from the first of the line on.
        ends: where each turn's kept output ends in the sample's tokens.
        not_in_sample: sampled ids it leaves out, by reason.
    """
    spans: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    masked = {"prompt": 0, "synthetic": 0}
    before = 0
    for number, (turn, end) in enumerate(zip(turns, ends, strict=True)):
        checkpoint = turn.checkpoint
        closed = min(max(checkpoint.kept, before), turn.prompt_length)
        rendered = min(max(checkpoint.kept + checkpoint.synthetic, closed), turn.prompt_length)
        for kind, start, stop in (
            ("prompt", before, closed),
            ("synthetic", closed, rendered),
            ("prompt", rendered, turn.prompt_length),
        ):
            if stop > start:
                spans.append({"turn": number, "kind": kind, "start": start, "end": stop})
                masked[kind] += stop - start
        for version in turn.version_spans:
            start, stop = turn.prompt_length + version.start, min(turn.prompt_length + version.end, end)
            if stop > start:
                spans.append(
                    {"turn": number, "kind": "sampled", "start": start, "end": stop, "weight_version": version.version}
                )
        events.extend({"turn": number, **event.to_json()} for event in checkpoint.events)
        before = end
    return {"spans": spans, "boundary_events": events, "loss_masked": masked, "not_in_sample": dict(not_in_sample)}


def lifecycle(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """When each turn ran, in seconds since the epoch; turns count from 1.

    ``t1`` is when it committed, ``t0`` when the engine took it up (None where it did not say how long it took),
    ``req_ts`` when its request arrived, ``prev_t1`` when the turn before it committed.
    """
    segments = []
    for number, turn in enumerate(turns, start=1):
        record = turn.checkpoint.record
        segment: dict[str, Any] = {
            "t0": None if turn.latency is None else record.timestamp - turn.latency,
            "t1": record.timestamp,
            "turn": number,
            "req_ts": record.request_timestamp,
        }
        if number > 1:
            segment["prev_t1"] = turns[number - 2].checkpoint.record.timestamp
        segments.append(segment)
    return segments


def sampled_spans(metadata: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    """``(turn, start, end)`` of what was sampled in a sample with this metadata; turns count from 0."""
    return [
        (span["turn"], span["start"], span["end"])
        for span in metadata[PROVENANCE]["spans"]
        if span["kind"] == "sampled"
    ]


def with_shared(provenance: Mapping[str, Any], masked: int) -> dict[str, Any]:
    """The same provenance with ``masked`` sampled ids that have no loss because another sample trains them."""
    return {**provenance, "loss_masked": {**provenance["loss_masked"], "shared": masked}}
