"""Every metric, as the server's own registry has them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import Metric

from octavo.engine.serving import EngineStatus, ModelInfo, ServingEngine
from octavo.engine.stats import BlockCounts, DecodeSteps, EngineStats, HistogramCounts, RouteCount
from octavo.server.metrics import ServerMetrics
from scripts.reference.markdown import code, codes, page, table

_COUNTS = HistogramCounts((1.0,), (1, 1), 3.0)


def metrics_page() -> str:
    rows = [
        (code(exposed_name(metric)), metric.type, codes(labels(metric)), metric.documentation) for metric in families()
    ]
    return page(
        "Metrics",
        "`GET /metrics` of `octavo serve`, in Prometheus' text format or OpenMetrics, as the Accept header asks. Times "
        "are seconds, sizes bytes. A histogram has `_bucket`, `_sum` and `_count`. What the engine counts is at most "
        "about 0.2 seconds old, and not there before the model is loaded. [Serving](../serving.md#metrics) says more.",
        table(("Name", "Kind", "Labels", ""), rows),
    )


def families() -> list[Metric]:
    """All that the page of metrics can show, each with at least one sample, by name."""
    metrics = ServerMetrics()
    metrics.show_engine(cast(ServingEngine, _engine()))
    metrics.count_request("/v1/completions", "ok", 1.0)
    return sorted(metrics.registry.collect(), key=lambda metric: metric.name)


def exposed_name(metric: Metric) -> str:
    """The name on the page, where counters end in `_total` and descriptions in `_info`."""
    return metric.name + {"counter": "_total", "info": "_info"}.get(metric.type, "")


def labels(metric: Metric) -> list[str]:
    found = {name: None for sample in metric.samples for name in sample.labels}
    return [name for name in found if not (metric.type == "histogram" and name == "le")]


def _engine() -> Any:
    """What the collector reads of an engine, with a value of everything."""
    stats: dict[str, Any] = {
        name: 1
        for name, each in EngineStats.__dataclass_fields__.items()
        if str(each.type) == "int" or str(each.type) == "float"
    }
    stats |= {"blocks": (BlockCounts(1, 1, 1),), "routes": (RouteCount("gather", "reason", 1),)}
    stats |= {"step_seconds": _COUNTS, "batch_size": _COUNTS, "decode_steps": (DecodeSteps("replayed", 1),)}
    info: dict[str, Any] = dict.fromkeys(ModelInfo.__dataclass_fields__, "")
    return SimpleNamespace(status=EngineStatus("ready"), info=ModelInfo(**info), stats=EngineStats(**stats))
