"""Tool definitions as the engine would hand them to the template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from trio_sessions.errors import InvalidRequest

__all__ = ["TOOL_FORMS", "ToolForm", "ToolsAs", "engine_tools"]

ToolForm: TypeAlias = Literal["wrapper", "function", "given"]
"""``wrapper``: ``{"type", "function"}`` objects; ``function``: the bare function objects inside them; ``given``: as the
client sent them."""

ToolsAs: TypeAlias = Literal["sglang", "given", "function"]
"""How a launch wants tool definitions rendered."""

# A template that raises on SGLang's wrapper gets the bare function.
TOOL_FORMS: Final[Mapping[ToolsAs, tuple[ToolForm, ...]]] = {
    "sglang": ("wrapper", "function"),
    "given": ("given",),
    "function": ("function",),
}


def engine_tools(tools: Any, form: ToolForm = "wrapper") -> list[dict[str, Any]] | None:
    """``tools`` with the keys, the order of keys and the defaults that SGLang gives them.

    A function has ``description``, ``name``, ``parameters`` and ``strict``, in this order; an absent one is null and
    ``strict`` false; other keys are left out. A bare function object is accepted for a wrapper.

    Args:
        tools: the request's ``tools``; None and an empty list both mean that there are none.
        form: what the template can read.

    Raises:
        InvalidRequest: not a list, or an entry that is not a tool definition; the text names the entry.
    """
    if tools is None:
        return None
    if not isinstance(tools, list | tuple):
        raise InvalidRequest(f"tools must be a list, got {type(tools).__name__}")
    dumped = [_tool(tool, index) for index, tool in enumerate(tools)]
    if form == "given":
        return [dict(tool) for tool in tools] or None
    if form == "function":
        dumped = [tool["function"] for tool in dumped]
    return dumped or None


def _tool(tool: Any, index: int) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise InvalidRequest(f"tools[{index}] must be an object, got {type(tool).__name__}")
    kind: Any = "function"
    function: Any = tool
    if "function" in tool:
        kind, function = tool.get("type", "function"), tool["function"]
        if not isinstance(function, Mapping):
            raise InvalidRequest(f"tools[{index}].function must be an object, got {type(function).__name__}")
    name = function.get("name")
    if not isinstance(name, str):
        raise InvalidRequest(f"tools[{index}].function must have a name, and it must be a string")
    strict = function.get("strict")
    return {
        "type": kind,
        "function": {
            "description": function.get("description"),
            "name": name,
            "parameters": function.get("parameters"),
            "strict": False if strict is None else strict,
        },
    }
