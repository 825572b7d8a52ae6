"""Benchmarks run and give figures; how large they are is no assertion."""

from __future__ import annotations

from benchmarks import engine_client, loop, samples, tree
from benchmarks.render import measure
from trio_sessions.render.load import load_renderer


def test_render_gives_a_row_a_length() -> None:
    rows = measure(load_renderer("builtin"), lengths=(2, 4), repeats=1)
    assert [row.messages for row in rows] == [2, 4]
    assert all(row.tokens > 0 and row.whole_ms > 0 and row.suffix_ms > 0 for row in rows)


def test_loop_gives_a_row_a_length() -> None:
    rows = loop.measure(load_renderer("builtin"), lengths=(20_000, 40_000), repeats=1)
    assert [row.characters for row in rows] == [20_000, 40_000]
    assert all(row.tokens > 0 and row.offloaded_ms > 0 and row.inline_ms > 0 for row in rows)


def test_tree_gives_a_row_a_shape() -> None:
    rows = tree.measure(nodes=32, messages=20, repeats=1)
    assert [(row.nodes, row.depth) for row in rows] == [(32, 9), (32, 1), (32, 1), (32, 2)]
    assert all(row.milliseconds > 0 for row in rows)


def test_samples_gives_what_an_assembly_costs() -> None:
    found = samples.measure(turns=2, tokens=50, repeats=1)
    assert found.megabytes > found.payload_megabytes > 0.1
    assert found.seconds > 0
    assert found.stall_ms > 0


def test_engine_client_gives_a_row_a_load() -> None:
    loads = (engine_client.Load(in_flight=1, calls=5), engine_client.Load(in_flight=4, calls=8, answer_bytes=300_000))
    rows = engine_client.measure(loads, repeats=1)
    assert tuple(row.load for row in rows) == loads
    assert all(row.own_ms > 0 and row.one_pool_ms > 0 and row.sharded_ms > 0 for row in rows)
