"""The dialect, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trio_sessions.core.history import Checkpoint
from trio_sessions.core.request import ChatBody
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.engine.headers import beside_own_body
from trio_sessions.service.dialect import Reading
from trio_sessions.service.failure import Failure, engine_failure
from trio_sessions.service.replies import Reply, json_reply
from trio_sessions.web.dialects.messages.answer import Frame
from trio_sessions.web.dialects.messages.errors import error_object, error_status
from trio_sessions.web.dialects.messages.events import MessagesEvents
from trio_sessions.web.dialects.messages.request import read_request

__all__ = ["MessagesDialect"]


class MessagesDialect:
    """See ``trio_sessions.service.dialect.Dialect``."""

    name: Final = "messages"
    matcher: Final = "agent"

    def read(self, body: bytes, reading: Reading) -> MessagesExchange:
        """The request as a chat request."""
        request = read_request(body, reading)
        return MessagesExchange(
            chat=request.chat,
            stream=request.stream,
            extends=request.extends,
            dropped=request.dropped,
            writer=MessagesWriter(
                # Drawn here: a stream may begin before the engine has answered.
                Frame(response_id=f"msg_{reading.new_id()}", model=request.model, thinking=request.thinking)
            ),
        )

    def failed(self, failure: Failure) -> Reply:
        """Anthropic's error object."""
        return json_reply(error_object(failure), status=error_status(failure))

    def refused(self, answer: EngineAnswer) -> Reply:
        """The same, with what the engine said."""
        failure = engine_failure(answer.status, answer.body)
        headers = beside_own_body(answer.headers)
        return json_reply(error_object(failure), status=error_status(failure), headers=headers)

    def counted(self, tokens: int) -> Reply:
        """See ``trio_sessions.service.dialect.CountingDialect``."""
        return json_reply({"input_tokens": tokens})


@dataclass(frozen=True, slots=True, eq=False)
class MessagesExchange:
    """See ``trio_sessions.service.dialect.Exchange``."""

    chat: ChatBody
    stream: bool
    dropped: Sequence[str]
    writer: MessagesWriter
    extends: Checkpoint | None


@dataclass(frozen=True, slots=True)
class MessagesWriter:
    """See ``trio_sessions.service.dialect.AnswerWriter``; ``frame`` is what is known of the answer."""

    frame: Frame

    @property
    def response_id(self) -> str:
        """Ours."""
        return self.frame.response_id

    def reply(self, answer: EngineAnswer) -> Reply:
        """The message."""
        headers = (*beside_own_body(answer.headers), ("request-id", self.response_id))
        return json_reply(self.frame.whole(answer), headers=headers)

    def events(self) -> MessagesEvents:
        """The message in pieces."""
        return MessagesEvents(self.frame)
