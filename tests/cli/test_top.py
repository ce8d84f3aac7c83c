"""`octavo top`: one frame, frames for good, and what it says of a server that refuses, goes away or comes back."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from octavo.cli.top_frame import STATES, duration, state_bar
from octavo.cli.top_picture import History, Picture, Trend
from tests.cli.conftest import Run, command, environment
from tests.cli.picture_server import Answer, group, picture, request, serving
from tests.server.server_process import fake_server

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="terminals and signals of POSIX")


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


# -- one frame --------------------------------------------------------------------------------------------------------


def test_once_prints_what_a_real_server_s_engine_counts_as_plain_text(octavo: Run):
    with fake_server() as server:
        server.wait_until_ready()
        done = octavo("top", "--url", server.url, "--once", FORCE_COLOR="1")
        raw = octavo("top", "--url", server.url, "--once", "--json")
        bare = octavo("top", "--url", server.url.removeprefix("http://"), "--once")
    assert done.status == 0 and done.err == "" and "\x1b" not in done.out
    assert bare.status == 0 and server.url in bare.out, bare.err
    words = " ".join(done.out.split())
    for shown in (
        f"{server.url} ready up ",
        "fake-model (llama, float32, full weights, paged storage, f32 K/V, context 512)",
        "running 3 waiting 2 preemptions 1 steps 11",
        "generated 0.0 tokens/s",
        "0: 2 full layers, 8 x 16",
        "1: 1 sliding layer, window 64, 8 x 16",
        "live 2 shared 0 cached 1 pinned 0 free 5",
        "prefix cache: 4 hits of 7 lookups (57%), 32 of 100 prompt tokens cached, 2 entries given up",
        "fused_decode 9 paged rows",
        "one decode 0.5 s 21/21 0 3/8",
        "memory: weights 0.0 MiB",
    ):
        assert shown in words, shown
    found = json.loads(raw.out)
    assert raw.out.count("\n") == 1 and found["machine"]["running"] == 3 and found["machine"]["rates"]


def test_the_frame_shows_speeds_from_two_pictures_and_progress_of_requests(octavo: Run):
    rates = {"first_token_s": 0.25, "inter_token_s": 0.0125, "step_s": 0.01}
    waiting = request(id="late", stage="waiting", generated_tokens=0, computed_tokens=0, cached_tokens=None)
    later = picture(3.0, steps=30, generated_tokens=180, rates=rates, requests=[request(), waiting])
    with serving(Answer([picture(1.0), later], stays=True)) as server:
        words = " ".join(octavo("top", "--url", server.url, "--once").out.split())
    for shown in (
        "octavo 9.9",
        "up 1m15s",
        "generated 40.0 tokens/s",
        "first token 250.0 ms between tokens 12.5 ms",
        "step 10.0 ms 10.0 steps/s",
        "chatcmpl-1 decode 0.5 s 21/21 16 4/8 ━━━━━─────",
        "late waiting 0.5 s 0/21 0/8 ──────────",
        "memory: weights 1.0 MiB, K/V 2.00 GiB",
        "gather 7 no compiled kernel",
    ):
        assert shown in words, shown


def test_a_server_that_loads_has_a_frame_that_says_so(octavo: Run):
    loading = {**picture(), "model": None, "machine": None}
    loading["engine"] = {"state": "loading", "reason": "loading the model: 40%\x1b[2J", "busy": False}
    with serving(Answer([loading], stays=True)) as server:
        done = octavo("top", "--url", server.url, "--once")
    assert done.status == 0
    assert "loading" in done.out and "loading the model: 40%" in done.out and "\x1b" not in done.out


def test_what_does_not_fit_is_counted(octavo: Run):
    many = [picture(at, requests=[request()] * 3, requests_left_out=9) for at in (1.0, 2.0)]
    with serving(Answer(many, stays=True)) as server:
        done = octavo("top", "--url", server.url, "--once")
    assert "requests (12)" in done.out and "and 9 more" in done.out


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_a_server_that_cannot_be_reached_is_one_line(octavo: Run):
    for more in ((), ("--once",), ("--json",)):
        done = octavo("top", "--url", f"http://127.0.0.1:{closed_port()}", *more)
        assert done.status == 2
        assert "cannot be reached (connection refused)" in done.error and "`octavo serve`" in done.error


def test_a_key_is_asked_for_and_a_wrong_one_told(octavo: Run, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("right\nother\n")
    with fake_server(api_keys=["right"]) as server:
        server.wait_until_ready()
        missing = octavo("top", "--url", server.url, "--once")
        wrong = octavo("top", "--url", server.url, "--once", "--api-key", "wrong")
        right = octavo("top", "--url", server.url, "--once", "--api-key-file", keys)
        variable = octavo("top", "--url", server.url, "--once", OCTAVO_API_KEY="right")
    assert missing.status == wrong.status == 2
    assert "needs an API key" in missing.error and "--api-key-file" in missing.error
    assert "is not one of this server's" in wrong.error and "'wrong'" not in wrong.error
    assert right.status == variable.status == 0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(status=404), "has no /v1/internal/events; give --url"),
        (Answer(status=429, body='{"error": {"message": "32 viewers watch already"}}'), "429: 32 viewers"),
        (Answer(status=500, body="<html>"), "answers 500"),
        (Answer(status=503), "answers 503"),
        (Answer([{"server": {}}]), "is not understood (at server.version)"),
        (Answer([[1]]), "is not understood"),  # type: ignore[list-item]
        (Answer(body="data: {no\n\n"), "no JSON"),
        (Answer(), "has ended"),
    ],
)
def test_an_answer_that_is_no_picture_is_one_line(octavo: Run, answer, expected):
    with serving(answer) as server:
        done = octavo("top", "--url", server.url)
    assert done.status == 2 and expected in done.error


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:y", "x:y", ""])
def test_what_is_no_address_is_refused(octavo: Run, url):
    assert "--url is " in octavo("top", "--url", url).error


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "1e9"])
def test_an_interval_that_cannot_be_is_refused(octavo: Run, interval):
    assert "--interval is" in octavo("top", "--interval", interval).error


# -- for good ---------------------------------------------------------------------------------------------------------


@contextmanager
def on_a_terminal(*arguments: object, **variables: str) -> Iterator[tuple[subprocess.Popen[bytes], Any]]:
    """`octavo top` on a terminal of 100 columns; with it, a function that waits for a pattern in what it has shown."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("top", *arguments),
        env=environment(TERM="xterm-256color", COLUMNS="100", LINES="40", **variables),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = bytearray()

    def wait_for(pattern: bytes, timeout_s: float = 30.0) -> bytes:
        end = time.monotonic() + timeout_s
        while not re.search(pattern, shown, re.DOTALL):
            assert time.monotonic() < end, bytes(shown)
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    shown.extend(os.read(ours, 65536))
                except OSError:  # the terminal's other end is closed
                    assert re.search(pattern, shown, re.DOTALL), bytes(shown)
        return bytes(shown)

    try:
        yield process, wait_for
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_ends_it_and_leaves_the_terminal_as_it_was(how, status):
    with (
        serving(Answer([picture(at) for at in (1.0, 2.0)], stays=True)) as server,
        on_a_terminal("--url", server.url) as (process, wait_for),
    ):
        wait_for(rb"chatcmpl-1")
        process.send_signal(how)
        shown = wait_for(rb"\x1b\[\?1049l")
        assert process.wait(20) == status
    assert b"\x1b[?1049h" in shown and shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")
    assert b"Traceback" not in shown


