"""One line of turns, root to leaf, as one training sample.

Source of the rules: docs/samples.md. The order matters: outputs are aligned with the ids
that the leaf holds, then the turns that fit ``max_seq_len`` are chosen, then those are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trio_sessions.core.history import Checkpoint
from trio_sessions.core.prefix import common_prefix_length
from trio_sessions.core.samples.provenance import PROVENANCE, describe_turns, lifecycle
from trio_sessions.core.samples.replay import indexer_topk, routed_experts
from trio_sessions.core.samples.sample import PrefixCacheInfo, Sample, Status
from trio_sessions.core.samples.turns import Turn, TurnReader
from trio_sessions.core.tokens import TokenIds
from trio_sessions.errors import SampleAssemblyFailed

__all__ = ["AssemblyRules", "assemble"]


@dataclass(frozen=True, slots=True)
class AssemblyRules:
    """What assembly has to know of the launch.

    Attributes:
        decode: text of ids (int32, shape (n,)), control tokens included, nothing cleaned up.
        max_trim_tokens: how many trailing ids of a turn's output the next prompt may have replaced.
        num_layers: layers in a row of routed experts; needed where there are any.
        incremental_replay: whether a turn holds only the replay rows that it added.
    """

    decode: Callable[[TokenIds], str]
    max_trim_tokens: int
    num_layers: int | None = None
    incremental_replay: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """A turn's share of a sample: its prompt and the first ``kept`` ids of its output."""

    turn: Turn
    kept: int
    status: Status

    @property
    def end(self) -> int:
        return self.turn.prompt_length + self.kept


@dataclass(slots=True)
class _LeftOut:
    """Sampled ids of the line that the sample has not, by reason."""

    counts: dict[str, int] = field(
        default_factory=lambda: {"replaced": 0, "max_seq_len": 0, "after_unfinished_turn": 0, "after_replay_gap": 0}
    )

    def add(self, reason: str, pieces: Sequence[_Piece]) -> None:
        self.counts[reason] += sum(piece.kept for piece in pieces)


def assemble(
    path: Sequence[Checkpoint],
    rules: AssemblyRules,
    *,
    max_seq_len: int | None = None,
    reader: TurnReader | None = None,
) -> Sample | None:
    """The sample of a line of turns.

    Args:
        path: checkpoints from the root to the leaf, at least one.
        rules: what assembly knows of the launch.
        max_seq_len: most ids a sample may have. The first turn beyond it loses its tail, later ones are dropped.
        reader: shared between lines that have turns in common.

    Returns:
        The sample, or None where ``max_seq_len`` leaves no output.

    Raises:
        SampleAssemblyFailed: the turns do not make up one line of ids, or a replay payload is missing or damaged.
    """
    reader = reader or TurnReader()
    turns = [reader.read(checkpoint, index) for index, checkpoint in enumerate(path)]
    left_out = _LeftOut()
    pieces = _aligned(turns, rules.max_trim_tokens)
    left_out.counts["replaced"] = sum(piece.turn.output_length - piece.kept for piece in pieces)
    if max_seq_len is not None:
        pieces = _fitting(pieces, max_seq_len, left_out)
    if not pieces:
        return None
    return _sample(_merged(pieces, left_out, incremental=rules.incremental_replay), rules, left_out)


def _aligned(turns: Sequence[Turn], max_trim_tokens: int) -> list[_Piece]:
    """Every turn with as much of its output as the leaf still holds.

    A leaf's ids are its prompt and its own output, which is therefore held whole.
    """
    accumulated = turns[-1].checkpoint.tokens.materialize()
    pieces = []
    for turn in turns:
        output = turn.checkpoint.sampled_ids
        cursor = turn.prompt_length
        matched = common_prefix_length(output, accumulated[cursor : cursor + len(output)])
        trimmed = len(output) - matched
        if trimmed > max_trim_tokens:
            raise SampleAssemblyFailed(
                f"trim_count {trimmed} exceeds allowed={max_trim_tokens} "
                f"(is_last=False, max_trim_tokens={max_trim_tokens}); "
                f"output_ids[-3:]={output[-3:].tolist()}, "
                f"accumulated[cursor:cursor+3]={accumulated[cursor : cursor + 3].tolist()}"
            )
        pieces.append(_Piece(turn, matched, turn.status))
    return pieces


