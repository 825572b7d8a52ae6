"""What happens in a session's life: turns, and what goes wrong with clients, engines and requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import trio

from benchmarks.soak.dialects import MESSAGES
from benchmarks.soak.life import Life
from benchmarks.soak.peer import Broken
from trio_sessions.engine.embedded import FAULT_HEADER, FAULT_KINDS

__all__ = ["ACTS", "Act", "delete"]

# What a fault needs behind its colon. What hangs has acts of its own.
_ARGUMENTS: Final = {"status": (":400", ":429", ":500", ":503"), "status-text": (":502",), "slow": (":0.05",)}
_FAULTS: Final = tuple(
    f"{kind}{argument}" for kind in FAULT_KINDS if kind != "hang" for argument in _ARGUMENTS.get(kind, ("",))
)
_MALFORMED: Final = (
    b"{",
    b"[]",
    b"\xff\xfe",
    b'{"messages":3,"input":{}}',
    b'{"messages":[{"content":"no role"}],"input":[{"content":3}]}',
    b'{"messages":[{"role":"user","content":NaN}],"input":NaN}',
    b'{"messages":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
)
_NO_HTTP: Final = (b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00", b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: x\r\n\r\n")
_REPEATS_FOR_THE_DEAF: Final = 48
_DEAF_SECONDS: Final = 0.3
_REFUSED: Final = (400, 409, 413, 422)


@dataclass(frozen=True, slots=True)
class Act:
    """Something that happens in a session's life.

    Attributes:
        name: for tables.
        weight: how often, relative to the others.
        run: does it; raises ``Broken`` where a connection breaks that should not.
    """

    name: str
    weight: int
    run: Callable[[Life], Awaitable[None]]


async def _turn(life: Life) -> None:
    items = life.next_items()
    answer = await life.request("POST", life.turn_path, body=life.dialect.body(items))
    if life.tally.answered("turn", answer, 200):
        life.go_on_from(items, answer)


async def _stream(life: Life) -> None:
    answer = await life.request("POST", life.turn_path, body=life.dialect.body(life.next_items(), stream=True))
    life.tally.answered("stream", answer, 200)


async def _repeat(life: Life) -> None:
    """One request twice under one key, and sometimes while the first is answered."""
    items = life.next_items()
    body = life.dialect.body(items)
    headers = {"idempotency-key": f"{life.draw.getrandbits(64):x}"}
    async with trio.open_nursery() as nursery:
        if life.draw.random() < 0.3:
            nursery.start_soon(partial(life.aside, body, headers={**headers, FAULT_HEADER: "slow:0.05"}))
            await trio.sleep(0.01)
        answer = await life.request("POST", life.turn_path, body=body, headers=headers)
    again = await life.request("POST", life.turn_path, body=body, headers={**headers, "x-stainless-retry-count": "1"})
    if life.tally.answered("repeat", answer, 200) and life.tally.answered("repeat", again, 200):
        if again.body != answer.body:
            life.tally.complain("repeat: a retry got another answer")
        life.go_on_from(items, answer)


async def _overlap(life: Life) -> None:
    """Two turns from one history: siblings in a tree, in a line the second is answered and not recorded."""

    async def one(delay: str) -> None:
        answer = await life.aside(life.dialect.body(life.next_items()), headers={FAULT_HEADER: delay})
        if answer is None:
            life.tally.complain("overlap: the connection broke")
        else:
            life.tally.answered("overlap", answer, 200)

    async with trio.open_nursery() as nursery:
        for delay in ("slow:0.02", "slow:0.03"):
            nursery.start_soon(one, delay)


async def _root(life: Life) -> None:
    """Another conversation of the same session, of another agent: a root in a tree; in a line mostly refused."""
    items = [{"role": "user", "content": f"Another matter. {life.text()}"}]
    path = f"{life.path}/agents/sub/{life.dialect.path}"
    answer = await life.request("POST", path, body=life.dialect.body(items))
    life.tally.answered("root", answer, 200, 400)
    # In a line it may have taken the place of the only turn.
    if answer.status == 200:
        life.go_on_from(items, answer)


async def _engine_fault(life: Life) -> None:
    fault = life.draw.choice(_FAULTS)
    body = life.dialect.body(life.next_items(), stream=life.draw.random() < 0.3)
    answer = await life.request("POST", life.turn_path, body=body, headers={FAULT_HEADER: fault})
    life.tally.answered(f"engine {fault}", answer, 200, 400, 429, 500, 502, 503)


async def _vanish_waiting(life: Life) -> None:
    """A client that goes away while the engine has its turn."""
    headers = {FAULT_HEADER: "hang"}
    if life.draw.random() < 0.5:
        headers["idempotency-key"] = f"{life.draw.getrandbits(64):x}"
    async with life.stranger() as peer:
        await peer.send("POST", life.turn_path, body=life.dialect.body(life.next_items()), headers=headers)
        await trio.sleep(life.draw.uniform(0.0, 0.05))


async def _vanish_streaming(life: Life) -> None:
    """A client that goes away in the middle of a stream."""
    body = life.dialect.body(life.next_items(), stream=True)
    fault = {FAULT_HEADER: "slow:0.7"} if life.draw.random() < 0.3 else {}
    async with life.stranger() as peer:
        await peer.send("POST", life.turn_path, body=body, headers=fault)
        await peer.first_bytes()


async def _vanish_sending(life: Life) -> None:
    """A client that goes away before its request is whole."""
    body = life.dialect.body(life.next_items())
    async with life.stranger() as peer:
        await peer.send("POST", life.turn_path, body=body, headers={}, withheld=life.draw.randrange(1, len(body)))


async def _deaf(life: Life) -> None:
    """A client that asks for much and reads nothing."""
    request = f"GET {life.path} HTTP/1.1\r\nhost: soak\r\n\r\n".encode()
    async with life.stranger(reads_little=True) as peer:
        await peer.send_raw(request * _REPEATS_FOR_THE_DEAF)
        await trio.sleep(_DEAF_SECONDS)


async def _malformed(life: Life) -> None:
    answer = await life.request("POST", life.turn_path, body=life.draw.choice(_MALFORMED))
    life.tally.answered("malformed", answer, *_REFUSED)


async def _no_http(life: Life) -> None:
    async with life.stranger() as peer:
        await peer.send_raw(life.draw.choice(_NO_HTTP))
        try:
            life.tally.answered("no http", await peer.answer(), 400)
        except Broken:
            life.tally.statuses["closed"] += 1


async def _count_tokens(life: Life) -> None:
    body = MESSAGES.body([{"role": "user", "content": life.text()}])
    answer = await life.request("POST", f"{life.path}/{MESSAGES.path}/count_tokens", body=body)
    # In a line it may ask for what a turn would be refused.
    life.tally.answered("count tokens", answer, 200, 400)


async def _records(life: Life) -> None:
    life.tally.answered("records", await life.request("GET", life.path), 200)


async def _samples(life: Life) -> None:
    body = msgspec.json.encode({"max_seq_len": life.draw.choice([None, 64, 100_000])})
    life.tally.answered("samples", await life.request("POST", f"{life.path}/samples", body=body), 200)


async def _models(life: Life) -> None:
    life.tally.answered("models", await life.request("GET", f"{life.path}/v1/models"), 200)


async def _unknown(life: Life) -> None:
    path = f"/sessions/{life.draw.getrandbits(128):032x}/{life.dialect.path}"
    life.tally.answered("unknown", await life.request("POST", path, body=b"{}"), 404)


async def delete(life: Life) -> None:
    """The end of a session: sometimes twice at once, sometimes with turns at the engine.

    Raises:
        Broken: a connection broke that should not.
    """
    life.tally.acts["delete"] += 1
    at_engine = life.draw.choice([0, 0, 0, 1, 2])
    async with trio.open_nursery() as nursery:
        for _ in range(at_engine):
            body = life.dialect.body(life.next_items())
            nursery.start_soon(partial(life.aside, body, headers={FAULT_HEADER: "slow:0.1"}))
        if at_engine:
            await trio.sleep(0.03)
        twice = life.draw.random() < 0.2
        if twice:
            nursery.start_soon(_delete_aside, life)
        answer = await life.request("DELETE", life.path)
        life.tally.answered("delete", answer, *((204, 404) if twice else (204,)))


async def _delete_aside(life: Life) -> None:
    async with life.stranger() as peer:
        life.tally.answered("delete", await peer.request("DELETE", life.path, headers={}), 204, 404)


ACTS: Final = (
    Act("turn", 10, _turn),
    Act("stream", 4, _stream),
    Act("repeat", 3, _repeat),
    Act("overlap", 3, _overlap),
    Act("root", 1, _root),
    Act("engine fault", 4, _engine_fault),
    Act("vanish waiting", 2, _vanish_waiting),
    Act("vanish streaming", 2, _vanish_streaming),
    Act("vanish sending", 1, _vanish_sending),
    Act("deaf", 1, _deaf),
    Act("malformed", 2, _malformed),
    Act("no http", 1, _no_http),
    Act("count tokens", 1, _count_tokens),
    Act("records", 2, _records),
    Act("samples", 2, _samples),
    Act("models", 1, _models),
    Act("unknown", 1, _unknown),
)
