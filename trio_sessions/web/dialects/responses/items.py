"""``input`` as messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from trio_sessions.core.history import Checkpoint
from trio_sessions.errors import InvalidRequest
from trio_sessions.service.dialect import Reading
from trio_sessions.web.dialects.dropped import Dropped
from trio_sessions.web.dialects.responses.assistant import Assistant, Kind, SpelledCall
from trio_sessions.web.dialects.responses.content import reasoning_of, text_of
from trio_sessions.web.dialects.responses.ids import Issued, issued, issued_call
from trio_sessions.web.dialects.responses.restore import Restorer
from trio_sessions.web.dialects.responses.shapes import (
    Call,
    CustomCall,
    FunctionCall,
    Item,
    MessageItem,
    ReasoningItem,
    Reference,
    ResultItem,
)
from trio_sessions.web.dialects.responses.tools import ToolName, ToolTable
from trio_sessions.web.dialects.shapes import shaped
from trio_sessions.web.dialects.stored import stored_message

__all__ = ["Transcript"]

Message = Mapping[str, Any]

# Between texts that have to be one system message.
_SYSTEM_SEPARATOR: Final = "\n\n"


class Transcript:
    """Collects the messages of a request.

    Args:
        reading: knows what was answered.
        tools: of the request.
        dropped: gets to know what is left out.
    """

    def __init__(self, reading: Reading, tools: ToolTable, dropped: Dropped) -> None:
        self._reading = reading
        self._dropped = dropped
        self._restorer = Restorer(reading, tools)
        self._messages: list[Message | Assistant] = []
        self._leading = 0
        # What an assistant's item may belong to: the answer it directly follows, or one that it names.
        self._open: Assistant | None = None
        self._answers: dict[str, Assistant] = {}
        self._named: list[str] = []

    @property
    def named(self) -> Sequence[str]:
        """The response ids that items named, in order."""
        return self._named

    def extend_stored(self, path: Sequence[Message], checkpoint: Checkpoint) -> None:
        """Begin with the messages up to ``checkpoint``'s answer, which is the last of ``path``."""
        self._messages = [*path[:-1]]
        self._name_stored(str(checkpoint.response_id), path[-1])

    def add_system(self, text: str) -> None:
        """Instructions."""
        self._say("system", text)

    def add_user(self, text: str) -> None:
        """A user's message."""
        self._say("user", text)

    def add_item(self, item: Mapping[str, Any], where: str) -> None:
        """One item of ``input``.

        Raises:
            InvalidRequest: it is of no known shape, or names what is not there.
        """
        match shaped(item, Item, where):
            case Item("item_reference") | Item(None, role=None, id=str()):
                self._reference(_reference_of(item, where), where)
            case Item(None | "message"):
                self._message(shaped(item, MessageItem, where), where)
            case Item("reasoning"):
                self._reasoning(shaped(item, ReasoningItem, where))
            case Item("function_call"):
                call = shaped(item, FunctionCall, where)
                self._call(call, call.arguments, custom=False)
            case Item("custom_tool_call"):
                custom_call = shaped(item, CustomCall, where)
                self._call(custom_call, custom_call.input, custom=True)
            case Item("function_call_output" | "custom_tool_call_output"):
                self._result(shaped(item, ResultItem, where), where)
            case Item(str(kind)):
                # Types are many and still being added.
                self._dropped.add(kind, "item")

    def messages(self) -> list[Message]:
        """All of them."""
        # Of a template with one place for a system message.
        merged = self._leading if self._leading > 1 and not self._renders_later_system else 1
        messages = [
            self._restorer.message(one, index - merged + 1) if isinstance(one, Assistant) else one
            for index, one in enumerate(self._messages)
        ]
        if merged > 1:
            # Of parts, so that the instructions are still known among them.
            texts = [message["content"] for message in messages[:merged]]
            parts = [texts[0], *(_SYSTEM_SEPARATOR + text for text in texts[1:])]
            messages[:merged] = [{"role": "system", "content": [{"type": "text", "text": text} for text in parts]}]
        return messages

    @cached_property
    def _renders_later_system(self) -> bool:
        return "system" in self._reading.roles()

    def _say(self, role: str, text: str) -> None:
        self._open = None
        self._answers.clear()
        if role == "system":
            if self._leading == len(self._messages):
                self._leading += 1
            elif not self._renders_later_system:
                role = "user"
        self._messages.append({"role": role, "content": text})

    def _message(self, item: MessageItem, where: str) -> None:
        if item.role not in ("user", "assistant", "system", "developer"):
            raise InvalidRequest(f"{where}.role: must be user, assistant, system or developer")
        text = text_of(item.content, f"{where}.content", self._dropped)
        if item.role == "assistant":
            self._answer_of(issued(item.id), Kind.TEXT, text).content.append(text)
        else:
            self._say("user" if item.role == "user" else "system", text)

    def _reasoning(self, item: ReasoningItem) -> None:
        text = reasoning_of(item)
        # The encrypted content that we issue is the item's id, for clients that drop that.
        said = issued(item.id) or issued(item.encrypted_content)
        stored = None if text or said is None else stored_message(self._reading, said.response_id)
        if stored is not None:
            known = stored.get("reasoning_content")
            text = known if isinstance(known, str) else ""
        answer = self._answer_of(said, Kind.REASONING, text)
        if text:
            answer.reasoning.append(text)

    def _call(self, item: Call, text: str, *, custom: bool) -> None:
        # The id of a call leads to its answer too where it is ours, for clients that drop the item's.
        by_call = issued_call(item.call_id)
        said = issued(item.id) or by_call
        self._answer_of(said, Kind.CALL, item.call_id).calls.append(
            SpelledCall(
                call_id=item.call_id,
                named=ToolName(item.name, item.namespace),
                text=text,
                custom=custom,
                index=None if said is None else said.call,
                issued=by_call is not None,
            )
        )

    def _result(self, item: ResultItem, where: str) -> None:
        output = text_of(item.output, f"{where}.output", self._dropped)
        self._open = None
        message = {"role": "tool", "content": output}
        if item.call_id is not None:
            message["tool_call_id"] = item.call_id
        self._messages.append(message)

    def _reference(self, item_id: str, where: str) -> None:
        said = issued(item_id)
        stored = None if said is None else stored_message(self._reading, said.response_id)
        if said is None or stored is None:
            raise InvalidRequest(
                f"{where}: Item with id '{item_id}' not found. The session does not have it, or no longer: send the "
                "item itself"
            )
        self._named.append(said.response_id)
        answer = self._answers.get(said.response_id)
        if answer is None:
            self._name_stored(said.response_id, stored)
        else:
            answer.stored = stored

    def _name_stored(self, response_id: str, message: Message) -> None:
        answer = Assistant(response_id=response_id, latest=Kind.CALL, stored=message)
        self._messages.append(answer)
        self._answers[response_id] = self._open = answer

    def _answer_of(self, said: Issued | None, kind: Kind, text: str) -> Assistant:
        """The message that an assistant's item belongs to."""
        response_id = None if said is None else said.response_id
        if response_id is not None:
            self._named.append(response_id)
        answer = self._answers.get(response_id) if response_id is not None else None
        if answer is None and self._open is not None and self._open.continued_by(response_id, kind, text):
            answer = self._open
        if answer is None:
            answer = Assistant(response_id=response_id)
            self._messages.append(answer)
        if response_id is not None and answer.response_id is None:
            answer.response_id = response_id
        if answer.response_id is not None:
            self._answers[answer.response_id] = answer
        answer.latest = kind
        # A result in between does not end what is named, but what follows without a name.
        self._open = answer
        return answer


def _reference_of(item: Mapping[str, Any], where: str) -> str:
    """The id that a reference has."""
    said = shaped(item, Reference, where)
    if any(value is not None for key, value in item.items() if key not in Reference.__struct_fields__):
        # To overlook the rest of it would be to answer another conversation.
        raise InvalidRequest(
            f"{where}: a reference to an item has an id and nothing else, and an item that says something has its type"
        )
    return said.id
