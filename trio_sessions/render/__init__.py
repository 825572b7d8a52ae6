"""Chat template to token ids: the only package, besides the embedded engine, that knows a tokenizer library."""
