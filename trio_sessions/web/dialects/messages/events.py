"""A message as server-sent events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from trio_sessions.engine.base import EngineAnswer
from trio_sessions.service.failure import Failure
from trio_sessions.web.dialects.answer import ChatAnswer, Usage
from trio_sessions.web.dialects.messages.answer import Frame, spelled_usage, stop_of
from trio_sessions.web.dialects.messages.content import ContentBlock, TextContent
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

    def opening(self) -> bytes:
        """A message with an empty text, which can be kept alive; pings do not keep Claude Code."""
        self._opened = True
        return self._message_start(_NO_USAGE) + _start(0, TextContent(""))

    def keep_alive(self) -> bytes:
        """Nothing more of the text."""
        return _delta(0, {"type": "text_delta", "text": ""})

    def finish(self, answer: EngineAnswer) -> bytes:
        """The blocks, why the message ended, and its end."""
        chat = ChatAnswer.of(answer)
        usage = spelled_usage(chat.usage)
        events = [] if self._opened else [self._message_start(Usage(chat.usage.prompt, 0, chat.usage.cached))]
        events += self._blocks(chat)
        events.append(named_event({"type": "message_delta", "delta": stop_of(chat).spelled(), "usage": usage}))
        events.append(named_event({"type": "message_stop"}))
        return b"".join(events)

    def broken(self, failure: Failure) -> bytes:
        """The error object."""
        return named_event(error_object(failure))

    def _message_start(self, usage: Usage) -> bytes:
        message = self._frame.message([], _NOT_STOPPED, spelled_usage(usage))
        return named_event({"type": "message_start", "message": message})

    def _blocks(self, answer: ChatAnswer) -> Iterator[bytes]:
        blocks = self._frame.blocks(answer)
        started = self._opened
        if started and not isinstance(blocks[0], TextContent):
            blocks = [TextContent(""), *blocks]
        for index, block in enumerate(blocks):
            if not started:
                yield _start(index, block)
            started = False
            for delta in block.deltas():
                yield _delta(index, delta)
            yield named_event({"type": "content_block_stop", "index": index})


def _start(index: int, block: ContentBlock) -> bytes:
    return named_event({"type": "content_block_start", "index": index, "content_block": block.start()})


def _delta(index: int, delta: dict[str, Any]) -> bytes:
    return named_event({"type": "content_block_delta", "index": index, "delta": delta})
