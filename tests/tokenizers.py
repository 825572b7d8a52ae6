"""Where the real tokenizers of the test extra are."""

from __future__ import annotations

from benchmarks.tokenizers import qwen3_tokenizer

__all__ = ["qwen3_tokenizer"]
