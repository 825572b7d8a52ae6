"""What the log is told of a request, by every dialect that leaves something out."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import PATIENT
from tests.web.dialects.readings import unanswered
from trio_sessions.service.dialect import Dialect
from trio_sessions.web.dialects.dropped import Dropped, placeholder
from trio_sessions.web.dialects.messages import MessagesDialect
from trio_sessions.web.dialects.responses import ResponsesDialect

MANY = 3000
INVENTED = [f"kind_{number}" for number in range(MANY)]


def messages(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], **fields}


def responses(*items: Any, **fields: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": "hi"}, *items], **fields}


def parts(kinds: Sequence[str]) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": kind} for kind in kinds]}


@pytest.mark.parametrize(
    ("dialect", "request_of"),
    [
        (MessagesDialect(), lambda kinds: {"messages": [parts(kinds)]}),
        (MessagesDialect(), lambda kinds: messages(tools=[{"type": kind} for kind in kinds])),
        (MessagesDialect(), lambda kinds: messages(**dict.fromkeys(kinds, 1))),
        (ResponsesDialect(), lambda kinds: responses(parts(kinds))),
        (ResponsesDialect(), lambda kinds: responses(*({"type": kind} for kind in kinds))),
        (ResponsesDialect(), lambda kinds: responses(tools=[{"type": kind} for kind in kinds])),
    ],
    ids=["blocks", "tools", "fields", "parts", "items", "tools of responses"],
)
class TestEveryKind:
    """Of what a client can invent names for."""

    def dropped(self, dialect: Dialect, body: Any) -> list[str]:
        return list(dialect.read(json.dumps(body).encode(), unanswered()).dropped)

    def test_a_line_is_short_whatever_is_sent(self, dialect: Dialect, request_of: Any) -> None:
        texts = self.dropped(dialect, request_of(INVENTED))
        assert len(texts) == 33
        assert texts[-1] == f"others ({MANY - 32})"
        assert sum(map(len, texts)) < 2000

    def test_each_is_named_and_counted(self, dialect: Dialect, request_of: Any) -> None:
        [once] = self.dropped(dialect, request_of(["kind_a"]))
        assert once.split()[0] == "kind_a"

    @pytest.mark.parametrize("name", ["what somebody said", "a\n", "", "a" * 65, "é", "sk-live-1", "1", 'a"', "a:b"])
    def test_what_is_no_name_is_not_repeated(self, dialect: Dialect, request_of: Any, name: str) -> None:
        [text] = self.dropped(dialect, request_of([name]))
        assert text.split()[0] == "unknown"


def test_they_are_counted() -> None:
    dropped = Dropped()
    for kind, what in (("image", "block"), ("image", "block"), ("image", "tool"), ("stop", ""), ("a b", "tool")):
        dropped.add(kind, what)
    assert list(dropped.texts()) == ["image block (2)", "image tool", "stop", "unknown tool"]


@PATIENT
@given(st.lists(st.tuples(st.text(max_size=3), st.sampled_from(["", "block"])), max_size=100))
def test_every_one_is_counted_once(added: list[tuple[str, str]]) -> None:
    dropped = Dropped()
    for name, what in added:
        dropped.add(name, what)
    texts = dropped.texts()
    assert len(texts) <= 33
    numbers = [int(text.rpartition("(")[2].removesuffix(")")) if text.endswith(")") else 1 for text in texts]
    assert sum(numbers) == len(added)


@given(st.text())
def test_what_stands_for_it_is_one_word(kind: str) -> None:
    assert placeholder(kind) in (f"[{kind} omitted]", "[unknown omitted]")
    assert re.fullmatch(r"\[[a-zA-Z0-9_.]+ omitted\]", placeholder(kind))
