"""What the probe and the renderer need of a chat format: a conversation as text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

__all__ = ["ConversationTemplate"]


class ConversationTemplate(Protocol):
    """A conversation as the text whose encoding is the prompt. Implementations are thread-safe."""

    @property
    def special_token_names(self) -> Collection[str]:
        """Names of kwargs that stand for the tokenizer's special tokens: facts of the model, not options."""

    def mentions(self, name: str) -> bool:
        """Whether a kwarg of this name can change what is rendered."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None,
        kwargs: Mapping[str, Any],
        generation: bool,
        now: datetime | None = None,
    ) -> str:
        """The conversation as text.

        Args:
            messages: normalised messages.
            tools: tool definitions in the form the template wants, or None.
            kwargs: effective template kwargs.
            generation: whether the opener of an assistant turn follows.
            now: what the template gets for the present date, in local time; None is the present.

        Raises:
            InvalidRequest: the conversation is refused, or of a shape that cannot be rendered.
            TokenizationFailed: the format is made of ids, which their text does not encode to.
        """
