"""A message as server-sent events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from trio_sessions.core.stream import Delta
from trio_sessions.engine.base import EngineAnswer
from trio_sessions.service.failure import Failure
from trio_sessions.web.dialects.answer import ChatAnswer, Usage
from trio_sessions.web.dialects.messages.answer import Frame, spelled_usage, stop_of
from trio_sessions.web.dialects.messages.content import ContentBlock, TextContent, ThinkingContent
from trio_sessions.web.dialects.messages.errors import error_object
from trio_sessions.web.dialects.sse import named_event

__all__ = ["MessagesEvents"]

_NOT_STOPPED: Final = {"stop_reason": None, "stop_sequence": None, "stop_details": None}
_NO_USAGE: Final = Usage(prompt=0, completion=0, cached=0)


class MessagesEvents:
    """See ``trio_sessions.service.dialect.EventWriter``.

    Args:
        frame: what is known of the answer.
    """

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._opened = False
        # The block that was started and not stopped, and how many came before it.
        self._current: ContentBlock | None = None
        self._index = 0
        # How much of each text was written.
        self._written = {ThinkingContent: 0, TextContent: 0}

    def opening(self) -> bytes:
        """A message with an empty text, which can be kept alive; pings do not keep Claude Code."""
        return b"".join((*self._open(_NO_USAGE), *self._begin(TextContent(""))))

    def keep_alive(self) -> bytes:
        """Nothing more of the block."""
        if isinstance(self._current, ThinkingContent):
            return self._delta({"type": "thinking_delta", "thinking": ""})
        return self._delta({"type": "text_delta", "text": ""})

    def delta(self, delta: Delta) -> bytes:
        """What is new, in the block of its kind."""
        events: list[bytes] = []
        if delta.reasoning and self._frame.thinking:
            events += self._open(_NO_USAGE)
            events += self._continue(ThinkingContent(delta.reasoning, self._frame.response_id))
        if delta.content:
            events += self._open(_NO_USAGE)
            events += self._continue(TextContent(delta.content))
        return b"".join(events)

    def finish(self, answer: EngineAnswer) -> bytes:
        """What is missing of the blocks, why the message ended, and its end."""
        chat = ChatAnswer.of(answer)
        usage = spelled_usage(chat.usage)
        events = [*self._open(Usage(chat.usage.prompt, 0, chat.usage.cached))]
        for block in self._frame.blocks(chat):
            events += self._rest(block)
        events += self._stop()
        events.append(named_event({"type": "message_delta", "delta": stop_of(chat).spelled(), "usage": usage}))
        events.append(named_event({"type": "message_stop"}))
        return b"".join(events)

    def broken(self, failure: Failure) -> bytes:
        """The error object."""
        return named_event(error_object(failure))

    def _open(self, usage: Usage) -> Iterator[bytes]:
        if not self._opened:
            self._opened = True
            message = self._frame.message([], _NOT_STOPPED, spelled_usage(usage))
            yield named_event({"type": "message_start", "message": message})

    def _rest(self, block: ContentBlock) -> Iterator[bytes]:
        """What is missing of a block of the answer, which may be all of it."""
        match block:
            case TextContent(text):
                written = self._written[TextContent]
                if not written or written < len(text):
                    yield from self._continue(TextContent(text[written:]))
            case ThinkingContent(thinking, signature):
                written = self._written[ThinkingContent]
                if written < len(thinking):
                    yield from self._continue(ThinkingContent(thinking[written:], signature))
            case _:
                yield from self._begin(block)
                for delta in block.deltas():
                    yield self._delta(delta)

    def _continue(self, more: TextContent | ThinkingContent) -> Iterator[bytes]:
        """More of the text of one kind, which goes on in its block if that is the one that was started last."""
        if type(more) is not type(self._current):
            yield from self._begin(more)
        self._written[type(more)] += len(more.text)
        for delta in more.deltas():
            yield self._delta(delta)

    def _begin(self, block: ContentBlock) -> Iterator[bytes]:
        yield from self._stop()
        self._current = block
        yield named_event({"type": "content_block_start", "index": self._index, "content_block": block.start()})

    def _stop(self) -> Iterator[bytes]:
        if self._current is not None:
            for delta in self._current.ending():
                yield self._delta(delta)
            self._current = None
            yield named_event({"type": "content_block_stop", "index": self._index})
            self._index += 1

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return named_event({"type": "content_block_delta", "index": self._index, "delta": delta})
