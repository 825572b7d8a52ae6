"""Model families by name: what a probe cannot find out about them.

What a chat template does is probed, for every family. The table holds the rest: kwargs without which a family's
template rewrites history, kwargs that engines know under several names, and the families that have no chat template
or none that can be served, whose format the ``renderers`` library knows. The names are those of the reference's
``--tito-model``, and a few more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trio_sessions.errors import InvalidRequest

__all__ = ["ENCODER", "FAMILIES", "Family"]

_MISSING: Final = object()
# Names that engines accept for one switch of the DeepSeek encoders; the first is the one that their parsers read.
_THINKING_SWITCH: Final = ("thinking", "enable_thinking", "thinking_mode")
_THINKING_MODES: Final[Mapping[str, bool]] = {"thinking": True, "chat": False}


@dataclass(frozen=True, slots=True)
class Family:
    """One family.

    Attributes:
        name: its selector.
        pinned: template kwargs that it fixes; a launch or a request that says otherwise is refused.
        defaults: template kwargs of the engine's own encoder, which a launch or a request may change.
        library: its name in the ``renderers`` library, where that is to be asked; empty where it is not.
        marks: control tokens by which a tokenizer of such a family is recognised.
        thinking_aliases: whether thinking may be switched under any of the names that engines know.
    """

    name: str
    pinned: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    library: str = ""
    marks: tuple[str, ...] = ()
    thinking_aliases: bool = False

    def effective(self, launch: Mapping[str, Any], requested: Mapping[str, Any]) -> dict[str, Any]:
        """The family's own kwargs, overlaid with the launch's, then with a request's.

        Raises:
            InvalidRequest: one of the two contradicts what the family pins, or itself; the text names both values.
        """
        effective = {**self.defaults, **self._canonical(launch), **self._canonical(requested)}
        for name, pinned in self.pinned.items():
            value = effective.get(name, _MISSING)
            if value is not _MISSING and (type(value) is not type(pinned) or value != pinned):
                raise InvalidRequest(
                    f"chat_template_kwargs {name}={value!r} contradicts {name}={pinned!r}, which the family "
                    f"{self.name} pins"
                )
        return {**effective, **self.pinned}

    def _canonical(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """``kwargs`` with the switch for thinking under one name."""
        if not self.thinking_aliases:
            return dict(kwargs)
        given = {name: kwargs[name] for name in _THINKING_SWITCH if kwargs.get(name) is not None}
        canonical = {name: value for name, value in kwargs.items() if name not in _THINKING_SWITCH}
        for name, value in given.items():
            switch = _THINKING_MODES.get(str(value)) if name == "thinking_mode" else value
            if not isinstance(switch, bool):
                wanted = "'thinking' or 'chat'" if name == "thinking_mode" else "true or false"
                raise InvalidRequest(f"chat_template_kwargs {name} must be {wanted}, got {value!r}")
            if canonical.setdefault(_THINKING_SWITCH[0], switch) != switch:
                first = next(iter(given))
                raise InvalidRequest(f"chat_template_kwargs {first}={given[first]!r} contradicts {name}={value!r}")
        return canonical


_KIMI_MARKS: Final = ("<|im_middle|>", "<|tool_calls_section_begin|>")
_KEEP: Final[Mapping[str, Any]] = {"clear_thinking": False}
_PRESERVE: Final[Mapping[str, Any]] = {"preserve_thinking": True}
_DEEPSEEK: Final[Mapping[str, Any]] = {
    "pinned": {"drop_thinking": False},
    "defaults": {"thinking": True},
    "thinking_aliases": True,
}

ENCODER: Final = Family("auto", defaults=_DEEPSEEK["defaults"], thinking_aliases=True)
"""Of a model's own encoder, where no family is named: what engines know of the switch that it has."""

FAMILIES: Final[Mapping[str, Family]] = {
    family.name: family
    for family in (
        Family("auto"),
        Family("default"),
        Family("qwen3", pinned=_KEEP),
        Family("qwen35", pinned=_PRESERVE),
        Family("qwen36", pinned=_PRESERVE),
        Family("qwennext", pinned=_KEEP),
        Family("glm47", pinned=_KEEP),
        Family("glm53", pinned={**_KEEP, "enable_thinking": True}),
        Family("nemotron3", pinned={"truncate_history_thinking": False}),
        Family("kimi25", pinned=_PRESERVE, library="kimi-k2.5", marks=_KIMI_MARKS),
        Family("kimi26", pinned=_PRESERVE, library="kimi-k2.5", marks=_KIMI_MARKS),
        Family("minimax_m25", pinned=_KEEP),
        Family("minimax_m27", pinned=_KEEP),
        Family("deepseekv32", **_DEEPSEEK),
        Family("deepseekv4", library="deepseek-v4", marks=("<｜latest_reminder｜>", "｜DSML｜"), **_DEEPSEEK),
        Family("gptoss", library="gpt-oss", marks=("<|channel|>", "<|call|>", "<|return|>")),
        Family("inkling", library="inkling", marks=("<|message_model|>", "<|message_tool|>")),
    )
}
