"""Clients of a gateway, for trainers and for programs that run agents.

``Client`` blocks; ``AsyncClient`` does the same under trio and asyncio. Both only send and wait: what a request is,
what its answer means and whether to try again is decided in ``wire`` and ``retry``, without a network.

    with Client("http://127.0.0.1:8700") as client, client.session() as session:
        run_agent(base_url=session.base_url)
        for sample in session.samples().samples:
            train_on(sample.tokens, sample.loss_mask)
"""

from trio_sessions.client.aio import AsyncClient, AsyncSession
from trio_sessions.client.blocking import Client, Session
from trio_sessions.client.errors import (
    AssemblyFailed,
    AuthenticationFailed,
    ClientError,
    GatewayUnreachable,
    PermissionRefused,
    RequestRefused,
    ServerError,
    SessionNotFound,
    StatusError,
    TruncatedGeneration,
    UnusableAnswer,
)
from trio_sessions.client.retry import NO_RETRIES, RetryPolicy
from trio_sessions.client.wire import BaseUrls, ChatCompletion, Health, SessionState
from trio_sessions.core.samples import PrefixCacheInfo, Sample, SamplesReply

__all__ = [
    "NO_RETRIES",
    "AssemblyFailed",
    "AsyncClient",
    "AsyncSession",
    "AuthenticationFailed",
    "BaseUrls",
    "ChatCompletion",
    "Client",
    "ClientError",
    "GatewayUnreachable",
    "Health",
    "PermissionRefused",
    "PrefixCacheInfo",
    "RequestRefused",
    "RetryPolicy",
    "Sample",
    "SamplesReply",
    "ServerError",
    "Session",
    "SessionNotFound",
    "SessionState",
    "StatusError",
    "TruncatedGeneration",
    "UnusableAnswer",
]
