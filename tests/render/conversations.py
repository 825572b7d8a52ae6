"""Hypothesis strategies for conversations, and what a sampler may have made of an assistant turn."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from trio_sessions.render.template import TemplateRenderer

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=25)

# Control tokens of all the families, words, and characters that take several bytes or merge across a cut.
_PIECES = st.sampled_from(
    ("hello", " world", "\n", "\n\n", " ", "42", "é", "日本", "🙂", "a", "zqSentinel0qz", "zqSentinel")
)
_CONTROLS = st.sampled_from(
    ("<|im_end|>", "<|im_start|>", "</s>", "[INST]", "<|eot_id|>", "<|user|>", "<|observation|>", "<think>", "</think>")
)
texts = st.lists(_PIECES | _CONTROLS | st.text(max_size=4).filter(str.isprintable), max_size=6).map("".join)
plain_texts = st.lists(st.sampled_from(["hello", " world", " 42", " fox", " é", " 日本"]), min_size=1, max_size=5).map(
    "".join
)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": text} | ({"tool_calls": list(calls)} if calls else {})


def tool(text: str, call_id: str = "call00001") -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": call_id, "name": "lookup"}


def call(arguments: Any, call_id: str = "call00001") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "lookup", "arguments": arguments}}


def appended(roles: frozenset[str], *, results_first: bool = False) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Messages that may follow an assistant turn.

    With ``results_first`` they are results only, or hold none.
    """
    if results_first:
        return appended(roles - {"tool"}) | appended(frozenset({"tool"}))
    message = st.builds(
        lambda role, text: tool(text) if role == "tool" else {"role": role, "content": text},
        st.sampled_from(sorted(roles)),
        texts,
    )
    return st.lists(message, max_size=3)


def ids_of(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def stored_after(
    renderer: TemplateRenderer, *conversation: dict[str, Any], sampled: str, stop: int | None
) -> np.ndarray:
    """Prompt of ``conversation`` and a sampled turn, spelled byte by byte as a rendering would not, with a stop id."""
    prompt = renderer.render(conversation, tools=None, kwargs={})
    spelled = [i for character in sampled for i in renderer._codec.encode(character)]
    return ids_of(*prompt.tolist(), *spelled, *(() if stop is None else (stop,)))


def terminator(renderer: TemplateRenderer, role: str = "user") -> int:
    return renderer.profile.roles[role].usual.terminator_id


def prompt_of(stored: np.ndarray, extension: Any) -> list[int]:
    return [*stored[: extension.keep].tolist(), *extension.token_ids.tolist()]
