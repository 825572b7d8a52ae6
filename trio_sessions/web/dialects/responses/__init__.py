"""OpenAI's Responses API: what Codex and the agents built on the SDK's ``responses`` speak.

Source of the rules: docs/dialects.md, "Responses".
"""

from trio_sessions.web.dialects.responses.dialect import ResponsesDialect

__all__ = ["ResponsesDialect"]
