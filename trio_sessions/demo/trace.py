"""From a session's records to its token sequence by origin, and to the sample that a trainer gets. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from trio_sessions.demo.failure import NotExact

__all__ = ["Origin", "Sample", "Segment", "Trace", "trace_session"]


class Origin(Enum):
    """Who put a token into the sequence."""

    PROMPT = "prompt"
    """The first request, rendered with the chat template."""

    TEMPLATE = "template"
    """Added between two turns: tool results, user messages and the template's markup around them."""

    SAMPLED = "sampled"
    """The engine."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens of one origin.

    Attributes:
        origin: of all of them.
        turn: index of the turn that brought them.
        token_ids: the tokens.
        log_probs: one per token where they were sampled, else empty.
    """

    origin: Origin
    turn: int
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """What a trainer gets of a session; three sequences of one length.

    Attributes:
        tokens: the whole sequence.
        loss_mask: 1 where the token was sampled, else 0.
        log_probs: the engine's log prob where the token was sampled, else 0.0.
        response_length: tokens from the first sampled one on.
    """

    tokens: tuple[int, ...]
    loss_mask: tuple[int, ...]
    log_probs: tuple[float, ...]
    response_length: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A session's token sequence, cut where its origin changes."""

    segments: tuple[Segment, ...]

    def sample(self) -> Sample:
        """The sequence as one training sample."""
        tokens: list[int] = []
        mask: list[int] = []
        log_probs: list[float] = []
        for segment in self.segments:
            sampled = segment.origin is Origin.SAMPLED
            tokens.extend(segment.token_ids)
            mask.extend([int(sampled)] * len(segment.token_ids))
            log_probs.extend(segment.log_probs if sampled else [0.0] * len(segment.token_ids))
        response_length = len(tokens) - mask.index(1) if 1 in mask else 0
        return Sample(tuple(tokens), tuple(mask), tuple(log_probs), response_length)


def trace_session(session: Mapping[str, Any]) -> Trace:
    """The trace of a session, from the body of ``GET /sessions/{id}``.

    Raises:
        NotExact: a prompt is not its predecessor's prompt and sampled ids with something after them, or the
            session's own sequence is not the last turn's. The text names the turn and the index.
    """
    segments: list[Segment] = []
    before: list[int] = []
    for turn, record in enumerate(session["records"]):
        prompt = record["request"]["input_ids"]
        _require_prefix(before, prompt, what=f"the prompt of turn {turn + 1}")
        sampled = record["response"]["choices"][0]["meta_info"]["output_token_logprobs"]
        origin = Origin.TEMPLATE if turn else Origin.PROMPT
        segments.append(Segment(origin, turn, tuple(prompt[len(before) :])))
        ids = [entry[1] for entry in sampled]
        segments.append(Segment(Origin.SAMPLED, turn, tuple(ids), tuple(entry[0] for entry in sampled)))
        before = [*prompt, *ids]
    accumulated = session["metadata"]["accumulated_token_ids"]
    _require_prefix(before, accumulated, what="the session's sequence")
    if len(accumulated) != len(before):
        raise NotExact(f"the session's sequence has {len(accumulated)} tokens, its last turn ends at {len(before)}")
    return Trace(tuple(segments))


def _require_prefix(before: Sequence[int], after: Sequence[int], *, what: str) -> None:
    for index, token_id in enumerate(before):
        if index >= len(after):
            raise NotExact(f"{what} has {len(after)} tokens, fewer than the {len(before)} that came before")
        if after[index] != token_id:
            raise NotExact(f"{what} has {after[index]} at index {index}, but {token_id} was there before")
