"""/metrics, and the routes that show the same counts as JSON."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from asgi_calls import call, fake_app, get
from fake_engine import STATS, FakeEngine
from prometheus_client.parser import text_string_to_metric_families

from octavo.engine.serving import EngineState
from octavo.engine.stats import RouteCount
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.server.metrics import MAX_ROUTE_SERIES, ServerMetrics
from octavo.server.settings import ServerSettings
from octavo.server.state import ServerState


def samples(page: str) -> dict[str, float]:
    """Values by name and labels."""
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_the_page_shows_what_the_engine_counts() -> None:
    found = samples(get(fake_app(), "/metrics").body.decode())
    expected = {
        "octavo_queue_requests": 2,
        "octavo_running_requests": 3,
        "octavo_prompt_tokens_total": 100,
        "octavo_generation_tokens_total": 50,
        "octavo_forced_tokens_total": 6,
        "octavo_kv_blocks{group=0,state=free}": 5,
        "octavo_kv_blocks{group=1,state=live}": 1,
        "octavo_prefix_cache_hits_total": 4,
        "octavo_prefix_cache_misses_total": 3,
        "octavo_prefix_cache_hit_tokens_total": 32,
        "octavo_prefix_cache_evictions_total": 2,
        "octavo_prefix_cache_rejects_total": 1,
        "octavo_preemptions_total": 1,
        "octavo_attention_route_total{reason=paged rows,route=fused_decode}": 9,
        "octavo_decode_steps_total{how=replayed}": 7,
        "octavo_decode_steps_total{how=a row of several tokens}": 3,
        "octavo_step_seconds_bucket{le=0.01}": 4,
        "octavo_step_seconds_bucket{le=0.1}": 9,
        "octavo_step_seconds_bucket{le=+Inf}": 11,
        "octavo_step_seconds_count": 11,
        "octavo_step_seconds_sum": 1.5,
        "octavo_batch_size_count": 11,
        "octavo_engine_state{state=ready}": 1,
        "octavo_engine_state{state=failed}": 0,
    }
    assert {name: found[name] for name in expected} == expected
    assert any(name.startswith("octavo_build_info{") and "model=fake-model" in name for name in found)


def test_a_loading_engine_has_a_page_without_counts() -> None:
    found = samples(get(fake_app(FakeEngine(state="loading")), "/metrics").body.decode())
    assert found["octavo_engine_state{state=loading}"] == 1
    assert "octavo_queue_requests" not in found


@pytest.mark.parametrize(
    ("state", "outcome"), [("loading", "not_ready"), ("stopped", "shutting_down"), ("failed", "engine_died")]
)
def test_probes_of_a_server_that_is_not_ready_are_not_counted_as_overload(state: EngineState, outcome: str) -> None:
    app = fake_app(FakeEngine(state=state))
    for path in ("/health", "/ready", "/ready"):
        assert get(app, path).status == 503
    found = samples(get(app, "/metrics").body.decode())
    counted = {name: value for name, value in found.items() if name.startswith("octavo_requests_total")}
    assert counted == {
        f"octavo_requests_total{{endpoint=/health,outcome={outcome}}}": 1,
        f"octavo_requests_total{{endpoint=/ready,outcome={outcome}}}": 2,
    }


def test_requests_are_counted_by_route_and_outcome_and_unknown_paths_make_no_series() -> None:
    app = fake_app()
    for path in ("/v1/models", "/v1/models", "/v1/models/a", "/v1/models/b", "/x", "/y"):
        get(app, path)
    found = samples(get(app, "/metrics").body.decode())
    counted = {name: value for name, value in found.items() if name.startswith("octavo_requests_total")}
    assert counted == {
        "octavo_requests_total{endpoint=/v1/models,outcome=ok}": 2,
        "octavo_requests_total{endpoint=/v1/models/{model_id:path},outcome=client_error}": 2,
        "octavo_requests_total{endpoint=other,outcome=client_error}": 2,
    }


def test_tokens_are_timed_as_they_pass() -> None:
    state = ServerState(FakeEngine(step_s=0.01), ServerSettings())

    async def run() -> None:
        requests = [Request(name, (1,), SamplingParams(max_tokens=4), 0) for name in "ab"]
        async for _ in state.run(requests):
            pass

    asyncio.run(run())
    found = samples(state.metrics.page("")[0].decode())
    assert found["octavo_time_to_first_token_seconds_count"] == 2
    assert found["octavo_time_to_first_token_seconds_sum"] >= 0.02
    assert found["octavo_inter_token_seconds_count"] == 6
    assert found["octavo_inter_token_seconds_sum"] >= 0.06


def test_leaving_a_run_early_aborts_its_requests() -> None:
    engine = FakeEngine()
    state = ServerState(engine, ServerSettings())

    async def run() -> None:
        events = state.run([Request("a", (1,), SamplingParams(), 0)])
        await anext(events)
        await events.aclose()
        assert engine.aborted == ["a"]  # by now, not when the garbage collector finds the time

    asyncio.run(run())


def test_the_routes_shown_are_bounded() -> None:
    routes = tuple(RouteCount("gather", f"reason {i}", 1000 - i) for i in range(200))
    engine = FakeEngine(counted=replace(STATS, routes=routes))
    metrics = ServerMetrics()
    metrics.show_engine(engine)
    found = samples(metrics.page("")[0].decode())
    shown = {name: value for name, value in found.items() if name.startswith("octavo_attention_route_total")}
    assert len(shown) == MAX_ROUTE_SERIES + 1
    assert sum(shown.values()) == sum(each.count for each in routes)


def test_the_page_is_in_the_format_that_is_asked_for() -> None:
    app = fake_app()
    assert get(app, "/metrics").headers["content-type"].startswith("text/plain")
    answer = get(app, "/metrics", ("accept", "application/openmetrics-text; version=1.0.0"))
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.body.endswith(b"# EOF\n")


def test_without_metrics_there_is_no_page() -> None:
    answer = get(fake_app(metrics=False), "/metrics")
    assert answer.status == 404
    assert "--no-metrics" in answer.error["message"]


def test_the_cache_s_counts_are_there_as_json_and_add_up() -> None:
    found = get(fake_app(), "/v1/cache/stats").json()
    assert [group["total"] for group in found["groups"]] == [8, 8]
    assert found["groups"][0] == {"group": 0, "total": 8, "free": 5, "live": 2, "cached": 1}
    assert found["prefix_cache"] == {"hits": 4, "misses": 3, "hit_tokens": 32, "evictions": 2, "rejects": 1}
    assert found["kv_bytes"] == 4096


def test_resetting_the_cache_tells_how_many_blocks_are_free_now() -> None:
    assert call(fake_app(), "POST", "/v1/cache/reset", [], b"").json() == {"freed_blocks": 1}
    assert call(fake_app(FakeEngine(state="loading")), "POST", "/v1/cache/reset", [], b"").status == 503


def test_the_routes_of_attention_come_with_reasons_most_frequent_first() -> None:
    found = get(fake_app(), "/v1/internal/routes").json()
    assert found["storage"] == "paged"
    assert found["routes"][0] == {"route": "fused_decode", "reason": "paged rows", "count": 9}
