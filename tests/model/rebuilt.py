"""The sample of a linear session, from nothing but what ``GET`` says of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from trio_sessions.core.completion import Completion
from trio_sessions.core.history import Attachment, Checkpoint, RenderedWith, TurnRecord
from trio_sessions.core.samples import AssemblyRules, Sample, collect_line
from trio_sessions.core.tokens import as_token_ids


def sample_of(state: dict[str, Any], decode: Callable[[Any], str]) -> Sample:
    path: list[Checkpoint] = []
    stored: list[int] = []
    for record in state["records"]:
        prompt = record["request"]["input_ids"]
        choice = record["response"]["choices"][0]
        entries = choice["meta_info"]["output_token_logprobs"]
        keep = len(stored) if prompt[: len(stored)] == stored else len(stored) - 1
        base = path[-1] if path else None
        attachment = Attachment(base, (), ({"role": "user", "content": ""},), {}, ticket=0, discards=0)
        path.append(
            attachment.checkpoint(
                keep=keep,
                suffix=as_token_ids(prompt[keep:]),
                synthetic=0,
                rendered_with=RenderedWith.of(None, {}),
                events=(),
                completion=Completion(
                    token_ids=as_token_ids([entry[1] for entry in entries]),
                    log_probs=np.array([entry[0] for entry in entries]),
                    message=choice["message"],
                    finish_reason=choice["finish_reason"],
                    response_id=record["response"]["id"],
                ),
                record=TurnRecord(
                    timestamp=record["timestamp"],
                    request_timestamp=record["request_timestamp"],
                    method="POST",
                    request_fields=b"{}",
                    respelled={},
                    response=json.dumps(record["response"]).encode(),
                    status_code=200,
                ),
            )
        )
        stored = prompt + [entry[1] for entry in entries]
    rules = AssemblyRules(decode=decode, max_trim_tokens=state["metadata"]["max_trim_tokens"])
    (sample,) = collect_line(path, rules).samples
    return sample
