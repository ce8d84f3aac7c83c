"""What the server counts itself, requests and token times, and the page of metrics that also shows the engine's.

Labels take values from fixed sets only: route templates, outcomes, groups, the engine's routes and their reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

import octavo
from octavo.engine.events import StepEvent
from octavo.engine.serving import EngineState, ServingEngine
from octavo.engine.stats import EngineStats, HistogramCounts

_FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_INTER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5)
_DURATION_S = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_STATES: tuple[EngineState, ...] = ("loading", "ready", "draining", "stopped", "failed")
MAX_ROUTE_SERIES = 64  # pairs of route and reason that the page shows; what is beyond is summed as `other`


@dataclass(frozen=True, slots=True)
class LatencySums:
    """Seconds of all first tokens and of all gaps between later ones, and how many there were."""

    first_s: float
    num_first: float
    inter_s: float
    num_inter: float


class ServerMetrics:
    """Counters of one application, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "octavo_requests", "Requests answered.", ["endpoint", "outcome"], registry=self.registry
        )
        self._duration = Histogram(
            "octavo_request_seconds",
            "Time from a request's arrival to the end of its answer.",
            ["endpoint"],
            buckets=_DURATION_S,
            registry=self.registry,
        )
        self._first_token = Histogram(
            "octavo_time_to_first_token_seconds",
            "Time from handing a request to the engine to its first token.",
            buckets=_FIRST_TOKEN_S,
            registry=self.registry,
        )
        self._inter_token = Histogram(
            "octavo_inter_token_seconds",
            "Time between two tokens of a request, as they reach the server.",
            buckets=_INTER_TOKEN_S,
            registry=self.registry,
        )

    def show_engine(self, engine: ServingEngine) -> None:
        """Add what `engine` counts to the page."""
        self.registry.register(_EngineCollector(engine))

    def count_request(self, endpoint: str, outcome: str, seconds: float) -> None:
        """One request has been answered. `endpoint` is a route's template."""
        self._requests.labels(endpoint, outcome).inc()
        self._duration.labels(endpoint).observe(seconds)

    def token_timer(self, begun: float) -> TokenTimer:
        """Times the tokens of requests that were submitted at `begun` (`time.perf_counter`)."""
        return TokenTimer(begun, self._first_token.observe, self._inter_token.observe)

    def latency_sums(self) -> LatencySums:
        """So far: the difference of two tells the mean between them."""
        return LatencySums(*_sum_and_count(self._first_token), *_sum_and_count(self._inter_token))

    def page(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type, in the format that an Accept header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


class TokenTimer:
    """Follows requests that run together."""

    def __init__(self, begun: float, first: Callable[[float], None], following: Callable[[float], None]) -> None:
        self._begun = begun
        self._first = first
        self._following = following
        self._last: dict[str, float] = {}  # when each request's latest token came

    def note(self, events: Iterable[StepEvent]) -> None:
        """Events that have just come."""
        now = perf_counter()
        for event in events:
            if not event.delta.token_ids:
                continue
            request_id = event.delta.request_id
            last = self._last.get(request_id)
            if last is None:
                self._first(now - self._begun)
            else:
                self._following(now - last)
            self._last[request_id] = now


class _EngineCollector(Collector):
    """The engine's latest snapshot as metric families."""

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        state = self._engine.status.state
        yield _labelled_gauge(
            "octavo_engine_state",
            "1 for the state that the engine is in.",
            ("state",),
            (((each,), float(each == state)) for each in _STATES),
        )
        build = {"version": octavo.__version__}
        if state in ("ready", "draining"):
            info = self._engine.info
            build |= {"model": info.name, "storage": info.storage, "kv_dtype": info.kv_dtype, "weights": info.weights}
        yield InfoMetricFamily("octavo_build", "What serves.", value=build)
        stats = self._engine.stats
        if stats is not None:
            yield from _gauges(stats)
            yield from _counters(stats)
            yield _histogram("octavo_step_seconds", "Time of an engine step.", stats.step_seconds)
            yield _histogram("octavo_batch_size", "Requests in an engine step.", stats.batch_size)


def _sum_and_count(histogram: Histogram) -> tuple[float, float]:
    samples = {sample.name: sample.value for metric in histogram.collect() for sample in metric.samples}
    [total] = [value for name, value in samples.items() if name.endswith("_sum")]
    [count] = [value for name, value in samples.items() if name.endswith("_count")]
    return total, count


def _gauges(stats: EngineStats) -> Iterable[Metric]:
    yield GaugeMetricFamily("octavo_queue_requests", "Requests that wait.", value=stats.num_waiting)
    yield GaugeMetricFamily("octavo_running_requests", "Requests that run.", value=stats.num_running)
    yield GaugeMetricFamily("octavo_kv_bytes", "Memory set aside for K/V.", value=stats.kv_bytes)
    yield GaugeMetricFamily("octavo_weight_bytes", "Memory of the weights.", value=stats.weight_bytes)
    yield _labelled_gauge(
        "octavo_kv_blocks",
        "K/V blocks of each group of layers: free, held by requests (live), or kept for later ones (cached).",
        ("group", "state"),
        (
            ((str(group), state), count)
            for group, blocks in enumerate(stats.blocks)
            for state, count in (("free", blocks.free), ("live", blocks.live), ("cached", blocks.cached))
        ),
    )


def _counters(stats: EngineStats) -> Iterable[Metric]:
    prefix = stats.prefix
    for name, text, value in (
        ("octavo_prompt_tokens", "Prompt tokens of requests.", stats.prompt_tokens),
        ("octavo_cached_prompt_tokens", "Prompt tokens whose K/V was there already.", stats.cached_prompt_tokens),
        ("octavo_generation_tokens", "Tokens generated.", stats.generated_tokens),
        ("octavo_forced_tokens", "Tokens generated that a grammar left no choice about.", stats.forced_tokens),
        ("octavo_steps", "Engine steps.", stats.steps),
        ("octavo_preemptions", "Requests that gave up their blocks and began again.", stats.preemptions),
        ("octavo_prefix_cache_hits", "Lookups that found a prefix.", prefix.hits),
        ("octavo_prefix_cache_misses", "Lookups that found none.", prefix.misses),
        ("octavo_prefix_cache_hit_tokens", "Tokens found.", prefix.hit_tokens),
        ("octavo_prefix_cache_evictions", "Entries given up for room.", prefix.evictions),
        ("octavo_prefix_cache_rejects", "Entries that were not taken.", prefix.rejects),
    ):
        yield CounterMetricFamily(name, text, value=value)
    routes = CounterMetricFamily(
        "octavo_attention_route", "Row groups that attended by this route.", labels=("route", "reason")
    )
    shown = sorted(stats.routes, key=lambda each: -each.count)
    for each in shown[:MAX_ROUTE_SERIES]:
        routes.add_metric((each.route, each.reason), each.count)
    if len(shown) > MAX_ROUTE_SERIES:
        routes.add_metric(("other", "other"), sum(each.count for each in shown[MAX_ROUTE_SERIES:]))
    yield routes
    decode = CounterMetricFamily(
        "octavo_decode_steps", "Steps of a GPU replayed from graphs, or why not; graphs recorded.", labels=("how",)
    )
    for steps in stats.decode_steps:
        decode.add_metric((steps.how,), steps.count)
    yield decode


def _labelled_gauge(
    name: str, text: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def _histogram(name: str, text: str, counts: HistogramCounts) -> HistogramMetricFamily:
    """Prometheus wants cumulative buckets."""
    buckets: list[tuple[str, float]] = []
    seen = 0
    for bound, count in zip((*map(str, counts.bounds), "+Inf"), counts.counts, strict=True):
        seen += count
        buckets.append((bound, seen))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=counts.total)
