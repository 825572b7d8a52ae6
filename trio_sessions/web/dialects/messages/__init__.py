"""Anthropic's Messages API.

Source of the rules: the HTTP contract (docs/wire.md), "Messages dialect".
"""

from trio_sessions.web.dialects.messages.dialect import MessagesDialect

__all__ = ["MessagesDialect"]
