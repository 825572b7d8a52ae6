"""What a prompt was rendered with besides its messages, and how a request's differ from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trio_sessions.core import json
from trio_sessions.core.matchers import identical

__all__ = ["RenderedWith"]

# A text for people: a client may define any number of tools, with names of any length.
_MOST_SHOWN: Final = 10
_LONGEST_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class RenderedWith:
    """Tools and template kwargs of a turn.

    Attributes:
        tools: compact JSON of the definitions as the client sent them; ``null`` for none.
        template_kwargs: compact JSON of the effective kwargs.
    """

    tools: bytes
    template_kwargs: bytes

    @classmethod
    def of(cls, tools: Sequence[Any] | None, template_kwargs: Mapping[str, Any]) -> RenderedWith:
        """What a turn with these is rendered with."""
        return cls(
            tools=json.without_room(json.encode(tools)),
            template_kwargs=json.without_room(json.encode(dict(template_kwargs))),
        )

    def decoded_tools(self) -> list[Any] | None:
        """The definitions as the client sent them."""
        tools: list[Any] | None = json.decode(self.tools)
        return tools

    def decoded_kwargs(self) -> dict[str, Any]:
        """The effective kwargs."""
        kwargs: dict[str, Any] = json.decode(self.template_kwargs)
        return kwargs

    def tools_changed_to(self, new: RenderedWith) -> str:
        """How ``new`` has other tools, by name; empty where it has the same.

        The order of an object's keys is no difference, the order of the tools is one. No tools and an empty list are
        the same.
        """
        if self.tools == new.tools:
            return ""
        before, after = self.decoded_tools() or [], new.decoded_tools() or []
        if identical(before, after):
            return ""
        old, now = _by_name(before), _by_name(after)
        told = (
            ("added", [name for name in now if name not in old]),
            ("removed", [name for name in old if name not in now]),
            ("changed", [name for name in now if name in old and not identical(old[name], now[name])]),
        )
        return "; ".join(f"{what} {_listed(names)}" for what, names in told if names) or "the same in another order"

    def kwargs_changed_to(self, new: RenderedWith) -> str:
        """How ``new`` has other template kwargs, with both values; empty where it has the same."""
        if self.template_kwargs == new.template_kwargs:
            return ""
        old, now = self.decoded_kwargs(), new.decoded_kwargs()
        return _joined(
            [
                f"{_cut(name)} was {_value(old, name)} and is {_value(now, name)}"
                for name in sorted(old.keys() | now.keys())
                if not (name in old and name in now and identical(old[name], now[name]))
            ],
            "; ",
        )

    def sharing(self, parent: RenderedWith) -> RenderedWith:
        """The same, holding the parent's objects where they say the same, so that a line of turns keeps them once."""
        tools, kwargs = parent.tools_changed_to(self), parent.kwargs_changed_to(self)
        if not tools and not kwargs:
            return parent
        return RenderedWith(
            tools=self.tools if tools else parent.tools,
            template_kwargs=self.template_kwargs if kwargs else parent.template_kwargs,
        )


def _by_name(tools: Sequence[Any]) -> dict[str, list[Any]]:
    """Definitions under their names; nothing says that a name is there, or is there once."""
    named: dict[str, list[Any]] = {}
    for index, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        named.setdefault(name if isinstance(name, str) else f"tools[{index}]", []).append(tool)
    return named


def _listed(names: list[str]) -> str:
    return _joined([_cut(name) for name in names], ", ")


def _joined(parts: list[str], separator: str) -> str:
    left_out = len(parts) - _MOST_SHOWN
    shown = separator.join(parts[:_MOST_SHOWN])
    return f"{shown} and {left_out} more" if left_out > 0 else shown


def _value(kwargs: Mapping[str, Any], name: str) -> str:
    return _cut(json.encode(kwargs[name]).decode()) if name in kwargs else "not set"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
