"""The command as a process: streams, terminals that are none, signals, and readers that go away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.cli.conftest import command, environment, start

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes and signals of POSIX")
LONG = ("--raw", "--ignore-eos", "-n", "1000", "--temperature", "1", "--seed", "1")


@pytest.fixture(scope="module")
def expected(model):
    """What the model answers, as text."""
    from octavo import LLM, SamplingParams

    params = SamplingParams(max_tokens=12, ignore_eos=True)
    return LLM(model, threads=1, max_num_seqs=1).generate("The harbour", params)[0].outputs[0].text.encode()


@pytest.mark.parametrize("merged", [False, True], ids=["apart", "stderr merged"])
def test_captured_output_is_the_answer_and_one_newline(model, expected, tmp_path, merged):  # report R060
    arguments = command("generate", "-m", model, "-p", "The harbour", "--raw", "--ignore-eos", "-n", "12")
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(
            arguments,
            env=environment(TERM="dumb" if merged else "xterm-256color", NO_COLOR="1", COLUMNS="20"),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            start_new_session=True,
            check=False,
            timeout=60,
        )
    shown = (tmp_path / "out").read_bytes()
    assert done.returncode == 0
    assert b"\x1b" not in shown + (done.stderr or b"") and b"\r" not in (done.stderr or b"")
    if merged:
        first, _, rest = shown.partition(b"\n")
        assert first.startswith(b"octavo: llama (llama), ")
        assert rest == expected + b"\n"
    else:
        assert shown == expected + b"\n"
        assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_of_an_answer_ends_it_cleanly(model, how, status):
    with start("generate", "-m", model, "-p", "The harbour", *LONG) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.close()
        first = process.stdout.read(1)
        process.send_signal(how)
        rest, err = process.stdout.read(), process.stderr.read()
        assert process.wait(timeout=60) == status
    assert first and rest.endswith(b"\n") and not rest.endswith(b"\n\n\n")
    assert err.count(b"\n") == 1 and err.startswith(b"octavo: llama")  # no traceback, no second line


def test_an_interrupt_while_the_model_loads_ends_cleanly(gguf):
    """Sent from within, while a weight is packed."""
    code = """
import os, signal, sys
import octavo.engine.loaded_model as loaded
from octavo.cli.main import run
original = loaded.WeightSource.linear
def linear(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    return original(*arguments)
loaded.WeightSource.linear = linear
run(sys.argv[1:])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "generate", "-m", str(gguf), "-p", "x"],
        env=environment(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_a_reader_that_goes_away_ends_the_command_quietly(model):
    with start("generate", "-m", model, "-p", "The harbour", *LONG) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.close()
        assert process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=60) == 141
    assert err.count(b"\n") == 1 and err.startswith(b"octavo: llama")


def test_a_warning_that_is_logged_is_one_plain_line(tmp_path):
    """An unknown pre-tokeniser under --force."""
    from tests.tiny_models import save_gguf, save_hf

    theirs = save_hf(tmp_path / "hf", "llama", num_hidden_layers=1)
    path = save_gguf(tmp_path / "llama.gguf", theirs, "llama")
    data = path.read_bytes()
    assert data.count(b"gpt-2") == 1
    path.write_bytes(data.replace(b"gpt-2", b"gpt-7"))
    arguments = ("generate", "-m", path, "-p", "x", "-n", "1")
    refused = subprocess.run(command(*arguments), env=environment(), capture_output=True, check=False, timeout=60)
    assert refused.returncode == 2
    assert b"'gpt-7'" in refused.stderr and b"--force" in refused.stderr and refused.stderr.count(b"\n") == 1
    forced = subprocess.run(
        command(*arguments, "--force"), env=environment(), capture_output=True, check=False, timeout=60
    )
    assert forced.returncode == 0
    warning, chosen = forced.stderr.decode().splitlines()
    assert warning.startswith("octavo: warning: pre-tokeniser 'gpt-7' is not supported")
    assert chosen.startswith("octavo: llama.gguf (llama), ")


def test_output_is_utf8_whatever_the_locale(model, expected):
    done = subprocess.run(
        command("generate", "-m", model, "-p", "The harbour", "--raw", "--ignore-eos", "-n", "12"),
        env=environment(LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0"),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, expected + b"\n")


def shell(redirection: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """The command under a shell's redirection; standard output and error are caught where that leaves them."""
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", *command(*arguments)],
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
    )


def printing(model: Path) -> dict[str, tuple[object, ...]]:
    """A command of each kind that prints."""
    generate = ("generate", "-m", model, "-p", "x", "--raw", "--ignore-eos", "-n", "20")
    return {
        "text": generate,
        "json": (*generate, "--json"),
        "list": ("list", "--json"),
        "inspect": ("inspect", model),
        "help": ("generate", "--help"),
        "version": ("--version",),
    }


FULL_DISK = [
    *((kind, when) for kind in ("text", "list", "help", "version") for when in ("at the end", "in the middle")),
    ("json", "in the middle"),  # these two load a model and print it all at once, so that one of either will do
    ("inspect", "at the end"),
]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(("kind", "when"), FULL_DISK)
def test_output_to_a_full_disk_is_one_plain_line(model, tmp_path, kind, when):
    variables = {"PYTHONUNBUFFERED": "1" if when == "in the middle" else "", "OCTAVO_MODELS": str(tmp_path)}
    done = shell(">/dev/full", *printing(model)[kind], **variables)
    notes = [line for line in done.stderr.decode().splitlines() if not line.startswith("octavo: llama (llama), ")]
    assert done.returncode == 1
    (line,) = notes
    assert line.startswith("octavo: error: cannot write to standard output (No space left on device); ")


@pytest.mark.parametrize("kind", ["text", "json", "list", "inspect", "help", "version"])
def test_closed_output_is_refused_before_anything_is_loaded(model, kind):
    done = shell(">&-", *printing(model)[kind])
    assert done.returncode == 1
    assert done.stderr == b"octavo: error: standard output is closed; leave it open or send it to a file\n"


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_the_answer_comes_whatever_becomes_of_standard_error(model, expected, redirection):
    done = shell(redirection, "generate", "-m", model, "-p", "The harbour", "--raw", "--ignore-eos", "-n", "12")
    assert (done.returncode, done.stdout, done.stderr) == (0, expected + b"\n", b"")
    refused = shell(redirection, "generate", "-m", model, "-p", "", "--raw")
    assert (refused.returncode, refused.stdout) == (2, b"")


def test_an_interrupt_while_the_command_is_imported_ends_it_in_silence():
    """Sent from within, by the first module that the entry asks for."""
    code = """
import os, signal, sys
from octavo.cli import entry
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "octavo.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
entry.run()
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, check=False, timeout=60)
    assert done.returncode in (-signal.SIGINT, 130)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_the_installed_command_begins_where_interrupts_are_quiet():
    (script,) = entry_points(group="console_scripts", name="octavo")
    assert script.value == "octavo.cli.entry:run"
