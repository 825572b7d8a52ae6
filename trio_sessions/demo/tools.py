"""The demo agent's tools: tiny, and real, so that what they answer depends on what was called."""

from __future__ import annotations

import json
from typing import Any, Final

__all__ = ["TOOLS", "execute"]

_WEATHER: Final = {
    "Lisbon": {"sky": "sunny", "celsius": 24},
    "Oslo": {"sky": "snowy", "celsius": -3},
    "Kyoto": {"sky": "rainy", "celsius": 17},
}

TOOLS: Final[list[dict[str, Any]]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Today's weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": sorted(_WEATHER)}},
                "required": ["city"],
            },
        },
    }
]
"""What the agent offers the model, as a chat request spells it."""


def execute(name: str, arguments: str) -> str:
    """What the tool ``name`` answers to ``arguments`` (JSON text); a wrong call gets a sentence."""
    if name != "get_weather":
        return json.dumps({"error": f"there is no tool {name}"})
    try:
        decoded = json.loads(arguments)
    except ValueError:
        return json.dumps({"error": "the arguments are not JSON"})
    city = decoded.get("city") if isinstance(decoded, dict) else None
    if city not in _WEATHER:
        return json.dumps({"error": f"city must be one of {', '.join(sorted(_WEATHER))}"})
    return json.dumps({"city": city, **_WEATHER[city]})
