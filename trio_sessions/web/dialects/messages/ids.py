"""The ids that this dialect issues for tool calls: each leads to the answer that the call is in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["IssuedCall", "call_id", "issued_call"]

_CALL: Final = re.compile(r"tool(msg_[0-9a-f]{32})_([0-9]{1,6})")


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
