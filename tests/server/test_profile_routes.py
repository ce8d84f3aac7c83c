"""/start_profile and /stop_profile: a trace of a real engine's steps, and every way to ask for it wrongly."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from asgi_calls import call, fake_app
from fake_engine import FakeEngine
from server_process import octavo_serve

from octavo.engine.profile import ProfileSettings

BODY = {"prompt": "The harbour", "max_tokens": 40, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.tiny_models import save_hf

    path = tmp_path_factory.mktemp("profiled") / "tiny"
    save_hf(path, "llama", num_hidden_layers=2)
    return path


def step_labels(path: Path) -> list[str]:
    events = json.loads(path.read_text())["traceEvents"]
    return [event["name"] for event in events if event.get("name", "").startswith("octavo.step ")]


def test_a_served_engine_profiles_its_next_steps_and_goes_on_serving(model, tmp_path):
    with (
        octavo_serve("-m", model, "--profile", tmp_path, "--profile-steps", 5, "--api-key", "k") as server,
        server.client(headers={"authorization": "Bearer k"}) as client,
    ):
        server.wait_until_ready()
        plain = client.post("/v1/completions", json={**BODY, "seed": 1}).json()["choices"][0]["text"]
        assert client.post("/stop_profile").status_code == 409
        started = client.post("/start_profile")
        assert (started.status_code, started.json()) == (200, {"directory": str(tmp_path.resolve()), "steps": 5})
        assert client.post("/start_profile").status_code == 409
        texts: list[str] = []
        asking = [
            threading.Thread(
                target=lambda: texts.append(
                    client.post("/v1/completions", json={**BODY, "seed": 1}).json()["choices"][0]["text"]
                )
            )
            for _ in range(2)
        ]
        for each in asking:
            each.start()
        for each in asking:
            each.join()
        assert texts == [plain, plain]
        found = server.wait_for(r"octavo.profile: profile of 5 steps written to (\S+)")[1]
        stopped = client.post("/stop_profile").json()
        assert stopped == {"path": found, "steps": 5}
        labels = step_labels(Path(found))
        assert len(labels) == 5 and all("rows" in each and "tokens" in each for each in labels)
        assert client.post("/start_profile").status_code == 200
        client.post("/v1/completions", json={**BODY, "max_tokens": 2})
        second = client.post("/stop_profile").json()
        assert second["steps"] == 2 and len(step_labels(Path(second["path"]))) == 2
        assert "Traceback" not in server.log and "USDT" not in server.log


def post(engine: FakeEngine, path: str, directory: Path | None) -> tuple[int, dict]:
    settings = {} if directory is None else {"profiles": ProfileSettings(directory, 3)}
    answer = call(fake_app(engine, **settings), "POST", path, [], b"")
    return answer.status, answer.json()


@pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
def test_without_the_flag_there_is_no_such_route(path):
    status, body = post(FakeEngine(), path, None)
    assert status == 404 and "--profile DIR" in body["error"]["message"]


@pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
def test_a_model_that_loads_cannot_be_profiled(path, tmp_path):
    assert post(FakeEngine(state="loading"), path, tmp_path)[0] == 503


def test_what_is_asked_in_the_wrong_order_is_409_with_the_remedy(tmp_path):
    engine = FakeEngine()
    status, body = post(engine, "/stop_profile", tmp_path)
    assert (status, body["error"]["code"]) == (409, "no_profile") and "/start_profile" in body["error"]["message"]
    assert post(engine, "/start_profile", tmp_path)[0] == 200
    status, body = post(engine, "/start_profile", tmp_path)
    assert (status, body["error"]["code"]) == (409, "profile_running") and "/stop_profile" in body["error"]["message"]
    assert post(engine, "/stop_profile", tmp_path) == (200, {"path": str(tmp_path / "trace.json"), "steps": 3})


def test_a_trace_that_could_not_be_written_is_told(tmp_path):
    engine = FakeEngine(profile_error="the profile could not be written to 'x' (No space left on device)")
    post(engine, "/start_profile", tmp_path)
    status, body = post(engine, "/stop_profile", tmp_path)
    assert (status, body["error"]["code"]) == (500, "profile_failed")
    assert "No space left" in body["error"]["message"]
