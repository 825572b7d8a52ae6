"""The requests that the embedded engine understands, decoded and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from trio_sessions.engine.embedded.answer import Goal
from trio_sessions.engine.embedded.prompt import Thinking
from trio_sessions.engine.embedded.sampler import Sampling

__all__ = [
    "BadRequest",
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "TokenizeRequest",
    "chat_request",
    "decoded",
    "goal_of",
    "sampling_of",
]

_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})

_T = TypeVar("_T")


class BadRequest(Exception):
    """The request cannot be answered; the text is what the client reads."""


class _SamplingFields(msgspec.Struct, kw_only=True):
    model: str = "default"
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ChatRequest(_SamplingFields, kw_only=True):
    """``POST /v1/chat/completions``; fields that are not here are ignored, as engines do."""

    messages: list[dict[str, Any]]
    stream_options: _StreamOptions | None = None
    input_ids: list[int] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    separate_reasoning: bool = True
    logprobs: bool | None = None
    return_meta_info: bool = False
    return_prompt_token_ids: bool = False
    return_routed_experts: bool = False
    return_indexer_topk: bool = False
    routed_experts_start_len: int | None = None


class CompletionRequest(_SamplingFields, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[int]
    logprobs: int | None = None


class TokenizeRequest(msgspec.Struct):
    """``POST /tokenize``."""

    prompt: str | list[str]
    add_special_tokens: bool = True


class DetokenizeRequest(msgspec.Struct):
    """``POST /detokenize``."""

    tokens: list[int | list[int]]
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        """Refuses negative ids, which Python would take for positions from the end."""
        flat = [item for row in self.tokens for item in (row if isinstance(row, list) else [row])]
        if flat and min(flat) < 0:
            raise ValueError("token ids must not be negative")


def decoded(kind: type[_T], body: bytes) -> _T:
    """``body`` as a request of ``kind``.

    Raises:
        BadRequest: not JSON, or fields that are missing or of a wrong type.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(str(error)) from error


def chat_request(body: bytes) -> ChatRequest:
    """``body`` as a chat request; its messages are checked also where ``input_ids`` stand in for them.

    Raises:
        BadRequest: as ``decoded``, or a message without a known role.
    """
    request = decoded(ChatRequest, body)
    if not request.messages:
        raise BadRequest("messages must not be empty")
    for index, message in enumerate(request.messages):
        if message.get("role") not in _ROLES:
            raise BadRequest(f"messages[{index}].role must be one of {sorted(_ROLES)}, got {message.get('role')!r}")
    return request


def sampling_of(request: _SamplingFields) -> Sampling:
    """How to draw.

    Raises:
        BadRequest: a value out of its range.
    """
    temperature = 1.0 if request.temperature is None else request.temperature
    top_p = 1.0 if request.top_p is None else request.top_p
    limit = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    if not 0 <= temperature <= 100:
        raise BadRequest(f"temperature must be between 0 and 100, got {temperature:g}")
    if not 0 < top_p <= 1:
        raise BadRequest(f"top_p must be in (0, 1], got {top_p:g}")
    if limit is not None and limit < 1:
        raise BadRequest(f"max_tokens must be at least 1, got {limit}")
    if request.n not in (None, 1):
        raise BadRequest(f"n must be 1, got {request.n}")
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return Sampling(temperature, top_p, limit, tuple(stop))


def _tools_of(request: ChatRequest) -> dict[str, Any]:
    """Name to JSON schema of the arguments, for each tool of the request."""
    tools: dict[str, Any] = {}
    for index, tool in enumerate(request.tools or []):
        function = tool.get("function", tool)
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise BadRequest(f"tools[{index}] has no function name")
        tools[name] = function.get("parameters")
    return tools


def goal_of(request: ChatRequest, thinking: Thinking) -> Goal:
    """What the answer has to be.

    Raises:
        BadRequest: a tool without a name, or a tool choice that names no tool.
    """
    tools = _tools_of(request)
    kwargs = request.chat_template_kwargs or {}
    schema = (request.response_format or {}).get("json_schema")
    if isinstance(schema, Mapping):
        schema = schema.get("schema", {})
    return Goal(
        tools=_callable_tools(request, tools),
        response_schema=schema,
        may_think=thinking is Thinking.UNSAID and bool(kwargs.get("enable_thinking", kwargs.get("thinking", True))),
        inside_thinking=thinking is Thinking.OPEN,
        parallel=request.parallel_tool_calls is True,
        must_call=request.tool_choice not in (None, "auto", "none"),
    )


def _callable_tools(request: ChatRequest, tools: dict[str, Any]) -> dict[str, Any]:
    match request.tool_choice:
        case "none":
            return {}
        case None | "auto":
            # Otherwise an agent that follows the calls would never come to an end.
            return {} if request.messages[-1]["role"] in ("tool", "function") else tools
        case "required":
            if not tools:
                raise BadRequest("tool_choice is 'required' but there are no tools")
            return tools
        case {"function": {"name": str(name)}}:
            if name not in tools:
                raise BadRequest(f"tool_choice names {name!r}, which is not among the tools {sorted(tools)}")
            return {name: tools[name]}
    raise BadRequest(
        "tool_choice must be 'auto', 'none', 'required' or {'type': 'function', 'function': {'name': ...}}"
    )
