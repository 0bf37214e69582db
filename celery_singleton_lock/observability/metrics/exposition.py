"""From numbers to what Prometheus reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from .catalogue import METRICS, Metric
from .counts import ABOVE, SUM, Labels, Rows


class Page(NamedTuple):
    content_type: str
    body: bytes


class SingletonCollector(Collector):
    """For a registry of prometheus_client: ours, or your own. `read` is called for every scrape."""

    def __init__(self, read: Callable[[], Rows], metrics: Sequence[Metric] = METRICS) -> None:
        self._read = read
        self._metrics = metrics

    def collect(self) -> Iterator[Family]:
        by_metric: defaultdict[str, defaultdict[Labels, dict[str, float]]]
        by_metric = defaultdict(lambda: defaultdict(dict))
        for (name, labels, part), value in self._read().items():
            by_metric[name][labels][part] = value
        for metric in self._metrics:
            yield _family(metric, by_metric[metric.name])

    def describe(self) -> Iterable[Family]:
        """Asked when it is registered, instead of `collect`."""
        return [_family(metric, {}) for metric in self._metrics]


def page(collector: SingletonCollector, accept: str) -> Page:
    """`accept`: what the asker can read, by its header."""
    registry = CollectorRegistry()
    registry.register(collector)
    encode, content_type = choose_encoder(accept)
    return Page(content_type, encode(registry))


def _family(metric: Metric, found: dict[Labels, dict[str, float]]) -> Family:
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.doc, labels=metric.labels)
        for labels, parts in sorted(found.items()):
            histogram.add_metric(labels, _buckets(metric, parts), parts.get(SUM, 0.0))
        return histogram
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.doc, labels=metric.labels)
    if not metric.labels and metric.kind == "counter":
        # Prometheus sees no increase in a series that begins with 1.
        found = found or {(): {"": 0.0}}
    for labels, parts in sorted(found.items()):
        family.add_metric(labels, parts[""])
    return family


def _buckets(metric: Metric, parts: dict[str, float]) -> list[tuple[str, float]]:
    """As Prometheus has them, each with those below it."""
    total, buckets = 0.0, []
    for bound in (*map(str, metric.buckets), ABOVE):
        total += parts.get(bound, 0.0)
        buckets.append((bound, total))
    return buckets
