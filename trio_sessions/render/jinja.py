"""The chat template as a function from messages to text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from jinja2.exceptions import TemplateError

from trio_sessions.errors import InvalidRequest

__all__ = ["ChatTemplate"]

# What a template raises on data it was not written for; a template is a program of somebody else's.
_TEMPLATE_FAILURES: Final = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
_LONGEST_REASON: Final = 300


class ChatTemplate:
    """Renders conversations with a tokenizer's template, or with one given instead of it. Thread-safe.

    Attributes:
        special_token_names: names under which the template sees the special tokens (``bos_token`` and the like).
    """

    def __init__(self, tokenizer: Any, template: str | None = None) -> None:
        """Bind a template.

        Args:
            tokenizer: of ``transformers``; has a chat template unless one is given.
            template: jinja text that replaces the tokenizer's own.
        """
        self._tokenizer = tokenizer
        self._template = template
        own = tokenizer.chat_template if template is None else template
        self._text = "\n".join(own.values()) if isinstance(own, Mapping) else str(own)
        self.special_token_names = frozenset(tokenizer.SPECIAL_TOKENS_ATTRIBUTES)

    def mentions(self, name: str) -> bool:
        """Whether ``name`` occurs in the template; a kwarg whose name does not cannot change what is rendered."""
        return re.search(rf"\b{re.escape(name)}\b", self._text) is not None

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
            InvalidRequest: the template refuses the conversation, or cannot cope with its shape.
        """
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages),
                tools=tools,
                chat_template=self._template,
                add_generation_prompt=generation,
                tokenize=False,
                **({} if now is None else {"strftime_now": now.strftime}),
                **kwargs,
            )
        except RecursionError as error:
            raise InvalidRequest("the chat template cannot render the messages: they are nested too deeply") from error
        except _TEMPLATE_FAILURES as error:
            raise InvalidRequest(f"the chat template refuses the messages: {_reason(error)}") from error
        return str(text)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, TemplateError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"
