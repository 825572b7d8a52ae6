"""Chat formats that have no template one could serve, as the ``renderers`` library writes them.

The library makes ids. They are turned into the text that they spell, so that the probe, the escaping of control tokens
and the splice treat such a format like any chat template; what is encoded from that text is compared with the
library's ids, so that nothing is lost on the way.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from trio_sessions.errors import ConfigurationError, InvalidRequest, LibraryMissing, TokenizationFailed
from trio_sessions.render.codec import TextCodec

__all__ = ["LibraryTemplate"]

_EXTRA: Final = "trio-sessions[renderers]"
# Clients toggle a kwarg or two; one that draws new values for ever must not fill the memory.
_MOST_RENDERERS: Final = 32
_LONGEST_REASON: Final = 300
_START_DATE: Final = "conversation_start_date"
# What the library raises for a conversation it was not written for. It documents none of it.
_FAILURES: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class LibraryTemplate:
    """Implements ``ConversationTemplate`` with a renderer of the library."""

    special_token_names: Collection[str] = frozenset()

    def __init__(self, tokenizer: Any, codec: TextCodec, name: str) -> None:
        """Bind a format.

        Args:
            tokenizer: of ``transformers``.
            codec: the same tokenizer's.
            name: the format's name in the library.

        Raises:
            LibraryMissing: the library is not installed; the text says what to do.
            ConfigurationError: the tokenizer is not one of this format.
        """
        try:
            # An extra, and slow to import.
            import renderers
        except ImportError as error:
            raise LibraryMissing(
                f"install the renderers library, which knows formats without a template: pip install '{_EXTRA}'"
            ) from error
        self._create = renderers.create_renderer
        self._config = type(renderers.config_from_name(name))
        self._tokenizer = tokenizer
        self._codec = codec
        self._fields: frozenset[str] = self._config.template_field_names()
        self._renderers: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()
        try:
            self._create(tokenizer, self._config())
        except _FAILURES as error:
            raise ConfigurationError(f"the tokenizer does not fit the format {name}: {_one_line(error)}") from error

    def mentions(self, name: str) -> bool:
        """See ``ConversationTemplate.mentions``."""
        return name in self._fields or name == "thinking"

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
        known = {name: value for name, value in kwargs.items() if name in self._fields}
        if "thinking" in kwargs and "enable_thinking" in self._fields:
            known["enable_thinking"] = kwargs["thinking"]
        if now is not None and _START_DATE in self._fields:
            known.setdefault(_START_DATE, now.date().isoformat())
        renderer = self._renderer(known)
        try:
            ids = renderer.render_ids(
                [dict(message) for message in messages],
                tools=None if tools is None else list(tools),
                add_generation_prompt=generation,
            )
        except _FAILURES as error:
            raise InvalidRequest(f"the chat format refuses the messages: {_one_line(error)}") from error
        text = self._codec.decode(ids)
        if self._codec.encode(text) != list(ids):
            raise TokenizationFailed(
                "the ids that the renderers library made are not what their text encodes to with this tokenizer; give "
                "the model's own encoder with --chat-template FILE.py, or another --family"
            )
        return text

    def _renderer(self, kwargs: Mapping[str, Any]) -> Any:
        key = json.dumps(kwargs, sort_keys=True, default=repr)
        with self._lock:
            if key in self._renderers:
                self._renderers.move_to_end(key)
                return self._renderers[key]
        try:
            renderer = self._create(self._tokenizer, self._config(**kwargs))
        except _FAILURES as error:
            raise InvalidRequest(f"chat_template_kwargs do not fit the chat format: {_one_line(error)}") from error
        with self._lock:
            self._renderers[key] = renderer
            while len(self._renderers) > _MOST_RENDERERS:
                self._renderers.popitem(last=False)
        return renderer


def _one_line(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:_LONGEST_REASON]
