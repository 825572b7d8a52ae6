"""The page of metrics of all workers."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from trio_sessions.observe import Metrics
from trio_sessions.workers.exposition import merge_metrics
from trio_sessions.workers.link import WorkerState

values = st.floats(0, 1e12)
names = st.text(max_size=6)


def page_of(counts, gauge, observed):
    registry = CollectorRegistry()
    counter = Counter("turns", "Turns\nby \\ outcome.", ["outcome"], registry=registry)
    for outcome, count in counts.items():
        counter.labels(outcome).inc(count)
    Gauge("open", "", registry=registry).set(gauge)
    histogram = Histogram("seconds", "Time.", buckets=(0.1, 1), registry=registry)
    for seconds in observed:
        histogram.observe(seconds)
    return generate_latest(registry)


pages = st.builds(
    page_of, st.dictionaries(names, values, max_size=3), st.floats(allow_nan=False), st.lists(values, max_size=3)
)


def samples(page):
    return [sample for family in text_string_to_metric_families(page.decode()) for sample in family.samples]


@given(st.dictionaries(st.integers(0, 12), pages, min_size=1, max_size=3))
def test_every_sample_is_there_once_under_the_label_of_its_worker(given_pages):
    workers = [WorkerState(index, index in given_pages, index, 0) for index in range(13)]
    merged = merge_metrics(given_pages, workers)
    expected = {
        (sample.name, frozenset({**sample.labels, "worker": str(index)}.items())): sample.value
        for index, page in given_pages.items()
        for sample in samples(page)
    }
    found = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples(merged)}
    assert len(found) == len(samples(merged))
    about = {key: value for key, value in found.items() if key[0].startswith("trio_sessions_worker_")}
    assert {key: value for key, value in found.items() if key not in about} == expected
    assert about == {
        (name, frozenset({("worker", str(worker.index))})): value
        for worker in workers
        for name, value in (
            ("trio_sessions_worker_up", float(worker.up)),
            ("trio_sessions_worker_restarts_total", float(worker.restarts)),
        )
    }


@given(st.dictionaries(st.integers(0, 12), pages, min_size=1, max_size=3))
def test_a_family_is_described_once_and_its_samples_stand_together(given_pages):
    merged = merge_metrics(given_pages, []).decode()
    families = list(text_string_to_metric_families(merged))
    assert len({family.name for family in families}) == len(families)
    described = {
        (family.name, family.type, family.documentation)
        for page in given_pages.values()
        for family in text_string_to_metric_families(page.decode())
    }
    assert {(family.name, family.type, family.documentation) for family in families} >= described
    assert merged.count("# TYPE turns_total ") == 1


def test_the_sum_over_workers_is_what_one_process_would_have_counted():
    both, each = Metrics(), [Metrics(), Metrics()]
    for index, outcome in enumerate(["committed", "stale", "committed"]):
        for metrics in (both, each[index % 2]):
            metrics.count_turn(outcome)
            metrics.engine_seconds.observe(0.25)
            metrics.prompt_tokens.inc(7)
    merged = merge_metrics({index: metrics.render() for index, metrics in enumerate(each)}, [])
    sums = defaultdict(float)
    for sample in samples(merged):
        labels = {name: value for name, value in sample.labels.items() if name != "worker"}
        sums[sample.name, frozenset(labels.items())] += sample.value
    for sample in samples(both.render()):
        # The others are about the process.
        if sample.name.startswith("trio_sessions_") and not sample.name.endswith("_created"):
            assert sums[sample.name, frozenset(sample.labels.items())] == sample.value
