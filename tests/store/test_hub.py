"""Fetching from a hub on the loopback interface."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from model_sources import FakeHub, HubRepo, RecordingProgress

from octavo.errors import InvalidRequest, LoadError
from octavo.store import list_models, pull_model, remove_model, resolve_model

WEIGHTS = os.urandom(300_000)


def gguf_repo(**settings: Any) -> HubRepo:
    files = {"README.md": b"#", "m-Q4_0.gguf": WEIGHTS, "m-Q8_0.gguf": WEIGHTS * 2}
    return HubRepo(files, lfs=frozenset(("m-Q4_0.gguf", "m-Q8_0.gguf")), **settings)


def test_a_quantisation_is_fetched_whole_and_only_it(hub: FakeHub, models: Path, progress: RecordingProgress) -> None:
    hub.repos["owner/name"] = gguf_repo(card={"license": "apache-2.0"})
    path = resolve_model("owner/name:q4_0", progress=progress)
    assert path == models / "hub" / "owner" / "name" / "m-Q4_0.gguf"
    assert path.read_bytes() == WEIGHTS
    assert not any("Q8_0" in request.path for request in hub.requests)
    assert progress.notes[-1] == "licence of owner/name:q4_0: apache-2.0, as stated by the model card of owner/name"


def test_a_directory_model_is_fetched_with_config_and_tokenizer(
    hub: FakeHub, models: Path, progress: RecordingProgress
) -> None:
    files = {"config.json": b"{}", "model.safetensors": WEIGHTS, "tokenizer.json": b'{"a": 1}', "junk.bin": b"x"}
    hub.repos["owner/name"] = HubRepo(files, lfs=frozenset(("model.safetensors",)))
    path = resolve_model("owner/name", progress=progress)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == {
        k: v for k, v in files.items() if k != "junk.bin"
    }


def test_a_model_that_is_here_is_found_without_asking_the_hub(
    hub: FakeHub, models: Path, progress: RecordingProgress
) -> None:
    hub.repos["owner/name"] = gguf_repo()
    first = resolve_model("owner/name:Q4_0", progress=progress)
    hub.requests.clear()
    assert resolve_model("owner/name:q4_0", progress=progress) == first
    assert hub.requests == []


@pytest.mark.parametrize(
    ("settings", "licence"),
    [
        ({"card": {"license": "mit"}}, "mit, as stated by the model card of owner/name"),
        (
            {"card": {"license": "other", "license_name": "gemma"}},
            "gemma, as stated by the model card of owner/name",
        ),
        ({"tags": ("gguf", "license:llama3")}, "llama3, as stated by the model card of owner/name"),
        ({}, "none stated by the model card of owner/name"),
    ],
)
def test_the_licence_of_the_model_card_is_told(
    hub: FakeHub, models: Path, progress: RecordingProgress, settings: dict[str, Any], licence: str
) -> None:
    hub.repos["owner/name"] = gguf_repo(**settings)
    assert pull_model("owner/name:Q4_0", progress=progress).licence == licence
    assert pull_model("owner/name:Q4_0", progress=progress).licence == licence  # remembered


def test_the_token_goes_to_the_hub_and_not_to_the_host_that_stores_the_bytes(
    hub: FakeHub, models: Path, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.repos["owner/name"] = gguf_repo()
    resolve_model("owner/name:Q4_0", progress=progress)
    storage = [request for request in hub.requests if request.path.startswith("/storage")]
    resolve = [request for request in hub.requests if "/resolve/" in request.path]
    assert {request.authorization for request in storage} == {None}
    assert {request.authorization for request in resolve} == {"Bearer hf_secret"}


@pytest.mark.parametrize(
    ("how", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_an_interrupted_fetch_ends_cleanly_and_the_next_one_asks_for_the_rest_only(
    hub: FakeHub, models: Path, progress: RecordingProgress, how: signal.Signals, status: int
) -> None:
    big = os.urandom(24_000_000)
    hub.repos["owner/name"] = HubRepo({"m-Q8_0.gguf": big}, lfs=frozenset(("m-Q8_0.gguf",)))
    hub.stall_after = 15_000_000
    command = [sys.executable, "-m", "octavo", "pull", "owner/name:Q8_0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert hub.stalled.wait(30)
        partial = wait_for_partial(models)
        process.send_signal(how)
        out, err = process.communicate(timeout=20)
    assert process.returncode == status
    assert out == ""
    assert "Traceback" not in err
    assert list_models() == []

    hub.stall_after = None
    hub.requests.clear()
    path = resolve_model("owner/name:Q8_0", progress=progress)
    ranges = [request.range for request in hub.requests if request.method == "GET" and request.range]
    assert ranges == [f"bytes={partial}-"]
    assert path.read_bytes() == big
    assert not any((models / ".octavo" / "partial").iterdir())


def wait_for_partial(models: Path) -> int:
    """Bytes of the one partial file, once it has any."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        sizes = [path.stat().st_size for path in (models / ".octavo" / "partial").rglob("*") if path.is_file()]
        if sum(sizes):
            time.sleep(0.2)
            return sum(path.stat().st_size for path in (models / ".octavo" / "partial").rglob("*") if path.is_file())
        time.sleep(0.02)
    raise AssertionError("nothing was written")


