"""Legal requests of every dialect, with something in each of their places."""

from __future__ import annotations

from typing import Any

from tests.web.support import CHAT

TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Finds it.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string", "enum": ["a", "b"]}}},
    },
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"what":"a"}'}}

CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "temperature": 0.5},
    {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "n"},
            {"role": "assistant", "content": "yes", "reasoning_content": "hm", "tool_calls": [CALL]},
            {"role": "tool", "content": "found", "tool_call_id": "call_1"},
            {"role": "user", "content": "and?"},
        ],
        "tools": [TOOL],
        "tool_choice": "auto",
        "chat_template_kwargs": {"enable_thinking": True, "note": "n"},
        "stop": ["end"],
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "n": 1,
        "lora_path": "other",
        "input_ids": [1, 2],
        "logprob_start_len": 0,
        "routed_experts_start_len": 3,
        "response_format": {"type": "json_object"},
        "logit_bias": {"5": -1},
        "user": "u",
    },
]
MESSAGES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "model": "m"},
    {
        "model": "m",
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "msg_1"},
                    {"type": "text", "text": "yes"},
                    {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {"what": "a"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "is_error": True,
                        "content": [{"type": "text", "text": "found"}, {"type": "image", "source": {"type": "base64"}}],
                    },
                    {"type": "document", "source": {"type": "text", "data": "text", "media_type": "text/plain"}},
                ],
            },
        ],
        "tools": [{"name": "find", "description": "Finds it.", "input_schema": TOOL["function"]["parameters"]}],
        "tool_choice": {"type": "tool", "name": "find", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "stop_sequences": ["end"],
        "metadata": {"user_id": "u"},
        "max_tokens": 5,
        "top_k": 3,
        "top_p": 0.5,
        "stream": True,
        "chat_template_kwargs": {"note": "n"},
    },
]
RESPONSES: list[dict[str, Any]] = [
    {"input": "hi", "max_output_tokens": 5},
    {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {"type": "message", "role": "developer", "content": "hm"},
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "hi"}, {"type": "input_image", "file_id": "f"}],
            },
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "so"}]},
            {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "find", "arguments": '{"what":"a"}'},
            {"type": "function_call_output", "call_id": "call_1", "output": "found"},
            {"type": "custom_tool_call", "call_id": "call_2", "name": "run", "input": "ls"},
            {"type": "custom_tool_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "x"}]},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "yes"}],
                "id": "msg_1",
            },
            {"type": "message", "role": "user", "content": "and?"},
        ],
        "tools": [
            {"type": "function", "name": "find", "parameters": TOOL["function"]["parameters"], "strict": True},
            {
                "type": "custom",
                "name": "run",
                "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"},
            },
            {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "find"}]},
            {"type": "web_search"},
        ],
        "tool_choice": {"type": "function", "name": "find"},
        "text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}}, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "metadata": {"k": "v"},
        "stream": True,
        "store": False,
        "truncation": "disabled",
        "user": "u",
        "prompt_cache_key": "p",
    },
]
SAMPLES: list[dict[str, Any]] = [
    {"max_seq_len": 100, "metadata": {"reward": 1.0, "note": "n", "rewards": {"x": 0.5}}, "rewards": {}}
]

DOCUMENTS = {
    CHAT: CHATS,
    f"agents/a/{CHAT}": CHATS,
    "v1/messages": MESSAGES,
    "v1/messages/count_tokens": MESSAGES,
    "v1/responses": RESPONSES,
    "samples": SAMPLES,
}
"""By the path below a session."""
