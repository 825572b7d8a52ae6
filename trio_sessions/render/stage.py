"""A chat template under given kwargs, ready to render stand-in conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias

from trio_sessions.errors import InvalidRequest
from trio_sessions.render.codec import TextCodec
from trio_sessions.render.conversation import ConversationTemplate
from trio_sessions.render.messages import MessageForm, normalize_messages
from trio_sessions.render.standin import (
    SENTINEL,
    USER_TEXT,
    Conversation,
    appended_messages,
    user_message,
)
from trio_sessions.render.suffix import cut_after

__all__ = ["ANY_DAY", "NotWritten", "Refused", "Stage", "ToolSet"]

ToolSet: TypeAlias = list[dict[str, Any]] | None

# Every rendering of a probe sees the same date, or midnight would look like a property of the template.
ANY_DAY: Final = datetime(2024, 7, 26, 12, 0, 0)


class Refused(Exception):
    """The template does not do what an append needs; the text says what it does instead."""


class NotWritten(Refused):
    """The template raises, or does not write the turn before: it shows nothing."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What renders.

    Attributes:
        template: the chat template.
        codec: its tokenizer.
        kwargs: effective template kwargs.
        form: shapes of content and arguments.
        now: the date that the template is told.
    """

    template: ConversationTemplate
    codec: TextCodec
    kwargs: Mapping[str, Any]
    form: MessageForm = field(default_factory=MessageForm)
    now: datetime = ANY_DAY

    def render(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        generation: bool,
        tools: ToolSet = None,
        form: MessageForm | None = None,
        extra: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> str:
        """The conversation as text.

        Raises:
            InvalidRequest: the template refuses it.
        """
        return self.template.render(
            normalize_messages(conversation, form or self.form),
            tools=tools,
            kwargs={**self.kwargs, **(extra or {})},
            generation=generation,
            now=now or self.now,
        )

    def renders(self, conversation: Conversation, *, tools: ToolSet) -> bool:
        """Whether the template accepts the conversation and writes its sentinel."""
        try:
            return SENTINEL in self.render(conversation, generation=False, tools=tools)
        except InvalidRequest:
            return False

    def tail(self, history: Conversation, roles: Sequence[str] = (), *, generation: bool, tools: ToolSet = None) -> str:
        """What stands behind the sentinel of ``history`` when a message of each role follows.

        Raises:
            NotWritten: the template raises, or leaves out the turn.
            Refused: it drops or moves a message.
        """
        appended = appended_messages(roles, history)
        try:
            rendered = self.render([*history, *appended], generation=generation, tools=tools)
            cut_after(rendered, SENTINEL)
        except (InvalidRequest, ValueError) as error:
            raise NotWritten(str(error)) from error
        try:
            return cut_after(rendered, SENTINEL, [message["content"] for message in appended])
        except ValueError as error:
            raise Refused(str(error)) from error

    def tail_of_user(self, following: Conversation, *, generation: bool) -> str:
        """What stands behind a user's text when ``following`` comes after it."""
        return self.render([user_message(), *following], generation=generation).partition(USER_TEXT)[2]

    def last_added(self, text: str) -> tuple[int, int] | None:
        """The last added token of ``text`` that is more than white space: (position in the text, id), or None."""
        added = self.codec.added_text
        places = [(text.rfind(token), i) for i in self.codec.encode(text) if (token := added.get(i, "")).strip()]
        return max(places, default=None)
