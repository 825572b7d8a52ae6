"""What a chat template does with thinking: its marks, and what becomes of the thinking of earlier turns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from trio_sessions.errors import InvalidRequest
from trio_sessions.render.profile import PastThinking, Thinking
from trio_sessions.render.stage import Stage
from trio_sessions.render.standin import THOUGHT, assistant_message, user_message

__all__ = ["KEEP_THINKING", "find_keeps_thinking", "find_past_thinking", "find_thinking"]

# Names under which templates are known to let past thinking stay. Switching thinking itself on or off is no business
# of a probe: that changes the task.
KEEP_THINKING: Final[Mapping[str, Any]] = {
    "clear_thinking": False,
    "preserve_thinking": True,
    "truncate_history_thinking": False,
    "drop_thinking": False,
}


def find_thinking(stage: Stage, opener: str, stops: Collection[int]) -> Thinking | None:
    """How a turn marks its thinking, None where the template shows no marks.

    Args:
        stage: renders.
        opener: what opens a turn to generate.
        stops: ids that end a turn; none of them is a mark.
    """
    codec = stage.codec
    turn = codec.first_added(opener)
    if turn is None:
        return None
    before, close = _thought(stage) or _opened_thought(stage, opener)
    opened, closed = stage.last_added(before), codec.first_added(close)
    if opened is None or closed is None or {opened[1], closed[1]} & {turn[1], *stops}:
        return None
    # More than a mark and white space is a format of its own, which one text cannot close.
    if close.strip() != codec.added_text[closed[1]]:
        return None
    return Thinking(turn[1], opened[1], closed[1], close)


def find_past_thinking(stage: Stage, extra: Mapping[str, Any] | None = None) -> PastThinking:
    """What becomes of an earlier turn's thinking, with further kwargs in ``extra``."""
    turn = [user_message("qBeforeq"), assistant_message("qEarlierq", reasoning=THOUGHT)]
    following = [user_message(), assistant_message("qAnswerq")]
    try:
        if THOUGHT in stage.render([*turn, *following], generation=False, extra=extra):
            return "kept"
        return "dropped" if THOUGHT in stage.render(turn, generation=False, extra=extra) else "never written"
    except InvalidRequest:
        return "never written"


def find_keeps_thinking(stage: Stage) -> dict[str, Any]:
    """Kwargs that the template mentions, each of which makes it keep the thinking that it would drop."""
    if find_past_thinking(stage) == "kept":
        return {}
    return {
        name: value
        for name, value in KEEP_THINKING.items()
        if stage.template.mentions(name) and find_past_thinking(stage, {name: value}) == "kept"
    }


def _thought(stage: Stage) -> tuple[str, str] | None:
    """Text up to a thought, and from its end to the answer; None where the template writes no thoughts."""
    try:
        text = stage.tail_of_user([assistant_message("qAnswerq", reasoning=THOUGHT)], generation=False)
    except InvalidRequest:
        return None
    before, thought, behind = text.partition(THOUGHT)
    close, answer, _ = behind.partition("qAnswerq")
    return (before, close) if thought and answer else None


def _opened_thought(stage: Stage, opener: str) -> tuple[str, str]:
    """The same from an opener that ends with a mark in angle brackets, and the mark's counterpart."""
    opened = stage.last_added(opener)
    if opened is None:
        return "", ""
    mark = stage.codec.added_text[opened[1]]
    space = opener[opened[0] + len(mark) :]
    # With thinking switched off the opener ends with a thought that is closed already; a turn before it may be open.
    closes = mark.startswith("</")
    counterpart = f"<{mark[2:]}" if closes else f"</{mark[1:]}"
    if not mark.startswith("<") or space.strip() or counterpart not in stage.codec.added_text.values():
        return "", ""
    return (counterpart, f"{mark}{space}") if closes else (opener, f"{space}{counterpart}{space * 2}")
