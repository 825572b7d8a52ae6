"""One gateway: its parts, put together."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import datetime
from functools import partial

from trio_sessions.config import Settings
from trio_sessions.core.history import LinearHistory, TreeHistory
from trio_sessions.core.samples import AssemblyRules
from trio_sessions.engine.base import Engine
from trio_sessions.observe import Metrics
from trio_sessions.render.base import Renderer
from trio_sessions.service.admission import Admission, AdmissionLimits
from trio_sessions.service.ask import EngineAsker
from trio_sessions.service.hooks import resolve_matcher, resolve_sample_hooks
from trio_sessions.service.inspect import SessionInspector
from trio_sessions.service.keys import api_keys_of
from trio_sessions.service.limits import RequestLimits
from trio_sessions.service.offload import Offloader
from trio_sessions.service.plan import Planner
from trio_sessions.service.proxy import EngineProxy
from trio_sessions.service.registry import SessionRegistry
from trio_sessions.service.samples import SampleCollector
from trio_sessions.service.turn import TurnPipeline
from trio_sessions.store import MemoryStore, Store

__all__ = ["Gateway"]


class Gateway:
    """Everything that serves sessions, without a network of its own.

    Args:
        settings: what was asked for.
        engine: samples turns.
        renderer: messages to ids.
        clock: wall clock, seconds since the epoch.
        now: wall clock, local time, for templates that read it; naive, as what transformers gives them.
        new_id: draws ids, 32 lowercase hex digits.
        metrics: where everything is counted; None for new ones.
        store: where sessions are written down, whatever ``settings.store`` says; None leaves them in memory. Those that
            it has are taken over.

    Raises:
        ConfigurationError: the message matcher or a hook for samples cannot be resolved, or the keys' file is unusable.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        engine: Engine,
        renderer: Renderer,
        clock: Callable[[], float] = time.time,
        now: Callable[[], datetime] = datetime.now,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        metrics: Metrics | None = None,
        store: Store | None = None,
    ) -> None:
        offloader = self.offloader = Offloader()
        self.settings = settings
        self.instance_id = settings.instance_id or new_id()
        self.keys = api_keys_of(settings)
        self.metrics = metrics or Metrics()
        tree = settings.mode == "tree"
        self.registry = SessionRegistry(
            new_history=partial(TreeHistory, settings.max_nodes) if tree else LinearHistory,
            new_id=new_id,
            clock=clock,
            now=now,
            metrics=self.metrics,
            store=store or MemoryStore(),
            offloader=offloader,
            limits=settings.session_limits,
            retry_window=settings.retry_window,
            cancel_on_delete=settings.on_delete == "cancel",
        )
        if store is not None:
            self.registry.take_found()
        self.admission = Admission(
            AdmissionLimits(
                turns=settings.max_turns,
                session_turns=settings.max_session_turns,
                waiting=settings.turn_queue,
                patience=settings.turn_queue_timeout,
            ),
            show_waiting=self.metrics.turns_waiting.set,
        )
        limits = RequestLimits(
            messages=settings.max_messages,
            json_values=settings.max_json_values,
            session_tokens=settings.max_session_tokens,
        )
        self.inspector = SessionInspector(tree=tree, renderer=renderer, metrics=self.metrics, offloader=offloader)
        self.samples = SampleCollector(
            tree=tree,
            rules=AssemblyRules(
                decode=renderer.decode,
                max_trim_tokens=renderer.max_trim_tokens,
                num_layers=settings.num_layers,
                incremental_replay=settings.incremental_replay,
            ),
            hooks=resolve_sample_hooks(settings.sample_picker, settings.sample_postprocessor),
            inspector=self.inspector,
            limits=limits,
            offloader=offloader,
        )
        self.proxy = EngineProxy(
            engine,
            registry=self.registry,
            admission=self.admission,
            offloader=offloader,
            open_proxy=settings.open_proxy,
        )
        self.turns = TurnPipeline(
            registry=self.registry,
            admission=self.admission,
            asker=EngineAsker(engine, real_streams=settings.stream == "real", offloader=offloader),
            planner=Planner(
                renderer=renderer,
                matcher=None if settings.message_matcher is None else resolve_matcher(settings.message_matcher),
                policy=settings.request_policy,
                seams=settings.seam_policy,
                max_seq_len=settings.max_seq_len,
                limits=limits,
                new_id=new_id,
                clock=clock,
                offloader=offloader,
            ),
            max_trim_tokens=renderer.max_trim_tokens,
            max_seq_len=settings.max_seq_len,
            retry_linger=settings.retry_linger,
            metrics=self.metrics,
            clock=clock,
            offloader=offloader,
        )