def test_a_server_that_goes_and_comes_back_is_told_on_the_screen():
    first, second = Answer([picture(1.0)]), Answer([picture(9.0, instance="b", running=77)], stays=True)
    with serving(first, second) as server, on_a_terminal("--url", server.url, "--interval", 0.1) as (_, wait_for):
        wait_for(rb"has ended; trying again")
        wait_for(rb"started again at \d\d:\d\d:\d\d.*running 77")


def test_a_server_that_comes_back_with_another_key_ends_it_in_one_line():
    refusing = Answer(status=401, body='{"error": {"message": "the API key is not one of this server\'s"}}')
    with serving(Answer([picture(1.0)]), refusing) as server, on_a_terminal("--url", server.url) as (process, wait_for):
        shown = wait_for(rb"octavo: error: [^\n]*is not one of this server's[^\n]*--api-key")
        assert process.wait(20) == 2
    assert shown.rindex(b"\x1b[?1049l") < shown.rindex(b"octavo: error")


def test_more_requests_than_the_screen_has_lines_are_cut_and_counted():
    many = picture(1.0, requests=[request(id=f"r{number:03}") for number in range(90)])
    with serving(Answer([many], stays=True)) as server, on_a_terminal("--url", server.url) as (_, wait_for):
        shown = wait_for(rb"and \d+ more")
    rows = len(set(re.findall(rb"r\d{3} ", shown)))
    assert 10 < rows < 40
    assert f"and {90 - rows} more".encode() in shown


def test_through_a_pipe_pictures_come_as_lines_of_json_until_the_reader_leaves():
    answer = Answer([picture(1.0), picture(2.0), picture(3.0)])
    with serving(answer) as server:
        process = subprocess.Popen(
            command("top", "--url", server.url, "--json", "--interval", 0.1),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None and process.stderr is not None
        assert [json.loads(process.stdout.readline())["machine"]["at_s"] for _ in range(2)] == [1.0, 1.0]
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert err.decode().splitlines()[0].endswith("has ended; trying again")
    assert "Traceback" not in err.decode() and all(json.loads(line) for line in rest.splitlines())


# -- parts ------------------------------------------------------------------------------------------------------------


def test_rates_are_of_the_last_seconds_of_one_engine():
    history = History()
    assert history.add(Picture.model_validate(picture(0.0, generated_tokens=0))) == Trend()
    assert history.add(Picture.model_validate(picture(2.0, generated_tokens=10))).generated == 5.0
    assert history.add(Picture.model_validate(picture(6.0, generated_tokens=50))).generated == 10.0  # from 2 s on
    assert history.add(Picture.model_validate(picture(7.0, instance="b", generated_tokens=1))) == Trend()


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"free": 10}, "·" * 10),
        ({"free": 0, "live": 10}, "█" * 10),
        ({"free": 5000, "live": 1}, "█" + "·" * 9),
        ({"free": 1, "live": 1, "shared": 1, "cached": 1, "pinned": 1}, "██▓▓▒▒▞▞··"),
        ({"live": 0}, ""),
    ],
)
def test_a_bar_has_a_cell_at_least_for_every_state_that_there_is(counts, expected):
    assert state_bar(counts, 10).plain == expected


def test_the_states_are_those_of_the_block_map():
    from octavo.cache.block_map import STATES as DRAWN

    assert set(STATES) == set(DRAWN) == set(group()["counts"])


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.04, "0.0 s"), (59.9, "59.9 s"), (61, "1m01s"), (3725, "1h02m"), (190000, "2d04h")]
)
def test_durations_are_short(seconds, expected):
    assert duration(seconds) == expected