def _fitting(pieces: Sequence[_Piece], max_seq_len: int, left_out: _LeftOut) -> list[_Piece]:
    """The turns that fit, the last of them perhaps without its tail."""
    for index, piece in enumerate(pieces):
        over = piece.end - max_seq_len
        if over <= 0:
            continue
        left_out.add("max_seq_len", pieces[index:])
        if over >= piece.kept:
            return list(pieces[:index])
        cut = replace(piece, kept=piece.kept - over, status="truncated")
        left_out.counts["max_seq_len"] -= cut.kept
        return [*pieces[:index], cut]
    return list(pieces)


def _merged(pieces: Sequence[_Piece], left_out: _LeftOut, *, incremental: bool) -> list[_Piece]:
    """The leading turns that make up one sample."""
    merged = [pieces[0]]
    experts = pieces[0].turn.routed_experts is not None
    choices = pieces[0].turn.indexer_topk is not None
    for index, piece in enumerate(pieces[1:], start=1):
        before, turn = merged[-1], piece.turn
        if before.status != "completed":
            left_out.add("after_unfinished_turn", pieces[index:])
            break
        # In the incremental mode a missing payload of experts is a gap in the rows, which assembly refuses.
        if (experts and turn.routed_experts is None and not incremental) or (choices and turn.indexer_topk is None):
            left_out.add("after_replay_gap", pieces[index:])
            break
        if turn.prompt_length < before.end or not _starts_with(turn.checkpoint, before.turn.checkpoint, before.end):
            raise SampleAssemblyFailed(
                f"record {index} must start with the tokens of record {index - 1}: its prompt of {turn.prompt_length} "
                f"ids does not repeat the {before.end} ids up to the end of that turn"
            )
        merged.append(piece)
        experts, choices = turn.routed_experts is not None, turn.indexer_topk is not None
    return merged


def _starts_with(turn: Checkpoint, before: Checkpoint, length: int) -> bool:
    """Whether the first ``length`` ids are the same; ids that are shared by construction are not compared."""
    if turn.prompt.parent is before.tokens and turn.kept >= length:
        return True
    return bool(np.array_equal(turn.tokens.materialize()[:length], before.tokens.materialize()[:length]))


def _sample(pieces: Sequence[_Piece], rules: AssemblyRules, left_out: _LeftOut) -> Sample:
    turns = [piece.turn for piece in pieces]
    last = pieces[-1]
    ids = last.turn.checkpoint.tokens.materialize()[: last.end]
    start = pieces[0].turn.prompt_length
    loss_mask = np.zeros(len(ids) - start, dtype=np.uint8)
    log_probs = np.zeros(len(ids) - start, dtype=np.float64)
    texts = []
    before = start
    for piece in pieces:
        begin, end = piece.turn.prompt_length, piece.end
        if begin > before:
            texts.append(_text(ids[before:begin], rules))
        texts.append(_text(ids[begin:end], rules))
        loss_mask[begin - start : end - start] = 1
        log_probs[begin - start : end - start] = piece.turn.log_probs[: piece.kept]
        before = end
    rows = max(len(ids) - 1, 0)
    metadata: dict[str, Any] = {
        "lifecycle": lifecycle(turns),
        PROVENANCE: describe_turns(turns, [piece.end for piece in pieces], left_out.counts),
    }
    experts = routed_experts(turns, rows=rows, num_layers=rules.num_layers, incremental=rules.incremental_replay)
    choices = indexer_topk(turns, rows=rows, incremental=rules.incremental_replay)
    return Sample(
        tokens=_read_only(ids.astype(np.int64)),
        loss_mask=_read_only(loss_mask),
        rollout_log_probs=_read_only(log_probs),
        response="".join(texts),
        response_length=len(ids) - start,
        status=last.status,
        weight_versions=tuple(turn.weight_version for turn in turns if turn.weight_version is not None),
        prefix_cache_info=PrefixCacheInfo(
            cached_tokens=sum(turn.cached_tokens for turn in turns),
            total_prompt_tokens=sum(turn.prompt_tokens for turn in turns),
        ),
        metadata=metadata,
        rollout_routed_experts=None if experts is None else _read_only(experts),
        rollout_indexer_topk=None if choices is None else _read_only(choices),
    )


def _text(ids: TokenIds, rules: AssemblyRules) -> str:
    return rules.decode(ids) if len(ids) else ""


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array