def test_a_partial_file_is_not_continued_with_another_version(
    hub: FakeHub, models: Path, progress: RecordingProgress
) -> None:
    hub.repos["owner/name"] = gguf_repo()
    partial = models / ".octavo" / "partial" / "owner%2fname"
    partial.mkdir(parents=True)
    (partial / ("0" * 64)).write_bytes(b"old version")
    assert resolve_model("owner/name:Q4_0", progress=progress).read_bytes() == WEIGHTS


def test_a_file_that_arrives_damaged_is_removed(hub: FakeHub, models: Path, progress: RecordingProgress) -> None:
    hub.repos["owner/name"] = gguf_repo(announced_sha256={"m-Q4_0.gguf": "0" * 64})
    with pytest.raises(LoadError, match=r"m-Q4_0\.gguf of owner/name arrived damaged"):
        resolve_model("owner/name:Q4_0", progress=progress)
    assert not list(models.rglob("*.gguf"))
    assert not [path for path in (models / ".octavo" / "partial").rglob("*") if path.is_file()]


def test_a_missing_repository_is_one_line_that_names_it(
    hub: FakeHub, models: Path, progress: RecordingProgress
) -> None:
    with pytest.raises(LoadError, match="the hub has no model repository 'owner/nothing'") as caught:
        resolve_model("owner/nothing", progress=progress)
    assert "\n" not in str(caught.value)


def test_a_gated_repository_is_one_line_with_the_remedy(
    hub: FakeHub, models: Path, progress: RecordingProgress
) -> None:
    hub.repos["owner/name"] = gguf_repo(gated=True)
    with pytest.raises(LoadError, match=r"owner/name is gated: accept its terms .* HF_TOKEN") as caught:
        resolve_model("owner/name:Q4_0", progress=progress)
    assert "\n" not in str(caught.value)


def test_a_hub_that_is_out_of_reach_is_one_line_with_the_remedy(
    hub: FakeHub, models: Path, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the discard port, where nothing listens
    with pytest.raises(LoadError, match=r"fetching owner/name failed .*check the network") as caught:
        resolve_model("owner/name", progress=progress)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>log in</html>",
        b"",
        b"null",
        b"[]",
        b"7",
        b"{}",
        b"[" * 100_000,
        b'{"id": "owner/name", "siblings": 3}',
        b'{"id": "owner/name", "siblings": [7]}',
        b'{"id": "owner/name", "siblings": [{"rfilename": "m-Q4_0.gguf", "size": "large"}]}',
        b'{"id": "owner/name", "siblings": [{"rfilename": "m-Q4_0.gguf", "size": 1}], "tags": [1]}',
    ],
)
def test_an_answer_that_no_hub_gives_is_one_line_that_names_the_endpoint(
    hub: FakeHub, models: Path, progress: RecordingProgress, answer: bytes
) -> None:
    hub.repos["owner/name"] = gguf_repo(info=answer)
    with pytest.raises(
        LoadError, match=r"HF_ENDPOINT, http://127\.0\.0\.1:\d+, answered for owner/name:Q4_0"
    ) as caught:
        resolve_model("owner/name:Q4_0", progress=progress)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:80", "ftp://host", "http://"])
def test_an_endpoint_that_is_no_url_is_refused(
    hub: FakeHub, models: Path, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(LoadError, match="HF_ENDPOINT is"):
        resolve_model("owner/name", progress=progress)


def test_too_little_disk_is_refused_with_both_numbers_before_anything_is_fetched(
    hub: FakeHub, models: Path, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos["owner/name"] = gguf_repo()
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100_000))
    with pytest.raises(LoadError, match=r"needs 300\.0 kB of disk in .*, where 100\.0 kB are free"):
        resolve_model("owner/name:Q4_0", progress=progress)
    assert not any("/resolve/" in request.path for request in hub.requests)


def test_removing_one_quantisation_keeps_the_other(hub: FakeHub, models: Path, progress: RecordingProgress) -> None:
    hub.repos["owner/name"] = gguf_repo()
    four = resolve_model("owner/name:Q4_0", progress=progress)
    eight = resolve_model("owner/name:Q8_0", progress=progress)
    assert [model.name for model in list_models()] == ["owner/name:Q4_0", "owner/name:Q8_0"]
    remove_model("owner/name:Q4_0")
    assert not four.exists()
    assert eight.exists()
    remove_model("owner/name:Q8_0")
    assert not (models / "hub").exists()


def test_an_unfinished_fetch_can_be_removed(hub: FakeHub, models: Path, progress: RecordingProgress) -> None:
    partial = models / ".octavo" / "partial" / "owner%2fname"
    partial.mkdir(parents=True)
    (partial / "abc").write_bytes(b"half")
    remove_model("owner/name:Q4_0")
    assert not partial.exists()
    with pytest.raises(InvalidRequest, match="no model"):
        remove_model("owner/name:Q4_0")
