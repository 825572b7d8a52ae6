"""A connection that breaks when an answer comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio


@asynccontextmanager
async def losing_an_answer(port: int, *, turn: int) -> AsyncIterator[int]:
    """A port that passes everything on to ``port``, but for the answer to one POST, whose connection is closed.

    Args:
        port: of a server on 127.0.0.1.
        turn: which POST, from 1.
    """
    posts = 0

    async def serve(client: trio.SocketStream) -> None:
        async with client, await trio.open_tcp_stream("127.0.0.1", port) as server:
            loses = False

            async def there() -> None:
                nonlocal posts, loses
                async for data in client:
                    if data.startswith(b"POST "):
                        posts += 1
                        loses = posts == turn
                    await server.send_all(data)
                both.cancel_scope.cancel()

            async def back() -> None:
                async for data in server:
                    if loses:
                        break
                    await client.send_all(data)
                both.cancel_scope.cancel()

            try:
                async with trio.open_nursery() as both:
                    both.start_soon(there)
                    both.start_soon(back)
            except* trio.BrokenResourceError:
                # Either side may go away while something is sent to it.
                pass

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()
