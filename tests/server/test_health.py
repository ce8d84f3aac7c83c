"""/health and /ready in every state of the engine, and /version."""

from __future__ import annotations

import pytest
from asgi_calls import call, fake_app, get
from fake_engine import FakeEngine

import octavo


@pytest.mark.parametrize(
    ("state", "health", "ready"),
    [("loading", 503, 503), ("ready", 200, 200), ("draining", 200, 503), ("failed", 503, 503), ("stopped", 503, 503)],
)
def test_a_draining_server_is_alive_but_takes_nothing_and_one_without_a_model_is_neither(
    state: str, health: int, ready: int
) -> None:
    app = fake_app(FakeEngine(state=state, reason="because"))
    for path, status in (("/health", health), ("/ready", ready)):
        answer = get(app, path)
        assert answer.status == status
        assert answer.json() == {"status": state, "reason": "because"}
        assert call(app, "HEAD", path).status == status


def test_probes_need_no_key() -> None:
    app = fake_app(api_keys=("secret",))
    assert [get(app, path).status for path in ("/health", "/ready", "/version")] == [200, 200, 401]


def test_the_version_is_the_package_s() -> None:
    assert get(fake_app(), "/version").json() == {"name": "octavo", "version": octavo.__version__}


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/fake-model", "/v1/cache/stats", "/v1/internal/routes"])
@pytest.mark.parametrize("state", ["loading", "failed"])
def test_what_needs_a_model_is_unavailable_without_one_and_says_why(path: str, state: str) -> None:
    answer = get(fake_app(FakeEngine(state=state, reason="reading weights")), path)
    assert answer.status == 503
    told = {"loading": "(reading weights)", "failed": "(failed: reading weights)"}[state]  # the first says so itself
    assert told in answer.error["message"]
    assert int(answer.headers["retry-after"]) > 0
