"""Every piece of Python that a page shows a client with runs against a server, over a tiny model with their names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.server_process import ServerProcess, octavo_serve
from tests.tiny_models import save_hf

DOCS = Path(__file__).resolve().parents[2] / "docs"
ADDRESS = "http://127.0.0.1:8000"
SHOWN = [
    pytest.param(block, id=f"{page.name} {number}")
    for page in sorted(DOCS.glob("*.md"))
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S), 1)
    if ADDRESS in block
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """It tells of tools itself, for its model's template knows none."""
    path = tmp_path_factory.mktemp("shown") / "smollm2"
    save_hf(path, "llama", num_hidden_layers=1, max_position_embeddings=2048)
    names = ("--served-model-name", "smollm2", "--served-model-name", "qwen05")
    with octavo_serve("-m", path, "--parallel", "1", "--tool-parser", "generic", *names) as server:
        server.wait_until_ready()
        yield server


def test_the_pages_show_clients() -> None:
    assert len(SHOWN) >= 5


@pytest.mark.parametrize("block", SHOWN)
def test_python_that_asks_a_server_runs_and_bounds_its_answer(
    block: str, server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    calls = len(re.findall(r"\.(completions|responses|messages)\.create\(", block))
    assert calls == len(re.findall(r"\bmax_(output_)?tokens=", block))
    names: dict[str, object] = {}
    exec(compile(block.replace(ADDRESS, server.url), "page", "exec"), names)
    names["client"].close()  # type: ignore[attr-defined]
    assert capsys.readouterr().out
