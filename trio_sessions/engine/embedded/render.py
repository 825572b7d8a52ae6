"""Messages to a prompt, for requests that bring no ids of their own."""

from __future__ import annotations

import json
from typing import Any

from trio_sessions.engine.embedded.request import BadRequest, ChatRequest

__all__ = ["render_prompt"]


def render_prompt(tokenizer: Any, request: ChatRequest) -> str:
    """The text that the tokenizer's chat template makes of a request, generation opener included.

    Raises:
        BadRequest: there is no template, or it refuses the conversation.
    """
    if not tokenizer.chat_template:
        raise BadRequest("the tokenizer has no chat template: send input_ids")
    from jinja2 import TemplateError

    kwargs = request.chat_template_kwargs or {}
    try:
        text: str = tokenizer.apply_chat_template(
            [_as_templates_want(message) for message in request.messages],
            tools=request.tools or None,
            tokenize=False,
            add_generation_prompt=True,
            **{name: value for name, value in kwargs.items() if name not in ("tokenize", "add_generation_prompt")},
        )
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise BadRequest(f"the chat template refuses the conversation: {error}") from error
    return text


def _as_templates_want(message: dict[str, Any]) -> dict[str, Any]:
    """Null content becomes "", and arguments that spell an object become one."""
    message = {**message, "content": "" if message.get("content") is None else message["content"]}
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
    return message


def _with_parsed_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call
