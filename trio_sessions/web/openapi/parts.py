"""What operations are described with: bodies, answers, parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

__all__ = [
    "EVENTS",
    "JSON",
    "OCTETS",
    "TEXT",
    "Answer",
    "Body",
    "Operation",
    "Parameter",
    "Schema",
    "Status",
    "named",
]

Schema: TypeAlias = Mapping[str, Any]
"""A JSON Schema of 2020-12."""

Status: TypeAlias = int | Literal["default"]
"""Of an answer; ``default`` for those that only the engine knows."""

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
OCTETS: Final = "application/octet-stream"
TEXT: Final = "text/plain"


def named(name: str) -> Schema:
    """A reference to a schema among the document's components."""
    return {"$ref": f"#/components/schemas/{name}"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """What stands in the path, in the query or in a header.

    Attributes:
        name: in the path or the query, or of the header.
        where: ``path``, ``query`` or ``header``; what is in the path has to be there.
        description: what it means.
        schema: of its value.
    """

    name: str
    where: Literal["path", "query", "header"]
    description: str
    schema: Schema

    def spelled(self) -> dict[str, Any]:
        """The parameter object."""
        return {
            "name": self.name,
            "in": self.where,
            "required": self.where == "path",
            "description": self.description,
            "schema": self.schema,
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer.

    Attributes:
        description: when it is given.
        content: schemas by media type; a media type without one is bytes. Nothing where the body is the engine's.
        headers: descriptions of headers of ours, by name; their values are numbers.
        name: among the document's components, of one that many operations have; empty for one of its own.
    """

    description: str
    content: Mapping[str, Schema | None] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    name: str = ""

    def spelled(self) -> dict[str, Any]:
        """The response object."""
        spelled: dict[str, Any] = {"description": self.description}
        if self.headers:
            spelled["headers"] = {
                name: {"description": description, "schema": {"type": "integer", "minimum": 0}}
                for name, description in self.headers.items()
            }
        if self.content:
            spelled["content"] = _content(self.content)
        return spelled


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request; its content type does not matter.

    Attributes:
        schema: of the JSON in it.
        required: whether there has to be one.
    """

    schema: Schema
    required: bool = True

    def spelled(self) -> dict[str, Any]:
        """The request body object."""
        return {"required": self.required, "content": _content({JSON: self.schema})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path.

    Attributes:
        method: in lower case.
        path: with parameters in braces.
        name: unique; clients that are generated call it so.
        tag: the group it belongs to.
        summary: what it does.
        answers: by status.
        parameters: of its path, its query and its headers.
        body: of the request; None where none is read.
        needs_key: whether a key is asked for where the server has keys.
    """

    method: str
    path: str
    name: str
    tag: str
    summary: str
    answers: Mapping[Status, Answer]
    parameters: Sequence[Parameter] = ()
    body: Body | None = None
    needs_key: bool = True

    def spelled(self) -> dict[str, Any]:
        """The operation object."""
        spelled: dict[str, Any] = {"operationId": self.name, "tags": [self.tag], "summary": self.summary}
        if not self.needs_key:
            spelled["security"] = []
        if self.parameters:
            spelled["parameters"] = [parameter.spelled() for parameter in self.parameters]
        if self.body is not None:
            spelled["requestBody"] = self.body.spelled()
        spelled["responses"] = {
            str(status): {"$ref": f"#/components/responses/{answer.name}"} if answer.name else answer.spelled()
            for status, answer in self.answers.items()
        }
        return spelled


def _content(schemas: Mapping[str, Schema | None]) -> dict[str, Any]:
    return {media: {} if schema is None else {"schema": schema} for media, schema in schemas.items()}
