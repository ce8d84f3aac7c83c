"""Profiles of engine steps: a Chrome trace in which every step has its label, and steps that do not notice."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from octavo.engine.profile import ProfileSettings
from octavo.errors import InvalidRequest
from octavo.step_batch import StorageKind
from tests.engine.tiny_engines import Driver, alone, prompt_of


def labels(path: Path) -> list[str]:
    """Of the steps in a trace, in the order in which they ran."""
    events = json.loads(path.read_text())["traceEvents"]
    steps = [event for event in events if event.get("name", "").startswith("octavo.step ") and event["ph"] == "X"]
    return [event["name"] for event in sorted(steps, key=lambda event: event["ts"])]


def test_a_profile_takes_in_so_many_steps_each_with_its_rows_and_tokens(load, tmp_path):
    loaded = load()
    driver = Driver(loaded, StorageKind.PAGED)
    driver.core.profiler.start(ProfileSettings(tmp_path, 3))
    for name in "ab":
        driver.add(name, prompt_of(20))
    driver.run()
    (path,) = tmp_path.iterdir()
    assert path.name.endswith(".pt.trace.json")
    shown = labels(path)
    assert len(shown) == 3 and [each.split(":")[0] for each in shown] == [f"octavo.step {i}" for i in range(3)]
    assert shown[-1] == "octavo.step 2: 2 rows, 2 tokens"
    assert driver.outcomes["a"].token_ids == alone(loaded, prompt_of(20)).token_ids
    profile = driver.core.profiler.stop()
    assert profile is not None and (profile.path, profile.steps, profile.error) == (str(path), 3, None)


def test_what_runs_inside_a_step_is_in_the_trace(load, tmp_path):
    driver = Driver(load())
    driver.core.profiler.start(ProfileSettings(tmp_path, 1))
    driver.add("a", prompt_of(5))
    driver.run()
    (path,) = tmp_path.iterdir()
    events = json.loads(path.read_text())["traceEvents"]
    (step,) = [event for event in events if event.get("name", "").startswith("octavo.step 0") and event["ph"] == "X"]
    inside = {
        event["name"]
        for event in events
        if event.get("cat") == "cpu_op" and step["ts"] <= event["ts"] <= step["ts"] + step["dur"]
    }
    assert any(name.startswith("aten::") for name in inside)


def test_a_profile_that_is_stopped_early_has_the_steps_so_far_and_another_can_follow(load, tmp_path):
    driver = Driver(load())
    profiler = driver.core.profiler
    assert profiler.stop() is None
    settings = ProfileSettings(tmp_path, 100)
    profiler.start(settings)
    with pytest.raises(InvalidRequest, match="already"):
        profiler.start(settings)
    driver.add("a", prompt_of(5))
    for _ in range(2):
        driver.step()
    first = profiler.stop()
    assert first is not None and first.path is not None and first.steps == 2
    driver.step()
    profiler.start(settings)
    driver.run()
    second = profiler.stop()
    assert second is not None and second.path is not None and second.path != first.path
    assert len(labels(Path(first.path))) == 2 and labels(Path(second.path))[0].startswith("octavo.step 0:")
    profiler.start(settings)
    nothing = profiler.stop()
    assert nothing is not None and (nothing.path, nothing.steps, nothing.error) == (None, 0, None)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_profile_that_cannot_be_written_is_told_and_the_steps_go_on(load, tmp_path, caplog):
    loaded = load()
    driver = Driver(loaded)
    gone = tmp_path / "gone"
    driver.core.profiler.start(ProfileSettings(gone, 2))
    driver.add("a", prompt_of(5))
    driver.run()
    assert driver.outcomes["a"].token_ids == alone(loaded, prompt_of(5)).token_ids
    profile = driver.core.profiler.stop()
    assert profile is not None and profile.path is None and profile.error is not None
    assert str(gone) in profile.error and "No such file" in profile.error
    assert profile.error in caplog.text


@pytest.mark.parametrize("steps", [0, -1, 1001])
def test_a_number_of_steps_that_cannot_be_is_refused(tmp_path, steps):
    with pytest.raises(InvalidRequest, match=f"--profile-steps is {steps}; it must be from 1 to 1000"):
        ProfileSettings.of(tmp_path, steps)


def test_a_directory_is_made_and_left_empty_and_one_that_cannot_be_written_to_is_refused(tmp_path):
    settings = ProfileSettings.of(tmp_path / "new" / "deep", 3)
    assert settings is not None and os.listdir(settings.directory) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match=r"--profile .*file.* cannot be written to"):
        ProfileSettings.of(tmp_path / "file", 3)
    with pytest.raises(InvalidRequest, match="cannot be written to"):
        ProfileSettings.of(tmp_path / "file" / "below", 3)
    assert ProfileSettings.of(None, 3) is None
