"""Tools, and which of them is to be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trio_sessions.errors import InvalidRequest
from trio_sessions.web.dialects.dropped import Dropped
from trio_sessions.web.dialects.messages.shapes import Tool, ToolChoice
from trio_sessions.web.dialects.shapes import shaped

__all__ = ["tool_fields"]


def tool_fields(tools: Sequence[dict[str, Any]] | None, choice: ToolChoice | None, dropped: Dropped) -> dict[str, Any]:
    """``tools``, ``tool_choice`` and ``parallel_tool_calls`` of a chat request; nothing where there is no tool.

    Raises:
        InvalidRequest: a tool has no name or schema, or the choice is none; the text names the place.
    """
    functions = []
    for index, tool in enumerate(tools or ()):
        kind = tool.get("type")
        if "function" in tool:
            raise InvalidRequest(
                f"tools[{index}]: is OpenAI's form; a tool here has name, description and input_schema, and no type"
            )
        if "input_schema" in tool or kind is None or kind == "custom":
            functions.append(_function(shaped(tool, Tool, f"tools[{index}]")))
        else:
            # What Anthropic runs, or trained its models to know without a schema.
            dropped.add(str(kind), "tool without input_schema")
    if not functions:
        return {}
    fields: dict[str, Any] = {"tools": functions}
    if choice is not None:
        fields["tool_choice"] = _choice(choice, {function["function"]["name"] for function in functions})
        if choice.disable_parallel_tool_use:
            fields["parallel_tool_calls"] = False
    return fields


def _function(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": {**function, "parameters": tool.input_schema}}


def _choice(choice: ToolChoice, names: set[str]) -> str | dict[str, Any]:
    match choice.type:
        case "auto" | "none":
            return choice.type
        case "any":
            return "required"
        case "tool":
            if choice.name not in names:
                raise InvalidRequest("tool_choice.name: must be the name of one of the tools that have an input_schema")
            return {"type": "function", "function": {"name": choice.name}}
        case _:
            raise InvalidRequest("tool_choice.type: must be auto, any, tool or none")
