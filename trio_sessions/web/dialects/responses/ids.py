"""The ids that this dialect issues: all of one answer share their hex digits, so that each leads to the answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["Issued", "ItemIds", "issued", "issued_call"]

_ITEM: Final = re.compile(r"(?:rs|msg|fc|ctc)_([0-9a-f]{32})(?:_([0-9]{1,6}))?")
_CALL: Final = re.compile(r"call_([0-9a-f]{32})_([0-9]{1,6})")


@dataclass(frozen=True, slots=True)
class Issued:
    """What an id says.

    Attributes:
        response_id: of the answer.
        call: index of the tool call in the answer; None for what is no call.
    """

    response_id: str
    call: int | None


@dataclass(frozen=True, slots=True)
class ItemIds:
    """The ids of one answer; ``digits`` are 32 hex digits."""

    digits: str

    @property
    def response(self) -> str:
        """Of the answer itself."""
        return f"resp_{self.digits}"

    @property
    def reasoning(self) -> str:
        """Of its reasoning."""
        return f"rs_{self.digits}"

    @property
    def message(self) -> str:
        """Of its text."""
        return f"msg_{self.digits}"

    def function_call(self, index: int) -> str:
        """Of its tool call number ``index``."""
        return f"fc_{self.digits}_{index}"

    def custom_call(self, index: int) -> str:
        """Likewise, where the tool is a custom one."""
        return f"ctc_{self.digits}_{index}"

    def call(self, index: int) -> str:
        """What the result of a call names, where the engine gave no id of its own to name."""
        return f"call_{self.digits}_{index}"


def issued(item_id: str | None) -> Issued | None:
    """What the id of an item says; None where it is not one of ours."""
    return _said(_ITEM, item_id)


def issued_call(call_id: str) -> Issued | None:
    """What the id of a call says; None where it is the engine's."""
    return _said(_CALL, call_id)


def _said(pattern: re.Pattern[str], id_: str | None) -> Issued | None:
    match = None if id_ is None else pattern.fullmatch(id_)
    if match is None:
        return None
    return Issued(response_id=f"resp_{match[1]}", call=None if match[2] is None else int(match[2]))
