"""Tools of a request as functions, which is all that engines know, and the way back from a function's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trio_sessions.core import json
from trio_sessions.web.dialects.dropped import Dropped
from trio_sessions.web.dialects.responses.shapes import Namespace, ToolDefinition, ToolType
from trio_sessions.web.dialects.shapes import shaped

__all__ = ["Tool", "ToolName", "ToolTable", "custom_arguments", "custom_input", "read_tools"]

_SEPARATOR: Final = "__"


@dataclass(frozen=True, slots=True)
class ToolName:
    """What a client calls a tool; ``namespace`` is None for one that stands by itself."""

    name: str
    namespace: str | None = None

    @property
    def flat(self) -> str:
        """One name of both."""
        if self.namespace is None:
            return self.name
        # Some clients end a namespace as it is joined here.
        return self.namespace.removesuffix(_SEPARATOR) + _SEPARATOR + self.name


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of a request; ``custom`` ones take free text instead of JSON."""

    named: ToolName
    custom: bool


@dataclass(frozen=True, slots=True)
class ToolTable:
    """The tools of a request.

    Attributes:
        definitions: in chat's form, in the order of the request.
        by_function: the tool behind the name of a function.
        functions: and back.
    """

    definitions: Sequence[Mapping[str, Any]]
    by_function: Mapping[str, Tool]
    functions: Mapping[ToolName, str]

    def function_of(self, named: ToolName) -> str:
        """The name of the function that stands for a tool, also for one that this request does not have."""
        return self.functions.get(named, named.flat)

    def tool_of(self, function: str) -> Tool:
        """The tool behind a name that was sampled; a function of that name where there is none."""
        return self.by_function.get(function) or Tool(ToolName(function), custom=False)


@dataclass(frozen=True, slots=True)
class _Found:
    tool: Tool
    definition: ToolDefinition
    where: str


def read_tools(tools: Sequence[Mapping[str, Any]], dropped: Dropped) -> ToolTable:
    """The table of ``tools``.

    Raises:
        InvalidRequest: one of them is not what its type says; the text names the place.
    """
    found = _found(tools, "tools", None, dropped)
    by_function: dict[str, Tool] = {}
    functions: dict[ToolName, str] = {}
    names: dict[str, str] = {}
    counts: dict[str, int] = {}
    # Those that stand by themselves keep their names, wherever they are in the list.
    for one in sorted(found, key=lambda one: one.tool.named.namespace is not None):
        names[one.where] = name = _unused(one.tool.named.flat, by_function, counts)
        by_function[name] = one.tool
        functions.setdefault(one.tool.named, name)
    return ToolTable(
        definitions=[_definition(one, names[one.where]) for one in found], by_function=by_function, functions=functions
    )


def custom_input(arguments: str) -> str:
    """The text for a custom tool in what was sampled as its arguments, which is all of them where it is not in them."""
    try:
        match json.decode(arguments.encode()):
            case {"input": str(text), **rest} if not rest:
                return text
    except json.InvalidJSON:
        pass
    return arguments


def custom_arguments(text: str) -> str:
    """The arguments that give a custom tool this text."""
    return json.encode({"input": text}).decode()


def _found(tools: Sequence[Mapping[str, Any]], where: str, namespace: str | None, dropped: Dropped) -> list[_Found]:
    found = []
    for index, tool in enumerate(tools):
        place = f"{where}[{index}]"
        match shaped(tool, ToolType, place).type:
            case "function" | "custom" as kind:
                definition = shaped(tool, ToolDefinition, place)
                found.append(_Found(Tool(ToolName(definition.name, namespace), kind == "custom"), definition, place))
            case "namespace" if namespace is None:
                nested = shaped(tool, Namespace, place)
                found += _found(nested.tools, f"{place}.tools", nested.name, dropped)
            case kind:
                dropped.add(kind, "tool")
    return found


def _unused(name: str, used: Mapping[str, Any], counts: dict[str, int]) -> str:
    """``name``, or with a number behind it; ``counts`` says which numbers were tried, as many tools may have a name."""
    unused = name
    while unused in used:
        counts[name] = counts.get(name, 1) + 1
        unused = f"{name}_{counts[name]}"
    return unused


def _definition(found: _Found, name: str) -> dict[str, Any]:
    given = found.definition
    function: dict[str, Any] = {"name": name}
    if found.tool.custom:
        function["description"] = "\n\n".join(filter(None, (given.description, _grammar(given.format))))
        function["parameters"] = {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
            "additionalProperties": False,
        }
    else:
        told = ("description", "parameters", "strict")
        function |= {key: value for key in told if (value := getattr(given, key)) is not None}
    return {"type": "function", "function": function}


def _grammar(form: Any) -> str:
    match form:
        case {"type": "grammar", "syntax": str(syntax), "definition": str(definition)}:
            return f"The input is text of this {syntax} grammar:\n{definition}"
        case _:
            return ""
