"""The services of a gateway stand and fall together."""

from __future__ import annotations

import httpx
import pytest
import trio

from trio_sessions import serve as serving
from trio_sessions.config import Settings
from trio_sessions.errors import AddressInUse


class Crash(Exception):
    """What a service of ours must never raise."""


async def test_a_crash_of_the_engine_beside_it_ends_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    crash = trio.Event()

    async def crashing_engine(settings: Settings, *, task_status: trio.TaskStatus[str]) -> None:
        task_status.started("http://127.0.0.1:1")
        await crash.wait()
        raise Crash

    monkeypatch.setattr(serving, "_run_embedded_engine", crashing_engine)
    with trio.fail_after(30), pytest.RaisesGroup(Crash, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            running = await nursery.start(serving.serve, Settings(port=0))
            async with httpx.AsyncClient(base_url=running.base_url) as client:
                assert (await client.get("/health")).status_code == 200
                crash.set()
                await trio.sleep_forever()
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(running.base_url)


async def test_a_second_gateway_on_the_same_port_is_refused_before_anything_is_loaded() -> None:
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            running = await nursery.start(serving.serve, Settings(port=0))
            port = httpx.URL(running.base_url).port
            assert port is not None
            with pytest.raises(AddressInUse, match=f"cannot listen on 127.0.0.1:{port}"):
                await serving.serve(Settings(port=port, tokenizer="/nowhere"))
            nursery.cancel_scope.cancel()
