"""Compare a served token sequence with the canonical rendering of the same conversation.

Both sequences are cut at special tokens; structure is compared first, then the special tokens, then the text between
them. A different *spelling* by the sampler (other ids, same text) is no difference at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Header", "Mismatch", "MismatchType", "compare_token_ids"]

MismatchType = Literal["special_token_count", "special_token_type", "non_assistant_text", "assistant_text"]
Header: TypeAlias = tuple[int | str, ...]
"""What opens an assistant turn: special ids and the text around them, in order."""

_Ids: TypeAlias = npt.NDArray[np.integer[Any]]
_Decode: TypeAlias = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One finding, in the words of the contract.

    Attributes:
        type: ``special_token_count`` (the structure differs, one finding for the whole), ``special_token_type``,
            ``non_assistant_text`` (template or client text differs: a defect of the gateway) or ``assistant_text``
            (what was sampled is not what the template would have written: expected, and worth counting).
        segment_index: index of the segment, -1 for a structural finding. A special token is a segment, and so is the
            run of ordinary tokens between two of them.
        expected_text: text of the canonical rendering.
        actual_text: text of the served sequence.
        detail: one line for a person.
    """

    type: MismatchType
    segment_index: int
    expected_text: str
    actual_text: str
    detail: str

    def to_json(self) -> dict[str, Any]:
        """The finding as it stands in a session's metadata."""
        return {
            "type": self.type,
            "segment_index": self.segment_index,
            "expected_text": self.expected_text,
            "actual_text": self.actual_text,
            "detail": self.detail,
        }


def compare_token_ids(
    expected: _Ids,
    actual: _Ids,
    sampled: npt.NDArray[np.bool_],
    *,
    special_ids: Collection[int],
    stop_ids: Collection[int],
    decode: _Decode,
    assistant_header: Header = (),
) -> list[Mismatch]:
    """How ``actual`` differs from ``expected``, segment by segment.

    Args:
        expected: ids of the canonical rendering, shape (m,).
        actual: ids that were served and sampled, shape (n,).
        sampled: shape (n,); True where the engine sampled the id.
        special_ids: ids at which both sequences are cut.
        stop_ids: ids that end a turn; trailing ones are left out of the comparison on both sides.
        decode: text of ids, special tokens included, nothing cleaned up.
        assistant_header: what opens an assistant turn. It tells an assistant turn that the client brought from
            template text; with an empty one only sampled text counts as the assistant's.

    Returns:
        The findings in order of ``segment_index``; a structural difference is the only finding there is.

    Raises:
        ValueError: ``sampled`` has another length than ``actual``.
    """
    if len(sampled) != len(actual):
        raise ValueError(f"sampled has {len(sampled)} entries for {len(actual)} ids")
    stops = np.array(sorted(stop_ids), dtype=np.int64)
    specials = np.array(sorted(special_ids), dtype=np.int64)
    wanted = _Segments.cut(_without_trailing(expected, stops), specials)
    got = _Segments.cut(_without_trailing(actual, stops), specials)

    structural = _structural_mismatch(wanted, got, decode)
    if structural is not None:
        return [structural]
    findings: list[Mismatch] = []
    assistants: frozenset[int] | None = None
    for index in range(len(got)):
        left, right = wanted[index], got[index]
        if np.array_equal(left, right):
            continue
        expected_text, actual_text = decode(left.tolist()), decode(right.tolist())
        if got.special[index]:
            findings.append(
                Mismatch("special_token_type", index, expected_text, actual_text, "another special token is expected")
            )
            continue
        if expected_text == actual_text:
            continue
        if assistants is None:
            assistants = _assistant_segments(got, assistant_header, frozenset(stop_ids), decode)
        start, end = got.span(index)
        if sampled[start:end].any():
            kind: MismatchType = "assistant_text"
            detail = "the sampled text is not what the template writes for it"
        elif index in assistants:
            kind, detail = "assistant_text", "an assistant turn of the client is rendered differently"
        else:
            kind, detail = "non_assistant_text", "text that was not sampled is rendered differently"
        findings.append(Mismatch(kind, index, expected_text, actual_text, detail))
    return findings


@dataclass(frozen=True, slots=True)
class _Segments:
    """Ids cut at special tokens: segment ``i`` is ``ids[bounds[i]:bounds[i + 1]]``; ``special[i]`` tells its kind."""

    ids: _Ids
    bounds: list[int]
    special: list[bool]

    @classmethod
    def cut(cls, ids: _Ids, specials: npt.NDArray[np.int64]) -> _Segments:
        if len(ids) == 0:
            return cls(ids, [0], [])
        special = np.isin(ids, specials)
        # A segment starts at every special token and at every ordinary one that follows a special one.
        starts = special.copy()
        starts[0] = True
        starts[1:] |= special[:-1]
        positions = np.flatnonzero(starts)
        return cls(ids, [*positions.tolist(), len(ids)], special[positions].tolist())

    def __len__(self) -> int:
        return len(self.special)

    def __getitem__(self, index: int) -> _Ids:
        return self.ids[self.bounds[index] : self.bounds[index + 1]]

    def span(self, index: int) -> tuple[int, int]:
        return self.bounds[index], self.bounds[index + 1]


def _without_trailing(ids: _Ids, stops: npt.NDArray[np.int64]) -> _Ids:
    kept = np.flatnonzero(~np.isin(ids, stops))
    return ids[: int(kept[-1]) + 1] if len(kept) else ids[:0]


def _structural_mismatch(expected: _Segments, actual: _Segments, decode: _Decode) -> Mismatch | None:
    if expected.special == actual.special:
        return None
    first = next(
        (i for i, (a, b) in enumerate(zip(expected.special, actual.special, strict=False)) if a != b),
        min(len(expected), len(actual)),
    )
    return Mismatch(
        "special_token_count",
        -1,
        _outline(expected, decode),
        _outline(actual, decode),
        f"the structure differs from segment {first} on: {len(expected)} segments expected, {len(actual)} found",
    )


def _outline(segments: _Segments, decode: _Decode) -> str:
    return " ".join(
        decode(segments[i].tolist()) if special else f"({len(segments[i])} tokens)"
        for i, special in enumerate(segments.special)
    )


def _assistant_segments(segments: _Segments, header: Header, stops: frozenset[int], decode: _Decode) -> frozenset[int]:
    """Indices of ordinary segments inside assistant turns: from a header to the next stop id."""
    if not header:
        return frozenset()
    inside: set[int] = set()
    last = len(header) - 1
    within = False
    for index, special in enumerate(segments.special):
        if special and int(segments[index][0]) in stops:
            within = False
        # A header whose last part is a special token is complete only once that token was passed.
        if index >= last and _matches(segments, index - last, header, decode):
            within = True
        if within and not special:
            inside.add(index)
    return frozenset(inside)


def _matches(segments: _Segments, start: int, header: Header, decode: _Decode) -> bool:
    for offset, part in enumerate(header):
        index = start + offset
        if isinstance(part, int):
            if not segments.special[index] or segments[index][0] != part:
                return False
            continue
        if segments.special[index]:
            return False
        text = decode(segments[index].tolist())
        # Whatever precedes the header shares the first segment, and the assistant's own text shares the last.
        fits = (
            part in text
            if len(header) == 1
            else text.endswith(part)
            if offset == 0
            else text.startswith(part)
            if offset == len(header) - 1
            else text == part
        )
        if not fits:
            return False
    return True
