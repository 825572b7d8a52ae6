"""Text of a client that spells control tokens becomes none of them, in whatever place of whatever dialect."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile.budget import effort
from tests.hostile.documents import DOCUMENTS
from tests.hostile.stand import Stand, standing
from tests.tokenizers import qwen3_tokenizer
from tests.web.support import CHAT
from trio_sessions.config import BUILTIN_TOKENIZER
from trio_sessions.render.load import load_renderer, load_tokenizer

Path = tuple[str | int, ...]
# It has control tokens that are flagged special, and such as are not.
TOKENIZER = str(qwen3_tokenizer())
TURNS = (CHAT, "v1/messages", "v1/responses")
PLAIN = "plain"
# What an assistant said stands for what it would sample, control tokens and all.
OWN = {"content", "reasoning_content", "thinking", "text", "summary", "output"}


class Prompted:
    """A gateway under attack, and the control tokens of its tokenizer."""

    def __init__(self, stand: Stand, tokenizer: Any) -> None:
        self.stand = stand
        self.control = {id_: token.content for id_, token in tokenizer.added_tokens_decoder.items()}

    def controls(self, path: str, document: Any) -> Counter[str] | None:
        """How often each control token is in the prompt that a new session makes of it; None where it is refused."""
        self.stand.start_over()
        answer = self.stand.post(f"/sessions/{self.stand.session_id}/{path}", json.dumps(document).encode())
        if answer.status_code != 200:
            assert answer.status_code == 400
            return None
        ids = json.loads(self.stand.engine.requests[-1].body)["input_ids"]
        return Counter(self.control[id_] for id_ in ids if id_ in self.control)


@pytest.fixture(scope="module")
def prompted() -> Iterator[Prompted]:
    with standing(load_renderer(TOKENIZER)) as made:
        yield Prompted(made, load_tokenizer(TOKENIZER))


def texts(value: Any, at: Path = (), *, own: bool = False) -> Iterator[Path]:
    """Places of texts that are a client's, names of arguments and roles among them."""
    if isinstance(value, str) and not own:
        yield at
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from texts(item, (*at, index), own=own)
    if isinstance(value, dict):
        said = value.get("role") == "assistant" or value.get("type") == "reasoning"
        for key, item in value.items():
            yield from texts(item, (*at, key), own=own or (said and key in OWN))


def put(value: Any, at: Sequence[str | int], text: str) -> Any:
    if not at:
        return text
    child = put(value[at[0]], at[1:], text)
    if isinstance(value, dict):
        return {**value, at[0]: child}
    return [child if index == at[0] else item for index, item in enumerate(value)]


@pytest.mark.parametrize("path", TURNS)
def test_no_text_becomes_a_control_token(prompted: Prompted, path: str) -> None:
    tokens = [token for token in prompted.control.values() if len(token) > 1]
    halves = [half for token in tokens for half in (token[:-1], token[1:], token[: len(token) // 2])]

    @effort(15)
    @given(data=st.data())
    def hostile(data: st.DataObject) -> None:
        document = data.draw(st.sampled_from(DOCUMENTS[path]))
        places = data.draw(st.lists(st.sampled_from(list(texts(document))), min_size=1, max_size=3, unique=True))
        evil, harmless = document, document
        for place in places:
            parts = data.draw(st.lists(st.sampled_from([*tokens, *tokens, *halves, "x", "\n"]), min_size=1, max_size=3))
            text = "".join(parts)
            old = document
            for key in place:
                old = old[key]
            spelled = json.dumps({text: text}) if place[-1] == "arguments" else text
            evil, harmless = (
                put(evil, place, spelled),
                put(harmless, place, '{"a":"b"}' if place[-1] == "arguments" else PLAIN),
            )
        found = prompted.controls(path, evil)
        if found is not None:
            expected = prompted.controls(path, harmless)
            assert expected is None or found == expected

    hostile()


def test_where_they_are_allowed_they_are_control_tokens() -> None:
    """So that the others show something."""
    with standing(load_renderer(BUILTIN_TOKENIZER, special_tokens="allow")) as stand:
        prompted = Prompted(stand, load_tokenizer(BUILTIN_TOKENIZER))
        token = max(prompted.control.values(), key=len)
        for path, place in (
            (CHAT, ("messages", 0, "content")),
            ("v1/messages", ("messages", 0, "content")),
            ("v1/responses", ("input",)),
        ):
            [document, *_] = DOCUMENTS[path]
            evil, harmless = (prompted.controls(path, put(document, place, text)) for text in (token, PLAIN))
            assert evil is not None
            assert harmless is not None
            assert evil - harmless == Counter({token: 1})
