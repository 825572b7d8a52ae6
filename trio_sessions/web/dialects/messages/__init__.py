"""Anthropic's Messages API.

Source of the rules: docs/dialects.md, "Messages".
"""

from trio_sessions.web.dialects.messages.dialect import MessagesDialect

__all__ = ["MessagesDialect"]
