"""The metrics of all workers as one page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from trio_sessions.workers.link import WorkerState

__all__ = ["merge_metrics"]

_LABEL: Final = "worker"


def merge_metrics(pages: Mapping[int, bytes], workers: Sequence[WorkerState]) -> bytes:
    """One page in the text exposition format, every sample with the label ``worker``.

    Args:
        pages: the page of each worker that gave one, by its index. No sample on it has that label.
        workers: all workers, for the metrics about them.
    """
    families: dict[str, Metric] = {}
    for index, page in sorted(pages.items()):
        for family in text_string_to_metric_families(page.decode()):
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                merged.add_sample(sample.name, {**sample.labels, _LABEL: str(index)}, sample.value, sample.timestamp)
    registry = CollectorRegistry()
    registry.register(_Collected([*families.values(), *_about(workers)]))
    return generate_latest(registry)


def _about(workers: Sequence[WorkerState]) -> Iterator[Metric]:
    up = GaugeMetricFamily("trio_sessions_worker_up", "Whether the worker answers requests.", labels=[_LABEL])
    restarts = CounterMetricFamily(
        "trio_sessions_worker_restarts", "Restarts of the worker after its death.", labels=[_LABEL]
    )
    for worker in workers:
        up.add_metric([str(worker.index)], float(worker.up))
        restarts.add_metric([str(worker.index)], worker.restarts)
    return iter((up, restarts))


class _Collected(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Sequence[Metric]:
        return self._families
