"""Where `octavo generate` takes its prompt from: one prompt, verbatim, from one place."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.cli.prompt import read_prompt
from octavo.errors import InvalidRequest
from octavo.tokenizer import Tokenizer
from tests.cli.conftest import Run, command, environment, start

BOM = b"\xef\xbb\xbf"
VERBATIM = {
    "three lines": (b"one\ntwo\nthree\n", "one\ntwo\nthree\n"),
    "no final newline": (b"one\ntwo", "one\ntwo"),
    "CRLF": (b"one\r\ntwo\r\n", "one\r\ntwo\r\n"),
    "a lone CR": (b"one\rtwo", "one\rtwo"),
    "spaces around": (b"  one \n\n", "  one \n\n"),
    "a BOM": (BOM + b"one\n", "one\n"),
    "a BOM inside": (b"one" + BOM, "one\ufeff"),
    "a NUL": (b"one\x00two\n", "one\x00two\n"),
    "a form feed and NEL": ("a\x0cb\x85c\u2028d".encode(), "a\x0cb\x85c\u2028d"),
    "emoji": ("🚀 día\n".encode(), "🚀 día\n"),
    "only a newline": (b"\n", "\n"),
}


def set_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))


@pytest.mark.parametrize(("data", "text"), VERBATIM.values(), ids=VERBATIM)
def test_a_file_and_standard_input_are_taken_verbatim(tmp_path, monkeypatch, data, text):  # report R063
    file = tmp_path / "prompt.txt"
    file.write_bytes(data)
    assert read_prompt(None, file) == text
    set_stdin(monkeypatch, data)
    assert read_prompt(None, None) == text


def test_the_whole_of_standard_input_is_one_prompt_and_a_final_newline_counts(octavo: Run, model: Path):
    """All the way to the ids, for each way to give the same prompt."""
    text = "one\r\ntwo\nthree\n"
    expected = Tokenizer.from_directory(model).encode(text)
    options = ("-m", model, "--raw", "--json", "-n", "1")
    file = model.parent / "prompt.txt"
    file.write_bytes(text.encode())
    for done in (
        octavo("generate", *options, stdin=text.encode()),
        octavo("generate", *options, "-f", file),
        octavo("generate", *options, "-p", text),
    ):
        assert json.loads(done.out)["prompt_token_ids"] == expected
    assert Tokenizer.from_directory(model).encode(text[:-1]) != expected


@pytest.mark.parametrize("source", ["file", "stdin"])
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (BOM, "is empty"),
        (b"abc\xff\xfe", "not UTF-8: byte 0xff at offset 3"),
        (b"caf\xe9", "not UTF-8: byte 0xe9 at offset 3"),
        (b"ab\xf0\x9f\x9a", "not UTF-8: byte 0xf0 at offset 2"),
        ("text".encode("utf-16"), "not UTF-8"),
        (b"\xed\xa0\x80", "not UTF-8"),
    ],
    ids=["empty", "only a BOM", "bad bytes", "latin-1", "cut short", "utf-16", "surrogate"],
)
def test_what_is_empty_or_not_utf8_is_refused_in_one_line(octavo, model, tmp_path, source, data, said):
    file = tmp_path / "prompt.txt"
    file.write_bytes(data)
    arguments = ("-f", file) if source == "file" else ()
    done = octavo("generate", "-m", model, *arguments, stdin=data if source == "stdin" else b"unused")
    assert done.status == 2
    assert said in done.error
    assert (str(file) if source == "file" else "standard input") in done.error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-p", ""), "empty"),
        (("-p", "a", "-f", "b"), "both with -p and with -f"),
        (("-f", "absent.txt"), "'absent.txt' cannot be read: No such file or directory; check the path"),
        (("-f", "."), "'.' cannot be read: Is a directory"),
        (("-p", "a\udcff"), "not UTF-8"),
    ],
    ids=["empty", "both", "absent file", "a directory", "bytes of no text"],
)
def test_a_prompt_that_cannot_be_is_refused_in_one_line(octavo, model, arguments, said):
    done = octavo("generate", "-m", model, *arguments, stdin=b"unused")
    assert done.status == 2
    assert said in done.error


def test_a_terminal_without_a_prompt_is_a_usage_error_not_a_hidden_conversation(octavo, model, monkeypatch):
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

        def read(self, *_: object) -> str:
            raise AssertionError("waited for a person")

    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"")))
    with pytest.raises(InvalidRequest, match="-p TEXT, -f FILE, or on standard input"):
        read_prompt(None, None)


def test_closed_standard_input_is_a_usage_error(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InvalidRequest, match="no prompt"):
        read_prompt(None, None)


def test_standard_input_that_cannot_be_read_is_refused(monkeypatch):
    class Broken(io.BytesIO):
        def read(self, *_: object) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Broken()))
    with pytest.raises(InvalidRequest, match="standard input cannot be read: Input/output error"):
        read_prompt(None, None)


@pytest.mark.skipif(sys.platform == "win32", reason="sessions of POSIX")
@pytest.mark.parametrize("stdin", ["/dev/null", "closed"])
def test_without_any_prompt_and_any_terminal_the_command_ends_at_once(model, stdin):  # reports R060, R063
    with open(os.devnull, "rb") as nothing:
        process = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                f'exec "$@" {"<&-" if stdin == "closed" else ""}',
                "sh",
                *command("generate", "-m", model),
            ],
            stdin=nothing,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            start_new_session=True,
        )
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, b"")
    assert err.startswith(b"octavo: error: ") and err.count(b"\n") == 1
    assert b"-p" in err


def test_a_prompt_argument_does_not_wait_for_an_idle_pipe(model):  # report R063
    with start("generate", "-m", model, "-p", "The harbour", "-n", "3") as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.read() != b""  # while our end of its input stays open and silent
        assert process.wait(timeout=60) == 0
