"""The chat template as a function from messages to text."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
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
_CLOCK: Final = "strftime_now"
# transformers hands a template plain data only, so the clock it is to see is a macro over a table. The line
# ends behind the macro, which is where a template's first line has to start.
_FROZEN_CLOCK: Final = (
    "{%- macro strftime_now(format) -%}{%- set at = namespace(directive='') -%}{%- for c in format -%}"
    "{%- if at.directive -%}{%- set at.directive = at.directive + c -%}"
    "{%- if c not in '-_0^#EO' -%}{{- frozen_clock.get(at.directive, at.directive) -}}{%- set at.directive = '' -%}"
    "{%- endif -%}{%- elif c == '%' -%}{%- set at.directive = c -%}{%- else -%}{{- c -}}{%- endif -%}"
    "{%- endfor -%}{{- at.directive -}}{%- endmacro %}\n"
)
_FLAGS: Final = ("", "-", "_", "0", "^", "#", "E", "O")


class ChatTemplate:
    """Implements ``ConversationTemplate`` with a tokenizer's jinja template, or with one given instead of it.

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
        text = "\n".join(own.values()) if isinstance(own, Mapping) else str(own)
        # A client may send any number of names.
        self._names = frozenset(re.findall(r"\w+", text))
        self.special_token_names = frozenset(tokenizer.SPECIAL_TOKENS_ATTRIBUTES)

    def mentions(self, name: str) -> bool:
        """Whether ``name`` occurs in the template; see ``ConversationTemplate.mentions``."""
        return name in self._names

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None,
        kwargs: Mapping[str, Any],
        generation: bool,
        now: datetime | None = None,
    ) -> str:
        """See ``ConversationTemplate.render``."""
        try:
            template, clock = self._template, {}
            if now is not None and self.mentions(_CLOCK):
                template = _FROZEN_CLOCK + self._tokenizer.get_chat_template(template, tools)
                clock = {"frozen_clock": dict(_directives(now))}
            text = self._tokenizer.apply_chat_template(
                list(messages),
                tools=tools,
                chat_template=template,
                add_generation_prompt=generation,
                tokenize=False,
                **clock,
                **kwargs,
            )
        except RecursionError as error:
            raise InvalidRequest("the chat template cannot render the messages: they are nested too deeply") from error
        except _TEMPLATE_FAILURES as error:
            raise InvalidRequest(f"the chat template refuses the messages: {_reason(error)}") from error
        return str(text)


@lru_cache(maxsize=64)
def _directives(now: datetime) -> Mapping[str, str]:
    """What every directive of ``strftime`` stands for at ``now``, with one flag or none."""
    return {
        directive: now.strftime(directive)
        for letter in (*string.ascii_letters, "%")
        for flag in _FLAGS
        if (directive := f"%{flag}{letter}")
    }


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, TemplateError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"
