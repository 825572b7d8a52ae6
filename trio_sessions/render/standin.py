"""Short conversations that stand in for a session's, and the sentinel that marks where an assistant's turn ends.

What a chat template writes behind the sentinel is what follows the turn, whatever the turn said. The probe compares it
behind many histories; a turn renders it behind one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from trio_sessions.render.profile import BaseKind
from trio_sessions.render.suffix import sentinel_for

__all__ = [
    "HISTORIES",
    "SENTINEL",
    "THOUGHT",
    "TOOLS",
    "USER_TEXT",
    "Conversation",
    "appended_messages",
    "assistant_message",
    "base_conversation",
    "kind_of",
    "one_text_turn",
    "system_message",
    "tool_call",
    "user_message",
    "with_payload",
]

Conversation: TypeAlias = list[Mapping[str, Any]]

SENTINEL: Final = sentinel_for()
USER_TEXT: Final = "qUserTextq"
THOUGHT: Final = "qThoughtq"
TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Look something up.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    }
]
# Nine letters and digits, the only form that every template known to check call ids accepts.
_CALL_ID: Final = "call00001"
_OTHER_CALL_ID: Final = "call00000"


def tool_call(payload: str, *, name: str = "lookup", call_id: str = _CALL_ID) -> dict[str, Any]:
    """A call whose only argument is ``payload``."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": {"query": payload}}}


def user_message(text: str = USER_TEXT) -> Mapping[str, Any]:
    """A user's message. Every stand-in has one: some templates look for it."""
    return {"role": "user", "content": text}


def system_message() -> Mapping[str, Any]:
    """A system message."""
    return {"role": "system", "content": "qSystemTextq"}


def assistant_message(
    text: str, *, reasoning: str | None = None, calls: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """An assistant's turn."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def appended_messages(roles: Sequence[str], history: Sequence[Mapping[str, Any]] = ()) -> Conversation:
    """One message for each role.

    Results answer the calls of the history's last turn, the last call first.
    """
    calls = history[-1].get("tool_calls", ()) if history else ()
    ids = [call["id"] for call in reversed(calls)] or [_CALL_ID]
    messages: Conversation = []
    for index, role in enumerate(roles):
        message = {"role": role, "content": f"qAppended{index}q"}
        if role == "tool":
            message |= {"tool_call_id": ids[index % len(ids)], "name": "lookup"}
        messages.append(message)
    return messages


def base_conversation(kind: BaseKind, payload: str) -> Conversation:
    """The shortest conversation whose last assistant turn ends with ``payload``.

    Args:
        kind: whether the payload is the turn's text or the value of a call's only argument.
        payload: the text to cut at.
    """
    text, calls = (payload, ()) if kind == "text" else ("", (tool_call(payload),))
    return [user_message("Go on."), assistant_message(text, calls=calls)]


def one_text_turn() -> Conversation:
    """A question and an answer that is the sentinel."""
    return [user_message(), assistant_message(SENTINEL)]


def kind_of(message: Mapping[str, Any]) -> BaseKind:
    """How an assistant's turn ends."""
    return "call" if message.get("tool_calls") else "text"


def with_payload(message: Mapping[str, Any], kind: BaseKind, payload: str) -> Iterator[Mapping[str, Any]]:
    """A real assistant's turn that ends with ``payload`` instead of what it said.

    There may be several, of which the first that the template writes is right: one may write the first call only.

    Names and ids of its calls stay, since a template may look them up. A text beside them does not: the stored ids hold
    it already, and a template may write it behind the calls.

    Args:
        message: the turn, in the form that the template wants.
        kind: whether the payload takes the place of the text or of the arguments of the last call.
        payload: the text to cut at.
    """
    calls = message.get("tool_calls")
    if kind == "text" or not calls:
        yield {**message, "content": payload}
        return
    for last in reversed(range(len(calls))):
        yield {**message, "content": "", "tool_calls": _with_arguments(calls, last, payload)}


def _with_arguments(calls: Sequence[Any], last: int, payload: str) -> list[Any]:
    replaced = []
    for index, call in enumerate(calls):
        arguments = {"query": payload if index == last else "q"}
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            replaced.append({**call, "function": {**function, "arguments": arguments}})
        elif isinstance(call, Mapping):
            replaced.append({**call, "arguments": arguments})
        else:
            # Of no known shape: the form that the template wants says so, with the place.
            replaced.append(call)
    return replaced


_EARLIER_CALL: Final = (
    assistant_message("", calls=[tool_call("qEarlierq", name="earlier", call_id=_OTHER_CALL_ID)]),
    {"role": "tool", "content": "qResultq", "tool_call_id": _OTHER_CALL_ID, "name": "earlier"},
)


# Words in a message by which some templates switch thinking, for all that follows.
_SWITCHES: Final = ("/no_think", "/think", "/nothink")


def _switching(word: str) -> Mapping[str, Any]:
    return {"role": "system", "content": f"qSystemTextq {word}"}


def _called(*calls: Mapping[str, Any], reasoning: str | None = None) -> dict[str, Any]:
    return assistant_message("", reasoning=reasoning, calls=calls)


HISTORIES: Final[Mapping[BaseKind, Sequence[Conversation]]] = {
    "text": (
        one_text_turn(),
        [user_message(), assistant_message(SENTINEL, reasoning=THOUGHT)],
        [system_message(), user_message(), assistant_message(SENTINEL)],
        [user_message("qBeforeq"), assistant_message("qEarlierq"), user_message(), assistant_message(SENTINEL)],
        [
            user_message("qBeforeq"),
            assistant_message("qEarlierq", reasoning=THOUGHT),
            user_message(),
            assistant_message(SENTINEL, reasoning="qq"),
        ],
        [user_message(), *_EARLIER_CALL, assistant_message(SENTINEL)],
        *([_switching(word), user_message(), assistant_message(SENTINEL)] for word in _SWITCHES),
        *([user_message(f"{USER_TEXT} {word}"), assistant_message(SENTINEL)] for word in _SWITCHES),
        [
            system_message(),
            user_message("qBeforeq"),
            *_EARLIER_CALL,
            assistant_message("qEarlierq"),
            user_message(),
            assistant_message(SENTINEL),
        ],
    ),
    "call": (
        [user_message(), _called(tool_call(SENTINEL))],
        [user_message(), _called(tool_call(SENTINEL), reasoning=THOUGHT)],
        [system_message(), user_message(), _called(tool_call(SENTINEL))],
        # The same call id with another name: a template that looks the name up writes another suffix.
        [user_message(), _called(tool_call(SENTINEL, name="other"))],
        [user_message("qBeforeq"), assistant_message("qEarlierq"), user_message(), _called(tool_call(SENTINEL))],
        # Two calls, answered in the order of the calls or in that of the results.
        [user_message(), _called(tool_call("qEarlierq", call_id=_OTHER_CALL_ID), tool_call(SENTINEL))],
        [user_message(), *_EARLIER_CALL, _called(tool_call(SENTINEL))],
        *([_switching(word), user_message(), _called(tool_call(SENTINEL))] for word in _SWITCHES),
    ),
}
