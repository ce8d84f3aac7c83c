"""How a command ends: exit statuses, and one line on standard error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import typer

from octavo.cli.errors import exit_status_of, one_line, report_fault
from octavo.cli.options import environment_variable
from octavo.errors import CapacityError, EngineFault, InvalidRequest, LoadError, OctavoError


def raising(error: BaseException) -> int:
    def command() -> None:
        raise error

    return exit_status_of(command)


@pytest.mark.parametrize(
    ("kind", "status"),
    [(InvalidRequest, 2), (CapacityError, 2), (LoadError, 2), (EngineFault, 1), (OctavoError, 1)],
)
def test_our_errors_give_their_own_status_and_one_line(
    kind: type[OctavoError], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raising(kind("context is 9000;\n at most\t8192")) == status
    assert capsys.readouterr() == ("", "octavo: error: context is 9000; at most 8192\n")


def test_what_was_printed_before_an_error_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        print("partial answer")
        raise EngineFault("device lost")

    assert exit_status_of(command) == 1
    assert capsys.readouterr() == ("partial answer\n", "octavo: error: device lost\n")


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), 130), (typer.Abort(), 130), (typer.Exit(3), 3), (typer.Exit(), 0)]
)
def test_deliberate_ends_are_silent(error: BaseException, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(error) == status
    assert capsys.readouterr() == ("", "")


def test_a_usage_error_of_typer_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(typer.BadParameter("Must be even.")) == 2
    assert capsys.readouterr().err == "octavo: error: invalid value: Must be even\n"


def test_an_unexpected_exception_passes_through_to_the_hook() -> None:
    with pytest.raises(ZeroDivisionError):
        raising(ZeroDivisionError("oops"))


def test_the_hook_prints_one_line_with_the_way_to_the_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OCTAVO_DEBUG", raising=False)
    error = ZeroDivisionError("two\nlines")
    report_fault(ZeroDivisionError, error, None)
    assert capsys.readouterr().err == (
        "octavo: error: unexpected ZeroDivisionError: two lines; OCTAVO_DEBUG=1 shows the traceback\n"
    )
    monkeypatch.setenv("OCTAVO_DEBUG", "1")
    report_fault(ZeroDivisionError, error, None)
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "status", "last_line"),
    [
        ("raise ValueError('odd')", 1, "octavo: error: unexpected ValueError: odd; OCTAVO_DEBUG=1 shows the traceback"),
        ("print('x' * 10)", 0, ""),
    ],
)
def test_a_process_ends_with_the_status_of_its_command(body: str, status: int, last_line: str) -> None:
    code = f"from octavo.cli.errors import run_command\ndef command():\n    {body}\nrun_command(command)"
    environment = {name: value for name, value in os.environ.items() if name != "OCTAVO_DEBUG"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (status, last_line)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_unwinds_the_command_and_ends_it_without_a_traceback(how: signal.Signals, status: int) -> None:
    code = """
import time
from octavo.cli.errors import run_command
def command():
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("unwound")
run_command(command)
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.05)
        process.send_signal(how)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (status, "unwound\n", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_an_error() -> None:
    code = "from octavo.cli.errors import run_command\nrun_command(lambda: print('text'))"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("octavo: error: cannot write to standard output (No space left on device)")
    assert done.stderr.count("\n") == 1


def test_control_characters_never_reach_the_terminal() -> None:
    assert one_line("a\x1b[31mb\r\n\tc\x07\x9bd é 語") == "a[31mb cd é 語"


def test_a_long_message_keeps_its_beginning_and_its_remedy() -> None:
    line = one_line(f"model {'x' * 100_000} is unknown; octavo list names them")
    assert len(line) == 500
    assert line.startswith("model xxx") and " … " in line and line.endswith("x is unknown; octavo list names them")
    assert one_line("y" * 500) == "y" * 500


@pytest.mark.parametrize(
    ("flags", "name"),
    [(("-n", "--max-tokens"), "OCTAVO_MAX_TOKENS"), (("--chat/--raw",), "OCTAVO_CHAT"), (("--json",), "OCTAVO_JSON")],
)
def test_a_flag_is_set_by_the_variable_of_its_long_name(flags: tuple[str, ...], name: str) -> None:
    assert environment_variable(*flags) == name
