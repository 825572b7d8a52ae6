"""The ids that this dialect issues for tool calls and as signatures: each leads to the answer that it is in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["IssuedCall", "call_id", "issued_call", "signed_answer"]

_CALL: Final = re.compile(r"tool(msg_[0-9a-f]{32})_([0-9]{1,6})")
_ANSWER: Final = re.compile(r"msg_[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class IssuedCall:
    """What such an id says.

    Attributes:
        response_id: of the answer.
        index: of the call in it.
    """

    response_id: str
    index: int


def call_id(response_id: str, index: int) -> str:
    """The id of a call that the engine gave none of its own."""
    return f"tool{response_id}_{index}"


def issued_call(id_: str) -> IssuedCall | None:
    """What ``id_`` says; None where it is not one of ours."""
    match = _CALL.fullmatch(id_)
    return None if match is None else IssuedCall(match[1], int(match[2]))


def signed_answer(signature: Any) -> str | None:
    """The response id that signs the reasoning of an answer; None where somebody else signed."""
    return signature if isinstance(signature, str) and _ANSWER.fullmatch(signature) else None
