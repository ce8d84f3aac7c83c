"""What the quick start and others show works as it stands; the model is a tiny one with the default model's name."""

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

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


PYTHON, SHELL = blocks("docs/index.md", "python"), blocks("docs/index.md", "sh")
OFFLINE = {
    page: [body for body in blocks(page, "python") if 'LLM("smollm2")' in body]
    for page in ("README.md", "docs/index.md", "docs/structured-output.md")
}


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


@pytest.mark.parametrize("page", OFFLINE)
def test_python_that_a_page_shows_runs(page: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (offline,) = OFFLINE[page]
    exec(compile(offline.replace('"smollm2"', repr(str(model))), page, "exec"), {})
    out = capsys.readouterr().out
    assert {"README.md": "tokens)", "docs/index.md": "completion_tokens=64"}.get(page, "{") in out


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
