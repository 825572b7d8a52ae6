"""Whole assistant turns: their plan, and the message that a parser reads out of what was sampled."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from trio_sessions.engine.embedded.family import Family
from trio_sessions.engine.embedded.plan import Choice, Free, Part, Plan
from trio_sessions.engine.embedded.schema import arguments_plan, json_spelling, value_plan
from trio_sessions.engine.embedded.vocabulary import Alphabet, spelled

__all__ = ["Goal", "answer_plan", "parse_message"]

_CALL: Final = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
_MAX_CALLS: Final = 2


@dataclass(frozen=True, slots=True)
class Goal:
    """What an answer has to be.

    Attributes:
        tools: name to JSON schema of the arguments, for each tool that may be called; empty for an answer in words.
        response_schema: JSON schema of the answer, None for free text; ignored when there are tools.
        may_think: whether reasoning may come first; whether it does is drawn.
        inside_thinking: the prompt ended inside the reasoning.
        parallel: whether a second tool call may follow the first.
        must_call: the request demands a call of one of the tools.
    """

    tools: Mapping[str, Any] = field(default_factory=dict)
    response_schema: Any = None
    may_think: bool = False
    inside_thinking: bool = False
    parallel: bool = False
    must_call: bool = False


def answer_plan(family: Family, goal: Goal) -> Plan:
    """The plan of a whole assistant turn, its stop token included."""
    think = (family.think_open,) if goal.may_think and family.think_open else ()
    if goal.inside_thinking:
        yield _reasoning(family)
        think = ()
    if goal.tools:
        if (yield Choice((*think, family.call_open))) in think:
            yield _reasoning(family)
            yield Choice((family.call_open,))
        yield from _calls(family, goal)
    elif goal.response_schema is not None:
        yield from value_plan(goal.response_schema, (family.stop,))
    elif (yield _words(family, instead=think)) in think:
        yield _reasoning(family)
        yield _words(family)


def _reasoning(family: Family) -> Part:
    return Free(Alphabet.LINE, minimum=3, maximum=32, then=(family.think_close,), enough=8)


def _words(family: Family, instead: tuple[str, ...] = ()) -> Part:
    return Free(Alphabet.TEXT, minimum=4, maximum=50, then=(family.stop,), instead=instead, enough=14)


def _calls(family: Family, goal: Goal) -> Plan:
    openings = {f'{{"name": {json_spelling(name)}, "arguments":': parameters for name, parameters in goal.tools.items()}
    last = "}" + family.call_close + family.stop
    another = "}" + family.call_close + spelled("\n") + family.call_open
    for number in range(1, _MAX_CALLS + 1):
        endings = (last, another) if goal.parallel and number < _MAX_CALLS else (last,)
        opening = yield Choice(tuple(openings))
        if (yield from arguments_plan(openings[opening], endings, lead=" ")) == last:
            return


class _Call(msgspec.Struct, gc=False):
    name: str
    arguments: msgspec.Raw


_call_decoder = msgspec.json.Decoder(_Call)


def parse_message(
    text: str,
    *,
    inside_thinking: bool,
    separate_reasoning: bool,
    with_tools: bool,
    new_call_id: Callable[[], str],
) -> dict[str, Any]:
    """The assistant message in a sampled text; nothing but markup and the line breaks around it is taken away.

    Args:
        text: what was sampled, without the stop token.
        inside_thinking: the prompt ended inside the reasoning.
        separate_reasoning: put the reasoning into ``reasoning_content``, else leave it in the content.
        with_tools: look for tool calls.
        new_call_id: makes the id of a tool call.

    Returns:
        ``{"role", "content", "reasoning_content", "tool_calls"}``; the last two are None where there is none, the
        content is "" rather than null. A tool call that was cut off or is not JSON stays in the content as it is.
    """
    reasoning = None
    if separate_reasoning and (inside_thinking or text.startswith("<think>")):
        thought, closed, text = text.removeprefix("<think>").partition("</think>")
        reasoning = thought.removeprefix("\n").removesuffix("\n") or None
        text = text.removeprefix("\n\n") if closed else ""
    calls: list[dict[str, Any]] = []
    if with_tools:
        matches = list(_CALL.finditer(text))
        try:
            parsed = [_call_decoder.decode(match[1].encode()) for match in matches]
        except msgspec.MsgspecError:
            parsed = []
        if parsed:
            text = text[: matches[0].start()].removesuffix("\n")
            calls = [
                {
                    "id": new_call_id(),
                    "index": index,
                    "type": "function",
                    "function": {"name": call.name, "arguments": bytes(call.arguments).decode()},
                }
                for index, call in enumerate(parsed)
            ]
    return {"role": "assistant", "content": text, "reasoning_content": reasoning, "tool_calls": calls or None}
