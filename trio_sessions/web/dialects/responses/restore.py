"""Assistants' messages as they were stored, as far as the items that came back say what is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trio_sessions.core.matchers import identical
from trio_sessions.service.dialect import Reading
from trio_sessions.web.dialects.answer import ToolCall
from trio_sessions.web.dialects.responses.assistant import Assistant, SpelledCall
from trio_sessions.web.dialects.responses.tools import ToolTable, custom_arguments, custom_input
from trio_sessions.web.dialects.stored import stored_message

__all__ = ["Restorer"]

Message = Mapping[str, Any]


class Restorer:
    """Makes messages of what items say.

    Items cannot say all that is stored: what was sampled for a custom tool need not be an object with its input, and
    calls without an id are given one. The stored calls that they stand for are found by the ids of items, or else by
    the ids of calls among the answers in the same place of their conversations: no others can be repeated there.

    Args:
        reading: knows what was answered.
        tools: of the request.
    """

    def __init__(self, reading: Reading, tools: ToolTable) -> None:
        self._reading = reading
        self._tools = tools

    def message(self, said: Assistant, place: int) -> Message:
        """The chat message; the very object that is stored where the client named it and sent nothing else beside.

        Args:
            said: what the items say.
            place: the index of the message in the conversation.
        """
        if said.stored is not None:
            return self._beside(said.stored, said)
        message: dict[str, Any] = {"role": "assistant", "content": "".join(said.content)}
        if said.reasoning:
            message["reasoning_content"] = "".join(said.reasoning)
        if said.calls:
            known = _StoredCalls(self._known(said, place))
            message["tool_calls"] = [self._call(call, known.found(call)) for call in said.calls]
        return message

    def _beside(self, stored: Message, said: Assistant) -> Message:
        """What is stored, but for what the client sent that is not."""
        changed: dict[str, Any] = {}
        if not said.agrees_with(stored):
            if said.content:
                changed["content"] = "".join(said.content)
            if said.reasoning:
                changed["reasoning_content"] = "".join(said.reasoning)
        if said.calls:
            known = _StoredCalls(stored)
            calls = [*known.calls]
            sent: set[int] = set()
            for call in said.calls:
                index = known.index_of(call)
                if index is None or index in sent:
                    calls.append(self._call(call, None))
                else:
                    sent.add(index)
                    calls[index] = self._call(call, calls[index])
            if not identical(calls, [*known.calls]):
                changed["tool_calls"] = calls
        return {**stored, **changed} if changed else stored

    def _call(self, call: SpelledCall, stored: Message | None) -> Message:
        """The stored call where ``call`` says nothing else, otherwise what it says."""
        if stored is not None and self._is(call, ToolCall.of(stored)):
            return stored
        arguments = custom_arguments(call.text) if call.custom else call.text
        function = {"name": self._tools.function_of(call.named), "arguments": arguments}
        return {"id": call.call_id, "type": "function", "function": function}

    def _is(self, call: SpelledCall, stored: ToolCall) -> bool:
        if call.text != _shown(stored.arguments, custom=call.custom):
            return False
        return (
            stored.name == self._tools.function_of(call.named)
            # The namespace may have got lost on the way.
            or self._tools.tool_of(stored.name).named.name == call.named.name
        )

    def _known(self, said: Assistant, place: int) -> Message | None:
        """The stored message that holds the calls; None where there is none, or they say all that is stored."""
        unclear = [call for call in said.calls if self._is_unclear(call)]
        if not unclear:
            return None
        named = None if said.response_id is None else stored_message(self._reading, said.response_id)
        return self._likeliest(said, unclear, place) if named is None else named

    def _is_unclear(self, call: SpelledCall) -> bool:
        return call.custom or call.issued or self._tools.function_of(call.named) not in self._tools.by_function

    def _likeliest(self, said: Assistant, calls: Sequence[SpelledCall], place: int) -> Message | None:
        """Of the answers that were given there the one with most of the calls, and what else was sent; the latest."""
        wanted = {(call.call_id, call.custom, call.text) for call in calls}
        kinds = {(call.call_id, call.custom) for call in calls}
        best: Message | None = None
        most = (1, False)
        for turn in self._reading.answers_at(place):
            message = turn.messages[-1]
            shown = {
                (known.id, custom, _shown(known.arguments, custom=custom))
                for known in map(ToolCall.of, message.get("tool_calls") or ())
                for custom in (False, True)
                if (known.id, custom) in kinds
            }
            rank = (len(wanted & shown), said.agrees_with(message))
            if rank >= most:
                best, most = message, rank
        return best


class _StoredCalls:
    """The calls of a stored message, by what clients call them."""

    def __init__(self, message: Message | None) -> None:
        self.calls: Sequence[Message] = (message or {}).get("tool_calls") or ()
        # Of two that have one id the second is given another.
        self._by_id = {ToolCall.of(call).id: index for index, call in reversed([*enumerate(self.calls)])}

    def index_of(self, call: SpelledCall) -> int | None:
        if call.index is None:
            return self._by_id.get(call.call_id)
        return call.index if call.index < len(self.calls) else None

    def found(self, call: SpelledCall) -> Message | None:
        index = self.index_of(call)
        return None if index is None else self.calls[index]


def _shown(arguments: str, *, custom: bool) -> str:
    """Arguments as a client has them."""
    return custom_input(arguments) if custom else arguments
