"""The dialect, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from trio_sessions.core import json
from trio_sessions.core.history import Checkpoint
from trio_sessions.core.request import ChatBody
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.engine.headers import from_engine, json_from_engine
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
        request = read_request(body, reading.roles)
        return MessagesExchange(
            chat=request.chat,
            stream=request.stream,
            dropped=request.dropped,
            frame=Frame(response_id=f"msg_{reading.new_id()}", model=request.model, thinking=request.thinking),
        )

    def failed(self, failure: Failure) -> Reply:
        """Anthropic's error object."""
        return json_reply(error_object(failure), status=error_status(failure))

    def refused(self, answer: EngineAnswer) -> Reply:
        """The same, with what the engine said."""
        failure = engine_failure(answer)
        # The body is another one; when to try again is for the client to know.
        headers = [(name, value) for name, value in from_engine(answer.headers) if name.lower() != "content-type"]
        return json_reply(error_object(failure), status=error_status(failure), headers=headers)


@dataclass(frozen=True, slots=True, eq=False)
class MessagesExchange:
    """See ``trio_sessions.service.dialect.Exchange``; ``frame`` is what is known of the answer."""

    chat: ChatBody
    stream: bool
    dropped: Sequence[str]
    frame: Frame
    extends: Checkpoint | None = None

    @property
    def response_id(self) -> str:
        """Drawn here: a stream may begin before the engine has answered."""
        return self.frame.response_id

    def under(self, response_id: str | None) -> MessagesExchange:
        """The same with the response id of an attempt that it repeats."""
        return self if response_id is None else replace(self, frame=replace(self.frame, response_id=response_id))

    def answered(self, answer: EngineAnswer) -> Reply:
        """The message."""
        headers = (*json_from_engine(answer.headers), ("request-id", self.response_id))
        return Reply(status=answer.status, headers=headers, body=json.encode(self.frame.whole(answer)))

    def events(self) -> MessagesEvents:
        """The message in pieces."""
        return MessagesEvents(self.frame)
