"""What the quick start shows works as it stands there; the model is a tiny one with the default model's name."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.cli.main import invoke
from tests.server.server_process import ServerProcess, octavo_serve
from tests.tiny_models import save_hf

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "index.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PYTHON = [body for language, body in BLOCKS if language == "python"]
SHELL = [body for language, body in BLOCKS if language == "sh"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quick start") / "smollm2"
    save_hf(path, "llama", num_hidden_layers=1, max_position_embeddings=2048)
    return path


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[ServerProcess]:
    with octavo_serve("-m", model, "--parallel", "1") as server:
        server.wait_until_ready()
        yield server


def test_the_python_of_the_quick_start_runs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (offline,) = (body for body in PYTHON if "from octavo import" in body)
    exec(compile(offline.replace('"smollm2"', repr(str(model))), "quick start", "exec"), {})
    assert "completion_tokens=64" in capsys.readouterr().out


@pytest.mark.parametrize("line", re.findall(r"^octavo generate .*$", "\n".join(SHELL), re.MULTILINE))
def test_the_commands_of_the_quick_start_answer(
    line: str, model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OCTAVO_MODEL", str(model))
    monkeypatch.setenv("OCTAVO_THREADS", "1")
    invoke([*shlex.split(line)[1:], *([] if " -n " in line else ["-n", "8"])])
    out = capfd.readouterr().out
    assert out.strip() and ('"finish_reason": ' in out) == ("--json" in line)


def test_the_curl_of_the_quick_start_is_answered(server: ServerProcess) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (line,) = (body for body in SHELL if body.startswith("curl"))
    words = shlex.split(line.replace("\\\n", " ").replace("http://127.0.0.1:8000", server.url))
    done = subprocess.run(
        [*words, "--silent", "--noproxy", "*"], capture_output=True, text=True, check=True, timeout=60
    )
    assert '"finish_reason": "' in done.stdout.replace('":"', '": "')


def test_the_client_of_the_quick_start_streams(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (client,) = (body for body in PYTHON if "from openai import" in body)
    names: dict[str, object] = {}
    exec(compile(client.replace("http://127.0.0.1:8000", server.url), "quick start", "exec"), names)
    names["client"].close()  # type: ignore[attr-defined]
    assert capsys.readouterr().out
