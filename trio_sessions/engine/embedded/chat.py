"""The embedded engine: SGLang's chat contract answered by a language model, as a function from bytes to bytes.

Nothing in here waits or knows of HTTP: the HTTP application and the in-process engine share it.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trio_sessions import data
from trio_sessions.config import BUILTIN_TOKENIZER
from trio_sessions.engine.embedded import replay
from trio_sessions.engine.embedded.answer import Goal, parse_message
from trio_sessions.engine.embedded.causal import CausalLanguage, CausalModel
from trio_sessions.engine.embedded.chunks import chunked_reply
from trio_sessions.engine.embedded.family import Family
from trio_sessions.engine.embedded.language import LanguageModel, NGramLanguage, never
from trio_sessions.engine.embedded.load import load_fast_tokenizer
from trio_sessions.engine.embedded.model import NGramModel
from trio_sessions.engine.embedded.prompt import PrefixCache, thinking_of
from trio_sessions.engine.embedded.render import render_prompt
from trio_sessions.engine.embedded.reply import EngineReply, error_reply, json_reply, sse_reply, usage
from trio_sessions.engine.embedded.request import (
    BadRequest,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    chat_request,
    decoded,
    goal_of,
    sampling_of,
)
from trio_sessions.engine.embedded.sampler import Generation, Sampler, Sampling
from trio_sessions.engine.embedded.training import train_model
from trio_sessions.engine.embedded.vocabulary import Vocabulary
from trio_sessions.errors import ConfigurationError

__all__ = ["Cut", "EmbeddedEngine"]


Cut = Literal["length", "abort"]
TokenIds = npt.NDArray[np.int32]


class EmbeddedEngine:
    """An engine with an honest sampler. Thread-safe; every method is synchronous.

    With the toy model an answer takes some milliseconds.

    Args:
        tokenizer: ``"builtin"``, a folder in the layout of ``transformers``, a hub id, or a loaded fast tokenizer. Any
            byte-level tokenizer will do; for another one than the built-in the toy model is trained while loading.
        model: what answers; None for the toy model.
        seed: makes requests without a ``seed`` of their own repeatable (in order of arrival); None for chance.
        model_name: what ``/v1/models`` calls the model.
        context_length: most ids of a prompt and its answer.
        weight_version: as reported in ``meta_info``.
        replay_layers, replay_top_k: shape of the replay payloads.
        clock: seconds since the epoch, for ``created``.

    Raises:
        ConfigurationError: the tokenizer cannot be loaded, is not byte-level, or has more ids than the model.
    """

    def __init__(
        self,
        tokenizer: Any = BUILTIN_TOKENIZER,
        *,
        model: CausalModel | None = None,
        seed: int | None = None,
        model_name: str = "embedded",
        context_length: int = 131_072,
        weight_version: str = "default",
        replay_layers: int = 2,
        replay_top_k: int = 2,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.model_name = model_name
        self.context_length = context_length
        self.weight_version = weight_version
        self._layers = replay_layers
        self._top_k = replay_top_k
        self._clock = clock
        self._seed = secrets.token_hex(8) if seed is None else str(seed)
        self._ordinals = itertools.count()
        self._tokenizer = load_fast_tokenizer(str(tokenizer)) if isinstance(tokenizer, str | Path) else tokenizer
        self._encoder = self._tokenizer.backend_tokenizer
        self.vocabulary = Vocabulary.of(self._encoder)
        self.family = Family.of(self._tokenizer, self.vocabulary, () if model is None else model.stop_ids)
        self.language = self._toy(tokenizer) if model is None else self._causal(model)
        self._cache = PrefixCache()
        self._special_ids = frozenset(
            token_id for token_id, token in self._encoder.get_added_tokens_decoder().items() if token.special
        )

    def _toy(self, tokenizer: Any) -> LanguageModel:
        if isinstance(tokenizer, str) and tokenizer == BUILTIN_TOKENIZER:
            model = NGramModel.load(data.builtin_model_path(), known=self.vocabulary.known)
        else:
            model = train_model(self._encoder, self.vocabulary, self.family)
        return NGramLanguage(Sampler(model, self.vocabulary), self.family)

    def _causal(self, model: CausalModel) -> LanguageModel:
        if model.size < self.vocabulary.size:
            raise ConfigurationError(f"the model has {model.size} ids, its tokenizer {self.vocabulary.size}")
        return CausalLanguage(model, self.vocabulary, self.family)

    def handle(
        self,
        method: str,
        path: str,
        body: bytes,
        *,
        cut: Cut | None = None,
        given_up: Callable[[], bool] = never,
    ) -> EngineReply:
        """The answer to any request; ``path`` has no query and may begin with a slash.

        Args:
            method: HTTP method.
            path: as in ``v1/chat/completions``.
            body: request body.
            cut: leave the last id of a chat answer out, as if it had been broken off for this reason.
            given_up: whether nobody waits for the answer any more.
        """
        route = (method.upper(), path.strip("/"))
        try:
            match route:
                case ("POST", "v1/chat/completions"):
                    return self.complete(body, cut=cut, given_up=given_up)
                case ("POST", "v1/completions"):
                    return self._completion(body, given_up)
                case ("POST", "tokenize"):
                    return self._tokenize(body)
                case ("POST", "detokenize"):
                    return self._detokenize(body)
                case ("GET", "health"):
                    return EngineReply(200, (), b"")
                case ("GET", "v1/models"):
                    return json_reply({"object": "list", "data": [self._model_card()]})
                case ("GET" | "POST", "flush_cache"):
                    self._cache.clear()
                    return json_reply({"success": True})
        except BadRequest as error:
            return error_reply(400, str(error))
        return error_reply(404, f"no such route: {route[0]} /{route[1]}", kind="NotFoundError")

    def complete(self, body: bytes, *, cut: Cut | None = None, given_up: Callable[[], bool] = never) -> EngineReply:
        """The answer to ``POST /v1/chat/completions``; what is wrong with a request comes back as a 400.

        Args:
            body: the request, JSON.
            cut, given_up: as in ``handle``.
        """
        started = time.perf_counter()
        try:
            request = chat_request(body)
            sampling = sampling_of(request)
            prompt = self._prompt(request)
            goal = goal_of(request, thinking_of(prompt, self.vocabulary))
            self._check_replay(request)
        except BadRequest as error:
            return error_reply(400, str(error))
        cached = self._cache.cached(prompt) if self.language.is_toy else 0
        generation = self._generate(prompt, goal, sampling, request.seed, given_up)
        if cut is not None and generation.finished:
            generation = Generation(generation.token_ids[:-1], generation.log_probs[:-1], finished=False)
        sequence = np.concatenate((prompt, np.asarray(generation.token_ids, dtype=np.int32)))
        self._cache.remember(sequence)
        answer = self._answer(request, goal, prompt, generation, cut)
        if request.return_meta_info:
            answer["choices"][0]["meta_info"] = {
                "id": answer["id"],
                "finish_reason": self._finish(generation, cut),
                "prompt_tokens": len(prompt),
                "completion_tokens": len(generation.token_ids),
                "cached_tokens": cached,
                "weight_version": self.weight_version,
                **self._log_prob_fields(request, generation),
                **self._replay_fields(request, sequence),
                "e2e_latency": time.perf_counter() - started,
            }
        if not request.stream:
            return json_reply(answer)
        return self._streamed(request, answer, generation) if request.return_meta_info else sse_reply(answer)

    def _streamed(self, request: ChatRequest, answer: dict[str, Any], generation: Generation) -> EngineReply:
        text_bytes = self.vocabulary.text_bytes
        return chunked_reply(
            answer,
            self._text(generation),
            [text_bytes[token_id] for token_id in generation.token_ids],
            include_usage=request.stream_options is not None and request.stream_options.include_usage is True,
        )

    def _check_replay(self, request: ChatRequest) -> None:
        if not self.language.is_toy and (request.return_routed_experts or request.return_indexer_topk):
            raise BadRequest("this engine does not record what its model's router and indexer choose")

    def _prompt(self, request: ChatRequest) -> TokenIds:
        if request.input_ids is None:
            text = render_prompt(self._tokenizer, request)
            ids = self._encoder.encode(text, add_special_tokens=False).ids
        else:
            ids = request.input_ids
        return self._checked(ids)

    def _checked(self, ids: list[int]) -> TokenIds:
        if not ids:
            raise BadRequest("input_ids must not be empty")
        if min(ids) < 0 or max(ids) >= self.vocabulary.size:
            raise BadRequest(f"input_ids must be between 0 and {self.vocabulary.size - 1}")
        if len(ids) >= self.context_length:
            raise BadRequest(
                f"The input ({len(ids)} tokens) is longer than the model's context length "
                f"({self.context_length} tokens)."
            )
        return np.asarray(ids, dtype=np.int32)

    def _generate(
        self, prompt: TokenIds, goal: Goal, sampling: Sampling, seed: int | None, given_up: Callable[[], bool]
    ) -> Generation:
        room = self.context_length - len(prompt)
        limit = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
        chance = f"{self._seed}.{next(self._ordinals)}" if seed is None else f"request {seed}"
        digest = hashlib.blake2b(chance.encode() + prompt.tobytes(), digest_size=16).digest()
        return self.language.answer(
            prompt,
            goal,
            Sampling(sampling.temperature, sampling.top_p, limit, sampling.stop),
            random.Random(digest),  # noqa: S311 - sampling is meant to be repeatable
            given_up,
        )

    def _answer(
        self, request: ChatRequest, goal: Goal, prompt: TokenIds, generation: Generation, cut: Cut | None
    ) -> dict[str, Any]:
        message = parse_message(
            self._text(generation),
            inside_thinking=goal.inside_thinking,
            separate_reasoning=request.separate_reasoning,
            with_tools=bool(request.tools) and request.tool_choice != "none",
            new_call_id=lambda: f"call_{secrets.token_hex(12)}",
        )
        reason = "abort" if cut == "abort" else "stop" if generation.finished else "length"
        if message["tool_calls"] and reason == "stop":
            reason = "tool_calls"
        choice: dict[str, Any] = {
            "index": 0,
            "message": message,
            "logprobs": self._openai_log_probs(generation) if request.logprobs else None,
            "finish_reason": reason,
            "matched_stop": self._finish(generation, cut).get("matched"),
        }
        if request.return_prompt_token_ids:
            choice["prompt_token_ids"] = prompt.tolist()
        return {
            "id": f"chatcmpl-{secrets.token_hex(16)}",
            "object": "chat.completion",
            "created": int(self._clock()),
            "model": request.model,
            "choices": [choice],
            "usage": usage(len(prompt), len(generation.token_ids)),
        }

    def _text(self, generation: Generation) -> str:
        """The text of an answer without its stop token, or up to the stop text that ended it."""
        ids = generation.token_ids
        if generation.matched is not None:
            text = self.vocabulary.decode(ids)
            return text[: text.find(generation.matched)]
        return self.vocabulary.decode(ids[:-1] if generation.finished else ids)

    def _finish(self, generation: Generation, cut: Cut | None) -> dict[str, Any]:
        if cut == "abort":
            return {"type": "abort", "message": "Aborted"}
        if not generation.finished:
            return {"type": "length", "length": len(generation.token_ids)}
        last = generation.token_ids[-1]
        return {"type": "stop", "matched": last if generation.matched is None else generation.matched}

    def _openai_log_probs(self, generation: Generation) -> dict[str, Any]:
        text_bytes = self.vocabulary.text_bytes
        return {
            "content": [
                {
                    "token": text_bytes[token_id].decode("utf-8", errors="replace"),
                    "logprob": log_prob,
                    "bytes": list(text_bytes[token_id]),
                    "top_logprobs": [],
                }
                for token_id, log_prob in zip(generation.token_ids, generation.log_probs, strict=True)
            ]
        }

    def _log_prob_fields(self, request: ChatRequest, generation: Generation) -> dict[str, Any]:
        if not request.logprobs:
            return {}
        return {
            "output_token_logprobs": [
                (log_prob, token_id, None)
                for token_id, log_prob in zip(generation.token_ids, generation.log_probs, strict=True)
            ]
        }

    def _replay_fields(self, request: ChatRequest, sequence: TokenIds) -> dict[str, Any]:
        start = max(0, request.routed_experts_start_len or 0)
        fields: dict[str, Any] = {}
        if request.return_routed_experts:
            rows = replay.routed_experts(sequence, start, layers=self._layers, top_k=self._top_k)
            fields["routed_experts"] = replay.packed(rows)
        if request.return_indexer_topk:
            rows = replay.indexer_choices(sequence, start, layers=self._layers, top_k=self._top_k)
            fields["indexer_topk"] = replay.packed(rows)
            fields["indexer_topk_num_layers"] = self._layers
        return fields

    def _completion(self, body: bytes, given_up: Callable[[], bool]) -> EngineReply:
        request = decoded(CompletionRequest, body)
        if request.stream:
            raise BadRequest("stream=true is not supported for completions")
        prompt = request.prompt
        ids = self._encoder.encode(prompt, add_special_tokens=False).ids if isinstance(prompt, str) else prompt
        checked = self._checked(ids)
        generation = self._generate(checked, Goal(), sampling_of(request), request.seed, given_up)
        return json_reply(
            {
                "id": f"cmpl-{secrets.token_hex(16)}",
                "object": "text_completion",
                "created": int(self._clock()),
                "model": request.model,
                "choices": [
                    {
                        "index": 0,
                        "text": self._text(generation),
                        "logprobs": None,
                        "finish_reason": "stop" if generation.finished else "length",
                    }
                ],
                "usage": usage(len(checked), len(generation.token_ids)),
            }
        )

    def _tokenize(self, body: bytes) -> EngineReply:
        request = decoded(TokenizeRequest, body)
        texts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
        rows = [self._encoder.encode(text, add_special_tokens=request.add_special_tokens).ids for text in texts]
        counts = [len(row) for row in rows]
        single = isinstance(request.prompt, str)
        return json_reply(
            {
                "tokens": rows[0] if single else rows,
                "count": counts[0] if single else counts,
                "max_model_len": self.context_length,
            }
        )

    def _detokenize(self, body: bytes) -> EngineReply:
        request = decoded(DetokenizeRequest, body)
        single = not any(isinstance(row, list) for row in request.tokens)
        rows = [row if isinstance(row, list) else [row] for row in request.tokens]
        if single:
            rows = [[token_id for row in rows for token_id in row]]
        if any(token_id >= self.vocabulary.size for row in rows for token_id in row):
            raise BadRequest(f"token ids must be below {self.vocabulary.size}")
        hidden = self._special_ids if request.skip_special_tokens else frozenset()
        texts = [self.vocabulary.decode(token_id for token_id in row if token_id not in hidden) for row in rows]
        return json_reply({"text": texts[0] if single else texts})

    def _model_card(self) -> dict[str, Any]:
        return {
            "id": self.model_name,
            "object": "model",
            "created": int(self._clock()),
            "owned_by": "trio-sessions",
            "root": self.model_name,
            "max_model_len": self.context_length,
        }
