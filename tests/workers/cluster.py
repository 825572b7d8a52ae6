"""Workers in one process: real fronts, gateways, servers and ports, and a table that the test is the supervisor of."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import trio

from tests.web.support import LIMIT_SECONDS, Served, Session, http_client
from trio_sessions.config import Settings
from trio_sessions.hosting import AppServer, bind, url_of
from trio_sessions.serve import connection_limits, gateway_app
from trio_sessions.service.gateway import Gateway
from trio_sessions.testing.engine import ScriptedEngine
from trio_sessions.testing.toy import ToyRenderer
from trio_sessions.workers.front import Front, Passing
from trio_sessions.workers.link import Table, WorkerState
from trio_sessions.workers.membership import Membership
from trio_sessions.workers.ownership import owned_id, owner_of
from trio_sessions.workers.peers import Peers
from trio_sessions.workers.trust import WorkerTrust

INSTANCE = "ab" * 16
SECRET = "s3cret"


@dataclass
class Cluster:
    """Workers that answer.

    Attributes:
        served: each of them.
        members: what each knows of all.
        passing: what each has passed on.
        servers: what each is served by.
        states: the last table.
    """

    served: list[Served]
    members: list[Membership]
    passing: list[Passing]
    servers: list[AppServer]
    states: list[WorkerState]

    def owner(self, session_id: str) -> int:
        return owner_of(session_id, len(self.served))

    async def session(self, owner: int = 0) -> tuple[Session, Session]:
        """A new session of ``owner``: as seen there, and through another worker."""
        session_id = (await self.served[owner].gateway.registry.create()).id
        return Session(self.served[owner], session_id), Session(self.served[owner - 1], session_id)

    def tell(self, index: int, **changes: Any) -> None:
        """Change what all know of one worker."""
        state = self.states[index]
        self.states[index] = WorkerState(
            **{**{name: getattr(state, name) for name in state.__struct_fields__}, **changes}
        )
        for member in self.members:
            member.update(Table("http://engine", tuple(self.states)))


@asynccontextmanager
async def cluster(
    workers: int = 2,
    *,
    engines: Sequence[Any] | None = None,
    urls: Sequence[str] | None = None,
    patience: float = LIMIT_SECONDS,
    **settings: Any,
) -> AsyncIterator[Cluster]:
    """Workers until the end of the block.

    Args:
        workers: how many.
        engines: one for each.
        urls: where each is said to be, if that is not where it is.
        patience: seconds that the block may take.
        **settings: those of ``Settings``.
    """
    engines = engines or [ScriptedEngine() for _ in range(workers)]
    with trio.fail_after(patience), ExitStack() as ports:
        listeners = [ports.enter_context(bind("127.0.0.1", 0)) for _ in range(workers)]
        told = urls or [url_of(listener) for listener in listeners]
        drawn = itertools.count(2**127 + 12345)
        async with AsyncExitStack() as stack:
            made = Cluster([], [], [], [], [WorkerState(index, True, 0, 0) for index in range(workers)])
            nursery = await stack.enter_async_context(trio.open_nursery())
            for index, (listener, engine) in enumerate(zip(listeners, engines, strict=True)):
                gateway = Gateway(
                    replace(Settings(port=0, instance_id=INSTANCE), **settings),
                    engine=engine,
                    renderer=ToyRenderer(),
                    new_id=partial(_new_id, drawn, index, workers),
                )
                member, passing = Membership(index, told), Passing()
                peers = await stack.enter_async_context(Peers())
                front = partial(
                    Front,
                    gateway=gateway,
                    members=member,
                    peers=peers,
                    secret=SECRET,
                    passing=passing,
                )
                trust = WorkerTrust(member, SECRET, peers)
                limits = connection_limits(gateway)
                server = AppServer(gateway_app(gateway, behind=front, neighbours=trust), listener, limits=limits)
                await nursery.start(server.run)
                port = listener.getsockname()[1]
                client = await stack.enter_async_context(http_client(port))
                made.served.append(Served(gateway, engine, server, limits, port, client))
                made.members.append(member)
                made.passing.append(passing)
                made.servers.append(server)
            made.tell(0)
            yield made
            nursery.cancel_scope.cancel()


def _new_id(drawn: Any, index: int, workers: int) -> str:
    return owned_id(next(drawn) * 7919 % 2**128, owner=index, workers=workers)
