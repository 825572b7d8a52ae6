"""The HTTP contract as an OpenAPI document, from typed tables."""

from trio_sessions.web.openapi.document import openapi_document

__all__ = ["openapi_document"]
