"""Compare a served token sequence with the canonical rendering of the same conversation.

Both sequences are cut at special tokens; structure is compared first, then the special tokens, then the text between
them. A different *spelling* by the sampler (other ids, same text) is no difference at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Mismatch", "MismatchType"]

MismatchType = Literal["special_token_count", "special_token_type", "non_assistant_text", "assistant_text"]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One finding, in the words of the contract.

    Attributes:
        type: ``special_token_count`` (the structure differs, one finding for the whole), ``special_token_type``,
            ``non_assistant_text`` (template or client text differs: a defect of the gateway) or ``assistant_text``
            (what was sampled is not what the template would have written: expected, and worth counting).
        segment_index: index of the segment, -1 for a structural finding.
        expected_text: text of the canonical rendering.
        actual_text: text of the served sequence.
        detail: one line for a person.
    """

    type: MismatchType
    segment_index: int
    expected_text: str
    actual_text: str
    detail: str
