"""For whom every route is, by its rule. What is on none of them is for operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trio_sessions.web.access import Audience

AUDIENCES: Final[Mapping[str, Audience]] = {
    "/health": Audience.ANYONE,
    "/openapi.json": Audience.ANYONE,
    "/metrics": Audience.OPERATOR,
    "/sessions": Audience.OPERATOR,
    "/sessions/<session_id>": Audience.OPERATOR,
    "/sessions/<session_id>/samples": Audience.OPERATOR,
    "/sessions/<session_id>/<path:path>": Audience.AGENT,
    "/sessions/<session_id>/agents/<agent>/<path:path>": Audience.AGENT,
}
