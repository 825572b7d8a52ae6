"""What the matcher for agents must not take for the same."""

from __future__ import annotations

from typing import Any

import pytest

from trio_sessions.core.matchers import agent


def result(text: str, role: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}, {"type": "text", "text": "rest"}]}


@pytest.mark.parametrize("role", ["tool", "user", "assistant"])
def test_only_a_system_prompt_has_a_block_that_bills(role: str) -> None:
    """Whoever reads a log of such requests has results and texts that begin like the block, and they count."""
    before, after = result("x-anthropic-billing-header: 1", role), result("x-anthropic-billing-header: 2", role)
    assert not agent(before, after)
