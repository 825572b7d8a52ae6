"""The dialect itself: requests, answers and errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trio_sessions.core.history import Checkpoint
from trio_sessions.core.request import ChatBody
from trio_sessions.engine.base import EngineAnswer, Headers
from trio_sessions.engine.headers import beside_own_body
from trio_sessions.errors import PreviousResponseNotFound
from trio_sessions.service.dialect import Reading
from trio_sessions.service.failure import Failure, engine_failure
from trio_sessions.service.replies import Reply, json_reply
from trio_sessions.web.dialects.answer import ChatAnswer
from trio_sessions.web.dialects.errors import openai_error, settled_status
from trio_sessions.web.dialects.responses.events import ResponseEvents
from trio_sessions.web.dialects.responses.output import ResponseForm
from trio_sessions.web.dialects.responses.request import ResponsesRequest, read_request

__all__ = ["ResponsesDialect", "ResponsesExchange"]


class ResponsesDialect:
    """See ``trio_sessions.service.dialect.Dialect``."""

    name: Final = "responses"
    matcher: Final = "agent"

    def read(self, body: bytes, reading: Reading) -> ResponsesExchange:
        """The request, with what it names of earlier answers in place."""
        return ResponsesExchange(read_request(body, reading))

    def failed(self, failure: Failure) -> Reply:
        """OpenAI's error object."""
        return _error(failure)

    def refused(self, answer: EngineAnswer) -> Reply:
        """What the engine said, in OpenAI's error object."""
        return _error(engine_failure(answer.status, answer.body), beside_own_body(answer.headers))


@dataclass(frozen=True, slots=True)
class ResponsesExchange:
    """See ``trio_sessions.service.dialect.Exchange``."""

    request: ResponsesRequest

    @property
    def chat(self) -> ChatBody:
        """The request as a chat request."""
        return self.request.chat

    @property
    def stream(self) -> bool:
        """Whether the client wants events."""
        return self.request.stream

    @property
    def extends(self) -> Checkpoint | None:
        """The turn that ``previous_response_id`` names, or else the last that the ids of items do."""
        return self.request.extends

    @property
    def dropped(self) -> Sequence[str]:
        """What was left out."""
        return self.request.dropped

    @property
    def writer(self) -> ResponsesWriter:
        """Writes the answer in the request's own form."""
        return ResponsesWriter(self.request.form)


@dataclass(frozen=True, slots=True)
class ResponsesWriter:
    """See ``trio_sessions.service.dialect.AnswerWriter``; ``form`` is how the answer is spelled."""

    form: ResponseForm

    @property
    def response_id(self) -> str:
        """Ours: the stream says it before the engine could."""
        return self.form.ids.response

    def reply(self, answer: EngineAnswer) -> Reply:
        """A Response object."""
        return json_reply(self.form.answered(ChatAnswer.of(answer)), headers=beside_own_body(answer.headers))

    def events(self) -> ResponseEvents:
        """The events that make it."""
        return ResponseEvents(self.form)


def _error(failure: Failure, headers: Headers = ()) -> Reply:
    # Codex gives up at a 429.
    status = 503 if failure.status == 429 else settled_status(failure)
    param = "previous_response_id" if failure.code == PreviousResponseNotFound.code else None
    return json_reply({"error": openai_error(failure, status=status, param=param)}, status=status, headers=headers)
