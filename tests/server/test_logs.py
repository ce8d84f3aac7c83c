"""What anyone can cause by sending rubbish is logged once a minute, with how often it was; all else is logged."""

from __future__ import annotations

import logging
import socket

from server_process import fake_server

from octavo.server.logs import MAX_KNOWN, REPEAT_S, Repeats


def record(message: str, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("uvicorn.error", level, __file__, 1, message, (), None)


def test_a_warning_that_repeats_passes_once_in_a_while_and_says_how_many_did_not() -> None:
    now = [100.0]
    repeats = Repeats(lambda: now[0])
    assert [repeats.filter(record("bad")) for _ in range(5)] == [True, False, False, False, False]
    assert repeats.filter(record("worse"))
    now[0] += REPEAT_S
    later = record("bad")
    assert repeats.filter(later) and later.getMessage() == "bad (4 more like it since the last)"
    now[0] += 2 * REPEAT_S
    latest = record("bad")
    assert repeats.filter(latest) and latest.getMessage() == "bad"


def test_errors_always_pass_and_ever_new_warnings_take_no_room() -> None:
    repeats = Repeats(lambda: 0.0)
    assert all(repeats.filter(record("broken", logging.ERROR)) for _ in range(5))
    assert all(repeats.filter(record(f"warning {i}")) for i in range(1000))
    assert len(repeats._held) <= MAX_KNOWN


def test_a_flood_of_what_is_no_http_is_one_line() -> None:
    with fake_server() as server, server.client() as client:
        server.wait_until_ready()
        for sent in [b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"] * 20:
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(sent)
                assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
        assert client.get("/health").status_code == 200
        assert server.log.count("Invalid HTTP request") == 1
