"""One picture of the machine as a JSON object: what the event stream sends and the live page draws."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from typing import Any

import octavo
from octavo.cache.block_map import STATES, GroupMap
from octavo.engine.machine import MachineSnapshot, MachineView, RequestProgress
from octavo.engine.stats import EngineStats
from octavo.server.cache_routes import cache_stats_of
from octavo.server.metrics import LatencySums
from octavo.server.state import ServerState

# Tells a page that the server it talks to is not the one it talked to before.
_INSTANCE = secrets.token_hex(6)
_MAX_ROUTES = 64
_BEGUN = time.monotonic()  # when this process was made ready to serve


@dataclass(frozen=True, slots=True)
class _Before:
    """What rates are told from."""

    at_s: float
    stats: EngineStats
    latency: LatencySums


class Painter:
    """Draws snapshots of one engine; rates are of the time since the one drawn before."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._before: _Before | None = None

    def draw(self, snapshot: MachineSnapshot | None, busy: bool = False) -> dict[str, Any]:
        """The object. Without a snapshot it tells the engine's state alone; `busy`: because a step takes long."""
        status = self._state.engine.status
        drawn: dict[str, Any] = {
            "server": {
                "version": octavo.__version__,
                "instance": _INSTANCE,
                "uptime_s": round(time.monotonic() - _BEGUN, 1),
            },
            "engine": {"state": status.state, "reason": status.reason, "busy": busy},
            "model": self._model(),
            "machine": None,
        }
        if snapshot is not None:
            drawn["machine"] = self._machine(snapshot)
        return drawn

    def event(self, snapshot: MachineSnapshot | None, busy: bool) -> bytes:
        """The same as a server-sent event."""
        text = json.dumps(self.draw(snapshot, busy), separators=(",", ":"))
        return f"event: machine\ndata: {text}\n\n".encode("ascii")

    def _model(self) -> dict[str, Any] | None:
        if self._state.engine.status.state not in ("ready", "draining"):
            return None
        info, tokenizer = self._state.ready_model()
        return {
            "name": self._state.model_names()[0],
            "family": info.family,
            "storage": info.storage,
            "dtype": info.dtype,
            "kv_dtype": info.kv_dtype,
            "weights": info.weights,
            "max_context": info.max_context,
            "chat_template": tokenizer.chat_template is not None,
        }

    def _machine(self, snapshot: MachineSnapshot) -> dict[str, Any]:
        stats, view = snapshot.stats, snapshot.view
        routes = sorted(stats.routes, key=lambda each: -each.count)[:_MAX_ROUTES]
        return {
            "at_s": round(snapshot.at_s, 4),
            "took_s": round(snapshot.took_s, 6),
            "rates": self._rates(snapshot),
            "steps": stats.steps,
            "generated_tokens": stats.generated_tokens,
            "waiting": stats.num_waiting,
            "running": stats.num_running,
            "requests": [_request(each) for each in view.requests],
            "requests_left_out": view.num_left_out,
            "groups": [_group(each, index, view) for index, each in enumerate(view.maps)],
            "cache": cache_stats_of(stats).model_dump(),
            "routes": [{"route": each.route, "reason": each.reason, "count": each.count} for each in routes],
            "memory": view.memory,
        }

    def _rates(self, snapshot: MachineSnapshot) -> dict[str, float | None]:
        """Per second, and mean seconds of what was counted since; None where nothing can be told."""
        stats, latency = snapshot.stats, self._state.metrics.latency_sums()
        before, self._before = self._before, _Before(snapshot.at_s, stats, latency)
        names = ("generated_tokens_per_s", "prompt_tokens_per_s", "first_token_s", "inter_token_s", "step_s")
        if before is None or snapshot.at_s <= before.at_s:
            return dict.fromkeys(names)
        seconds = snapshot.at_s - before.at_s
        steps = stats.steps - before.stats.steps
        values = (
            (stats.generated_tokens - before.stats.generated_tokens) / seconds,
            (stats.prompt_tokens - before.stats.prompt_tokens) / seconds,
            _mean(latency.first_s - before.latency.first_s, latency.num_first - before.latency.num_first),
            _mean(latency.inter_s - before.latency.inter_s, latency.num_inter - before.latency.num_inter),
            _mean(stats.step_seconds.total - before.stats.step_seconds.total, steps),
        )
        return {name: None if value is None else round(value, 6) for name, value in zip(names, values, strict=True)}


def _mean(total: float, count: float) -> float | None:
    return total / count if count > 0 else None


def _request(each: RequestProgress) -> dict[str, Any]:
    return {
        "id": each.request_id,
        "choice": each.choice,
        "stage": each.stage,
        "priority": each.priority,
        "prompt_tokens": each.prompt,
        "computed_tokens": each.computed,
        "cached_tokens": each.cached,
        "generated_tokens": each.generated,
        "max_generated_tokens": each.max_generated,
        "age_s": round(each.age_s, 3),
    }


def _group(drawn: GroupMap, index: int, view: MachineView) -> dict[str, Any]:
    return {
        "group": index,
        "kind": view.group_kinds[index],
        "layers": view.group_layers[index],
        "window": view.group_windows[index],
        "blocks": drawn.num_blocks,
        "block_size": drawn.block_size,
        "blocks_per_cell": drawn.blocks_per_cell,
        "counts": dict(zip(STATES, drawn.counts, strict=True)),
        "owners": drawn.owners,
        "runs": drawn.runs,
    }
