"""What a sample needs of one turn, read from the engine's recorded answer. Replay payloads are only located."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from trio_sessions.core.completion import decode_log_probs
from trio_sessions.core.history import Checkpoint
from trio_sessions.core.samples.sample import Status
from trio_sessions.errors import SampleAssemblyFailed

__all__ = ["Turn", "TurnReader", "VersionSpan"]

_STATUS: Final[dict[str | None, Status]] = {
    "stop": "completed",
    "tool_calls": "completed",
    "length": "truncated",
    "abort": "aborted",
}


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Sampled ids that one version of the weights is answerable for.

    Attributes:
        version: its name, None where the engine gave none.
        start: index of the first id in the turn's output.
        end: index behind the last.
    """

    version: str | None
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One turn of a line.

    Attributes:
        checkpoint: where its ids are.
        log_probs: of the sampled ids, float64, shape (n,).
        status: what its finish reason means for a sample that ends here.
        weight_version: as the answer names it, or None.
        version_spans: which version sampled which ids, in order and without gaps.
        cached_tokens: prompt ids that the engine had in its cache; 0 where it says nothing.
        prompt_tokens: prompt ids as the engine counted them; 0 where it says nothing.
        latency: seconds the engine spent, or None.
        routed_experts: JSON string of base64 int32, a view of the recorded answer, or None.
        routed_experts_start: the first row that the request asked for, or None.
        indexer_topk: as ``routed_experts``.
        indexer_layers: layers in a row of ``indexer_topk``, or None.
    """

    checkpoint: Checkpoint
    log_probs: npt.NDArray[np.float64]
    status: Status
    weight_version: str | None
    version_spans: tuple[VersionSpan, ...]
    cached_tokens: int
    prompt_tokens: int
    latency: float | None
    routed_experts: msgspec.Raw | None
    routed_experts_start: int | None
    indexer_topk: msgspec.Raw | None
    indexer_layers: int | None

    @property
    def prompt_length(self) -> int:
        """How many ids the prompt has."""
        return self.checkpoint.prompt_length

    @property
    def output_length(self) -> int:
        """How many ids were sampled."""
        return len(self.checkpoint.sampled_ids)


class _Version(msgspec.Struct, gc=False):
    version: str | int
    start: int
    end: int


class _MetaInfo(msgspec.Struct, gc=False):
    output_token_logprobs: msgspec.Raw
    weight_version: str | int | None = None
    weight_versions: list[_Version] | None = None
    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    e2e_latency: float | None = None
    routed_experts: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    indexer_topk: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    indexer_topk_num_layers: int | None = None


class _Choice(msgspec.Struct):
    meta_info: _MetaInfo


class _Answer(msgspec.Struct):
    choices: list[msgspec.Raw]


_answer_decoder = msgspec.json.Decoder(_Answer)
_choice_decoder = msgspec.json.Decoder(_Choice)


class TurnReader:
    """Reads turns, each checkpoint once: the leaves of a forest share most of theirs."""

    def __init__(self) -> None:
        # Keyed by identity; the turn keeps its checkpoint, and so the key, alive.
        self._turns: dict[int, Turn] = {}

    def read(self, checkpoint: Checkpoint, index: int) -> Turn:
        """The turn of ``checkpoint``; ``index`` counts from 0 and only names it in an error.

        Raises:
            SampleAssemblyFailed: the recorded meta info is not what an engine means by it.
        """
        turn = self._turns.get(id(checkpoint))
        if turn is None:
            turn = self._turns[id(checkpoint)] = _read(checkpoint, index)
        return turn


def _read(checkpoint: Checkpoint, index: int) -> Turn:
    try:
        choices = _answer_decoder.decode(checkpoint.record.response).choices
        meta = _choice_decoder.decode(choices[0]).meta_info if choices else None
        log_probs = None if meta is None else decode_log_probs(meta.output_token_logprobs)
    except msgspec.MsgspecError as error:
        raise SampleAssemblyFailed(f"record {index} holds meta info that cannot be read: {error}") from error
    if meta is None or log_probs is None:
        raise SampleAssemblyFailed(f"record {index} holds an answer without choices")
    named = None if meta.weight_version is None else str(meta.weight_version)
    return Turn(
        checkpoint=checkpoint,
        log_probs=log_probs,
        status=_STATUS.get(checkpoint.finish_reason, "pending"),
        weight_version=named,
        version_spans=_version_spans(meta, named, len(checkpoint.sampled_ids), index),
        cached_tokens=meta.cached_tokens or 0,
        prompt_tokens=meta.prompt_tokens or 0,
        latency=meta.e2e_latency,
        routed_experts=_payload(meta.routed_experts),
        routed_experts_start=checkpoint.record.routed_experts_start,
        indexer_topk=_payload(meta.indexer_topk),
        indexer_layers=meta.indexer_topk_num_layers,
    )


def _version_spans(meta: _MetaInfo, named: str | None, output_length: int, index: int) -> tuple[VersionSpan, ...]:
    if meta.weight_versions is None:
        return (VersionSpan(named, 0, output_length),) if output_length else ()
    spans: list[VersionSpan] = []
    at = 0
    for span in meta.weight_versions:
        if not at <= span.start <= span.end <= output_length:
            raise SampleAssemblyFailed(
                f"record {index} has weight_versions [{span.start}, {span.end}) that overlap or leave its "
                f"{output_length} output tokens"
            )
        if span.start > at:
            spans.append(VersionSpan(None, at, span.start))
        if span.end > span.start:
            spans.append(VersionSpan(str(span.version), span.start, span.end))
        at = span.end
    if output_length > at:
        spans.append(VersionSpan(None, at, output_length))
    return tuple(spans)


def _payload(raw: msgspec.Raw | msgspec.UnsetType) -> msgspec.Raw | None:
    if isinstance(raw, msgspec.UnsetType) or bytes(memoryview(raw)[:4]) == b"null":
        return None
    return raw
