"""`Metrics`: what the server counts, in the text form of Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from latelier.errors import LatelierError

__all__ = ["Metrics"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """Counters and histograms of one server, in a registry of its own.

    Examples
    --------
    >>> metrics = Metrics()
    >>> metrics.request("GET", "/health/live", 200, 0.001)
    >>> b'latelier_requests_total{method="GET",' in metrics.text()
    True
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "latelier_requests", "Requests answered.", ["method", "route", "status"], registry=self._registry
        )
        self._latency = Histogram(
            "latelier_request_seconds", "Time per request.", ["route"], buckets=_SECONDS, registry=self._registry
        )
        self._stages = Histogram(
            "latelier_stage_seconds",
            "Time of each stage of a batch.",
            ["index", "stage"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._batches = Histogram(
            "latelier_batch_queries", "Queries per batch.", ["index"], buckets=_QUERIES, registry=self._registry
        )
        self._waiting = Gauge(
            "latelier_waiting", "Queries or writes that wait.", ["index", "kind"], registry=self._registry
        )
        self._documents = Gauge("latelier_documents", "Documents in the index.", ["index"], registry=self._registry)
        self._counts: dict[str, Callable[[], int]] = {}  # of documents

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(method, route, str(status)).inc()
        self._latency.labels(route).observe(seconds)

    def batch(self, index: str, queries: int) -> None:
        """Count a batch of queries."""
        self._batches.labels(index).observe(queries)

    def stage(self, index: str, stage: str, seconds: float) -> None:
        """Count the time of a stage of a batch."""
        self._stages.labels(index, stage).observe(seconds)

    def watch(self, index: str, documents: Callable[[], int], waiting: dict[str, Callable[[], int]]) -> None:
        """Read some numbers of an index whenever the metrics are read."""
        self._counts[index] = documents
        for kind, count in waiting.items():
            self._waiting.labels(index, kind).set_function(count)

    def text(self) -> bytes:
        """Return everything in the text form of Prometheus, without the documents of an index that cannot be read."""
        for index, count in self._counts.items():
            try:
                self._documents.labels(index).set(count())
            except LatelierError:
                self._documents.remove(index)
        return generate_latest(self._registry)
