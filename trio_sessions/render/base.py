"""What the rest of the package knows of rendering: messages go in, token ids come out.

Nothing in this module imports a tokenizer library, so that the service can be typed, and tested with a toy renderer,
without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trio_sessions.core.boundary import BoundaryEvent, Origin
from trio_sessions.core.compare import Mismatch

__all__ = ["Extension", "Message", "Renderer", "TemplateKwargs", "TokenIds", "Tools"]

Message = Mapping[str, Any]
Tools = Sequence[Any]
TemplateKwargs = Mapping[str, Any]
TokenIds = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Extension:
    """What follows stored ids on the next turn.

    The next prompt is ``stored_ids[:keep] + token_ids``.

    Attributes:
        keep: how many stored ids stay, ``len(stored_ids)`` except where a stop id has to become the opener of the
            next role; never less than ``len(stored_ids) - max_trim_tokens``.
        token_ids: int32, shape (n,); closes the last turn if it was left open, then renders the appended messages and
            the generation opener.
        synthetic: how many leading ids of ``token_ids`` close a turn that the engine left without a stop id. They were
            never sampled and are never trained.
        events: what is to be declared about the seam.
    """

    keep: int
    token_ids: TokenIds
    synthetic: int = 0
    events: tuple[BoundaryEvent, ...] = ()

    @property
    def origins(self) -> npt.NDArray[np.uint8]:
        """An ``Origin`` for every id of ``token_ids``, shape (n,)."""
        origins = np.full(len(self.token_ids), Origin.TEMPLATE, dtype=np.uint8)
        origins[: self.synthetic] = Origin.SYNTHETIC
        return origins


class Renderer(Protocol):
    """Renders one model family's chat format. Implementations are thread-safe and hold no session state.

    Every method is synchronous and may take long for long texts: see ``weight``.
    """

    @property
    def name(self) -> str:
        """Family name for logs and the start-up banner."""

    @property
    def max_trim_tokens(self) -> int:
        """How many trailing stored ids an extension may replace (0 or 1)."""

    def appendable_roles(self, kwargs: TemplateKwargs) -> frozenset[str]:
        """Roles that may be appended after a sampled assistant turn under these effective kwargs.

        Raises:
            InvalidRequest: the template cannot be used under them.
        """

    def effective_kwargs(self, requested: TemplateKwargs) -> dict[str, Any]:
        """The launch defaults overlaid with a request's ``chat_template_kwargs``.

        Raises:
            InvalidRequest: the request contradicts a value that the family pins.
        """

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None,
        kwargs: TemplateKwargs,
        now: datetime | None = None,
    ) -> TokenIds:
        """The whole conversation with the generation opener, as ids (int32, shape (n,)).

        Args:
            messages: the conversation.
            tools: tool definitions as the client sent them, or None.
            kwargs: effective template kwargs of this turn.
            now: what a template that asks for the date is told, in local time; None is the present.

        Raises:
            InvalidRequest: the template refuses the conversation; the text says why.
            TokenizationFailed: the text could not be encoded.
        """

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
        """What follows ``stored_ids`` when ``appended`` comes after ``stored_messages``; history is not encoded.

        Args:
            stored_ids: int32, shape (n,); ends with what the engine sampled last.
            stored_messages: the conversation that ``stored_ids`` stands for; its last message is an assistant's.
            appended: messages of ``appendable_roles``; may be empty (generate again on top).
            tools: tool definitions as the client sent them, or None.
            kwargs: effective template kwargs of this turn.
            now: as for ``render``.

        Raises:
            InvalidRequest: the template refuses the appended messages.
            TokenizationFailed: the junction cannot be cut on a token boundary.
        """

    def canonical(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None,
        kwargs: TemplateKwargs,
        now: datetime | None = None,
    ) -> TokenIds:
        """The whole conversation as the template alone would spell it, without a generation opener.

        Raises: as ``render``.
        """

    def compare(
        self, expected: TokenIds, actual: TokenIds, sampled: npt.NDArray[np.bool_], *, kwargs: TemplateKwargs
    ) -> list[Mismatch]:
        """How ``actual`` (what was sampled and served) differs from ``expected`` (the canonical rendering).

        Args:
            expected: canonical ids.
            actual: served ids, shape (n,).
            sampled: shape (n,); True where the engine sampled the id, which tells a sampler's spelling from ours.
            kwargs: effective kwargs that ``expected`` was rendered with.
        """

    def decode(self, token_ids: TokenIds) -> str:
        """The text of ids, special tokens included, nothing cleaned up."""

    def weight(
        self,
        messages: Sequence[Message],
        *,
        stored: Sequence[Message] = (),
        tools: Tools | None,
        kwargs: TemplateKwargs,
    ) -> int:
        """Roughly how many characters rendering ``messages`` behind ``stored`` costs, to tell when a thread is due.

        A renderer that has to do more for kwargs it has not met says so by a larger number.
        """
