"""How a decoded value is read as what it has to be, or told to be something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from trio_sessions.errors import InvalidRequest

__all__ = ["EngineFields", "shaped"]

_T = TypeVar("_T")


class EngineFields(msgspec.Struct, gc=False, kw_only=True):
    """What engines know of a chat request beside what an API has; clients may send it in any dialect."""

    chat_template_kwargs: dict[str, Any] | None = None
    seed: int | None = None
    separate_reasoning: bool | None = None
    skip_special_tokens: bool | None = None

    def engine_fields(self) -> Mapping[str, Any]:
        """Those that the request has."""
        fields = {name: getattr(self, name) for name in EngineFields.__struct_fields__}
        return {name: value for name, value in fields.items() if value is not None}


def shaped(value: Any, shape: type[_T], place: str) -> _T:
    """Decoded ``value`` as ``shape``.

    Args:
        value: decoded JSON.
        shape: a class of the dialect.
        place: where it stands in the request; empty for the body itself.

    Raises:
        InvalidRequest: it is something else; the text names the place.
    """
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        said, _, path = str(error).partition(" - at `$")
        at = f"{place}{path.removesuffix('`')}".removeprefix(".") or "the request body"
        raise InvalidRequest(f"{at}: {said[:1].lower()}{said[1:]}") from None
