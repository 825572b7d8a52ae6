"""Chat formats that come as a Python file beside the model's weights, such as DeepSeek's ``encoding_dsv32.py``."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from trio_sessions.errors import ConfigurationError, InvalidRequest

__all__ = ["EncoderTemplate"]

_FUNCTION: Final = "encode_messages"
_MODE: Final = "thinking_mode"
# What a program of somebody else's may raise for a conversation it was not written for.
_FAILURES: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class EncoderTemplate:
    """Implements ``ConversationTemplate`` with the function ``encode_messages`` of a file.

    The function takes messages and returns text; thinking is switched by ``thinking_mode``, tool definitions stand in
    the first system message, and an opener follows whatever asks for an answer.
    """

    special_token_names: Collection[str] = frozenset()

    def __init__(self, file: Path) -> None:
        """Run ``file`` and take its function.

        Raises:
            ConfigurationError: the file cannot be run or has no such function.
        """
        spec = importlib.util.spec_from_file_location("trio_sessions_chat_encoder", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        # It is a program: it may raise anything.
        except Exception as error:
            raise ConfigurationError(f"cannot run --chat-template {file}: {type(error).__name__}: {error}") from error
        function = getattr(module, _FUNCTION, None)
        if not callable(function):
            raise ConfigurationError(
                f"--chat-template {file} defines no function {_FUNCTION}(messages, thinking_mode=...); "
                "give a jinja file, or the encoder that comes with the model"
            )
        self._encode: Callable[..., Any] = function
        self._parameters = frozenset(inspect.signature(function).parameters) - {"messages"}

    @property
    def switches_thinking(self) -> bool:
        """Whether the function can switch thinking on and off."""
        return _MODE in self._parameters

    def mentions(self, name: str) -> bool:
        """See ``ConversationTemplate.mentions``."""
        return name in self._parameters or (name == "thinking" and _MODE in self._parameters)

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
        options = {name: value for name, value in kwargs.items() if name in self._parameters}
        if _MODE in self._parameters:
            options.setdefault(_MODE, "thinking" if kwargs.get("thinking", True) else "chat")
        text = self._run(_with_tools(messages, tools), options)
        if generation or messages[-1].get("role") == "assistant":
            return text
        question = "qUserTextq"
        return text.removesuffix(self._run([{"role": "user", "content": question}], options).partition(question)[2])

    def _run(self, messages: list[dict[str, Any]], options: Mapping[str, Any]) -> str:
        try:
            return str(self._encode(messages, **options))
        except _FAILURES as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InvalidRequest(f"the chat encoder refuses the messages: {reason[:300]}") from error


def _with_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None) -> list[dict[str, Any]]:
    copied = [dict(message) for message in messages]
    if not tools:
        return copied
    if not copied or copied[0].get("role") != "system":
        copied.insert(0, {"role": "system", "content": ""})
    copied[0]["tools"] = list(tools)
    return copied
