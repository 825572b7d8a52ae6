"""Template kwargs: launch defaults, a request's own, and the names that belong to the gateway."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

__all__ = ["complaint_about"]

# Parameters of transformers' apply_chat_template, and what the template gets from us in another way.
_OURS: Final = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "conversations",
        "frozen_clock",
        "max_length",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "self",
        "strftime_now",
        "tokenize",
        "tokenizer_kwargs",
        "truncation",
    }
)
_TOP_LEVEL: Final = frozenset({"messages", "tools"})


def complaint_about(kwargs: Mapping[str, Any], *, special_token_names: Collection[str]) -> str | None:
    """What is wrong with template kwargs, as a sentence, or None.

    Args:
        kwargs: the launch defaults or a request's ``chat_template_kwargs``.
        special_token_names: names such as ``bos_token`` under which the template sees the tokenizer's special tokens;
            they are facts of the model, not options.
    """
    for name in kwargs:
        if name in _TOP_LEVEL:
            return f"{name} belongs at the top level of the request, not in chat_template_kwargs"
        if name in _OURS or name in special_token_names:
            return f"{name} cannot be set in chat_template_kwargs: the session server decides it"
    return None
