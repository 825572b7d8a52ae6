"""A renderer without a tokenizer: bytes are ids. For tests of what is around rendering."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trio_sessions.core.boundary import BoundaryEvent
from trio_sessions.core.compare import Mismatch
from trio_sessions.core.tokens import TokenIds, as_token_ids
from trio_sessions.errors import InvalidRequest
from trio_sessions.render.base import Extension, Message, TemplateKwargs, Tools

__all__ = ["TOY_END", "TOY_START", "ToyRenderer"]

TOY_START: Final = 256
TOY_END: Final = 257
# A second id for every byte, so that a sampler can spell a text in a way that the renderer never would.
_OTHER_SPELLING: Final = 512


class ToyRenderer:
    """A message is ``<start>``, role, line feed, content, ``<end>``; ids are bytes, or 512 + byte to the same effect.

    Attributes:
        rendered: how many messages were rendered so far, to show that history is not.
    """

    name = "toy"
    max_trim_tokens = 0

    def __init__(self) -> None:
        self.rendered = 0

    def appendable_roles(self, kwargs: TemplateKwargs) -> frozenset[str]:
        """User, tool and system."""
        return frozenset({"user", "tool", "system"})

    def effective_kwargs(self, requested: TemplateKwargs) -> dict[str, Any]:
        """The request's own; ``{"pinned": ...}`` other than True is refused."""
        if requested.get("pinned", True) is not True:
            raise InvalidRequest(f"chat_template_kwargs pinned={requested['pinned']!r} contradicts the pinned True")
        return dict(requested)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None,
        kwargs: TemplateKwargs,
        now: datetime | None = None,
    ) -> TokenIds:
        """See ``Renderer.render``."""
        return as_token_ids([*self._spell(messages), TOY_START, *b"assistant\n"])

    def extend(
        self,
        stored_ids: TokenIds,
        *,
        stored_messages: Sequence[Message],
        appended: Sequence[Message],
        tools: Tools | None,
        kwargs: TemplateKwargs,
        now: datetime | None = None,
    ) -> Extension:
        """See ``Renderer.extend``."""
        close = [] if len(stored_ids) and stored_ids[-1] == TOY_END else [TOY_END]
        suffix = [*close, *self._spell(appended), TOY_START, *b"assistant\n"]
        position = len(stored_ids)
        closed = BoundaryEvent("turn_closed", position, "the turn before it had no stop id and was closed")
        return Extension(
            keep=position,
            token_ids=as_token_ids(suffix),
            synthetic=len(close),
            events=(closed,) if close else (),
        )

    def canonical(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None,
        kwargs: TemplateKwargs,
        now: datetime | None = None,
    ) -> TokenIds:
        """See ``Renderer.canonical``."""
        return as_token_ids(self._spell(messages))

    def compare(
        self, expected: TokenIds, actual: TokenIds, sampled: npt.NDArray[np.bool_], *, kwargs: TemplateKwargs
    ) -> list[Mismatch]:
        """One finding when the texts differ."""
        wanted, got = self.decode(expected), self.decode(actual)
        if wanted.removesuffix("<end>") == got.removesuffix("<end>"):
            return []
        return [Mismatch("assistant_text", 0, wanted, got, "texts differ")]

    def decode(self, token_ids: TokenIds) -> str:
        """Text of ids."""
        special = {TOY_START: b"<start>", TOY_END: b"<end>"}
        return b"".join(special.get(i, bytes([i % 256])) for i in token_ids.tolist()).decode(errors="replace")

    def weight(
        self,
        messages: Sequence[Message],
        *,
        stored: Sequence[Message] = (),
        tools: Tools | None,
        kwargs: TemplateKwargs,
    ) -> int:
        """See ``Renderer.weight``."""
        return sum(len(str(message.get("content"))) for message in messages)

    def _spell(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            self.rendered += 1
            text = f"{message['role']}\n{message.get('content') or ''}"
            ids += [TOY_START, *text.encode(errors="surrogatepass"), TOY_END]
        return ids


def sampled_ids(text: str) -> list[int]:
    """Ids that spell ``text`` as no rendering would, with the stop id."""
    return [byte + _OTHER_SPELLING * (index % 2) for index, byte in enumerate(text.encode())] + [TOY_END]
