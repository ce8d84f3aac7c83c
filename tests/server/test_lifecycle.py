"""A server from its start to its end, as a process: binding, loading, draining, signals, failures."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from server_process import ServerProcess, fake_server, octavo_serve

from tests.cli.conftest import Run
from tests.cli.conftest import octavo as octavo

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes and signals of POSIX")
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
SLOW = {"endless": True, "step_s": 0.05}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory named `tiny` with a model of 512 tokens of context."""
    from tests.tiny_models import save_hf

    path = tmp_path_factory.mktemp("served") / "tiny"
    save_hf(path, "llama", num_hidden_layers=2)
    return path


def start_stream(server: ServerProcess, max_tokens: int, key: str = "any") -> tuple[threading.Thread, list[str]]:
    """A streamed chat in a thread; returns once its first line has come."""
    lines: list[str] = []
    begun = threading.Event()

    def read() -> None:
        body = {**CHAT, "stream": True, "max_tokens": max_tokens, "ignore_eos": True}
        headers = {"authorization": f"Bearer {key}"}
        with (
            server.client(headers=headers) as client,
            client.stream("POST", "/v1/chat/completions", json=body) as response,
        ):
            for line in response.iter_lines():
                lines.append(line)
                begun.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(30)
    return thread, lines


# -- the fake engine: what the server does by itself ------------------------------------------------------------------


def test_the_server_answers_while_the_model_loads() -> None:
    with fake_server({"state": "loading", "load_s": 1.0, "reason": "reading"}) as server, server.client() as client:
        health = client.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "loading", "reason": "reading"})
        refused = client.post("/v1/chat/completions", json=CHAT)
        assert refused.status_code == 503 and refused.headers["retry-after"]
        server.wait_until_ready()
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 200


def test_a_model_that_cannot_be_loaded_ends_the_server_with_one_line() -> None:
    with fake_server({"state": "loading", "load_error": "no such model; give another"}) as server:
        assert server.ended() == 2
        assert server.log.count("\n") == 1
        assert server.log.endswith("octavo: error: no such model; give another")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_loading_ends_the_server_at_once(number: int, status: int) -> None:
    with fake_server({"state": "loading", "load_s": 60}) as server:
        assert server.url
        begun = time.monotonic()
        server.process.send_signal(number)
        assert server.ended(5) == status
        assert time.monotonic() - begun < 2
        assert "Traceback" not in server.log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_running_requests_end_and_takes_no_new_ones(number: int) -> None:
    with fake_server(SLOW) as server, server.client() as client:
        server.wait_until_ready()
        thread, lines = start_stream(server, 20)
        server.process.send_signal(number)
        server.wait_for("draining")
        assert client.get("/ready").json()["status"] == "draining"
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200
        refused = client.post("/v1/chat/completions", json=CHAT)
        assert refused.status_code == 503 and refused.headers["retry-after"]
        assert refused.json()["error"]["code"] == "shutting_down"
        thread.join(30)
        assert lines[-2:] == ["data: [DONE]", ""]
        assert any('"finish_reason":"length"' in line for line in lines)
        assert server.ended() == 0
        assert "Traceback" not in server.log


def test_requests_that_outlast_the_deadline_end_with_an_error_of_their_own() -> None:
    with fake_server(SLOW, drain_timeout_s=0.3) as server:
        server.wait_until_ready()
        thread, lines = start_stream(server, 400)
        server.process.terminate()
        assert server.ended(20) == 0
        thread.join(10)
        errors = [json.loads(line[6:]) for line in lines if line.startswith('data: {"error"')]
        assert [error["error"]["code"] for error in errors] == ["shutting_down"]
        *_, access, drained = server.log.splitlines()
        assert "/v1/chat/completions 200 shutting_down" in access and drained.endswith("octavo.server: drained")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_the_server_at_once(number: int, status: int) -> None:
    with fake_server(SLOW, drain_timeout_s=60) as server:
        server.wait_until_ready()
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            body = json.dumps({**CHAT, "stream": True}).encode()
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%s" % (len(body), body)
            )
            assert connection.recv(100)
            server.process.send_signal(number)
            server.wait_for("draining")
            server.process.send_signal(number)
            assert server.ended(5) == status


def test_an_idle_server_with_open_connections_ends_quickly() -> None:
    with fake_server() as server, server.client() as client:
        server.wait_until_ready()
        assert client.get("/health").status_code == 200
        begun = time.monotonic()
        server.process.terminate()
        assert server.ended(10) == 0
        assert time.monotonic() - begun < 3
        assert "warning" not in server.log


def test_idle_connections_and_half_sent_headers_hurt_nobody() -> None:  # report R059
    with fake_server() as server, server.client() as client:
        server.wait_until_ready()
        connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
        try:
            for connection in connections[::3]:
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le")
            for connection in connections[1::3]:
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            begun = time.monotonic()
            assert client.post("/v1/chat/completions", json=CHAT).status_code == 200
            assert time.monotonic() - begun < 2
        finally:
            for connection in connections:
                connection.close()
        assert client.get("/health").status_code == 200
        assert "Traceback" not in server.log


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the server's memory from /proc")
def test_a_body_of_200_mb_is_refused_without_being_kept() -> None:  # report R056
    piece = b"x" * (1 << 20)
    headers = {"content-type": "application/json"}
    with fake_server() as server, server.client(headers=headers) as client:
        server.wait_until_ready()
        assert client.get("/v1/models").status_code == 200
        before = _peak_mib(server.process.pid)
        for length in ({"content-length": str(200 << 20)}, {}):
            answer = client.post("/v1/completions", content=(piece for _ in range(200)), headers=length)
            assert answer.status_code == 413
            assert answer.json()["error"]["code"] == "body_too_large"
        assert _peak_mib(server.process.pid) - before < 40  # a body of 16 MiB may be kept, in pieces
        assert client.get("/health").status_code == 200


def test_no_key_beyond_loopback_is_warned_of_and_a_key_is_not() -> None:
    with fake_server(host="0.0.0.0") as open_to_all:
        open_to_all.wait_until_ready()
        assert open_to_all.log.count("warning") == 1 and "--api-key" in open_to_all.log
    with fake_server(host="0.0.0.0", api_keys=["secret-key"]) as keyed:
        keyed.wait_until_ready()
        assert "warning" not in keyed.log and "secret-key" not in keyed.log


def test_logs_can_be_json_with_request_ids() -> None:
    with fake_server(log_format="json") as server:
        url = server.wait_for(r"listening on (\S+?),")[1]
        httpx.get(f"{url}/v1/models", headers={"x-request-id": "mine"}, trust_env=False)
        server.wait_for("/v1/models")
        lines = [json.loads(line) for line in server.log.splitlines()]
        access = [line for line in lines if line["logger"] == "octavo.access"]
        assert [(line["request_id"], line["path"], line["status"]) for line in access] == [("mine", "/v1/models", 200)]


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate of 127.0.0.1 and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    try:
        subprocess.run([*command, *subject, "-keyout", key, "-out", cert], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not here to make a certificate")
    return cert, key


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def only_error(server: ServerProcess) -> str:
    """The one line of a server that was refused before anything began."""
    assert server.ended() == 2
    assert server.log.startswith("octavo: error: ") and "\n" not in server.log
    return server.log


def test_a_port_that_is_taken_is_told_before_the_model_is_looked_for(taken_port: int) -> None:  # report R058
    begun = time.monotonic()
    with octavo_serve("--port", taken_port, "-m", "/no/such/model") as server:
        assert f"port {taken_port} (address already in use)" in only_error(server)
    assert time.monotonic() - begun < 5


def test_a_second_server_on_a_port_ends_and_the_first_goes_on() -> None:
    with fake_server() as first:
        first.wait_until_ready()
        with octavo_serve("--port", first.port, "-m", "/no/such/model") as second:
            assert "address already in use" in only_error(second)
        with first.client() as client:
            assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--port", 99999), "99999"),
        (("--host", "203.0.113.9"), "203.0.113.9"),
        (("--host", "no.such.invalid"), "no.such.invalid"),
        (("--api-key-file", "/no/such/file"), "/no/such/file"),
        (("--api-key", ""), "API key"),
        (("--tls-cert", "/no/cert", "--tls-key", "/no/key"), "/no/cert"),
        (("--tls-cert", "/no/cert"), "--tls-key"),
        (("--log-level", "loud"), "loud"),
        (("--max-queue", -1), "-1"),
        (("--parallel", 0), "--parallel"),
        (("--root-path", "llm/"), "--root-path"),
        (("--cors-origin", "page.example"), "--cors-origin"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_one_line_and_status_2(octavo: Run, arguments: tuple[object, ...], said: str) -> None:
    done = octavo("serve", "--port", 0, *arguments)
    assert done.status == 2 and said in done.error


def test_a_server_without_its_model_ends_with_one_line_and_status_2() -> None:
    with octavo_serve("-m", "/no/such/model") as server:
        assert "/no/such/model" in only_error(server)


def test_a_key_with_a_password_is_refused_and_none_is_asked_for(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = certificate
    locked = tmp_path / "locked.pem"
    command = ["openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", key, "-out", locked]
    subprocess.run(command, check=True, capture_output=True)
    with octavo_serve("--tls-cert", cert, "--tls-key", locked) as server:
        assert "password" in only_error(server)
    with octavo_serve("--tls-cert", key, "--tls-key", cert) as server:
        assert "certificate" in only_error(server)


def test_a_certificate_makes_the_server_speak_https(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    with fake_server(tls_cert=str(cert), tls_key=str(key)) as server:
        assert server.url.startswith("https://")
        with server.client(verify=ssl.create_default_context(cafile=str(cert))) as client:
            assert client.post("/v1/chat/completions", json=CHAT).status_code == 200


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the engine's process in /proc")
def test_the_command_serves_a_model_drains_and_ends_with_its_engine(model: Path) -> None:
    keys = "sk-1"
    with (
        octavo_serve("-m", model, "--served-model-name", "mine", OCTAVO_API_KEY=keys) as server,
        server.client(headers={"authorization": f"Bearer {keys}"}) as client,
    ):
        server.wait_until_ready()
        assert client.get("/v1/models", headers={"authorization": "Bearer sk-2"}).status_code == 401
        answer = client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 5, "temperature": 0}).json()
        assert answer["model"] == "mine"
        assert answer["usage"]["completion_tokens"] <= 5
        time.sleep(0.5)  # counters come with steps, and at the latest this long after one
        page = client.get("/metrics").text
        assert f"octavo_generation_tokens_total {float(answer['usage']['completion_tokens'])}" in page
        groups = client.get("/v1/cache/stats").json()["groups"]
        assert groups and all(each["live"] == 0 for each in groups)
        assert client.get("/v1/internal/routes").json()["routes"]
        assert client.post("/v1/cache/reset").status_code == 200
        children = _children(server.process.pid)
        assert children
        if sys.platform == "linux":  # the web process never pushes the engine off its core
            assert os.sched_getscheduler(server.process.pid) == os.SCHED_BATCH
            assert [os.sched_getscheduler(child) for child in children] == [os.SCHED_OTHER] * len(children)
        thread, lines = start_stream(server, 300, key=keys)
        server.process.terminate()
        assert server.ended(30) == 0
        thread.join(10)
        assert lines[-2:] == ["data: [DONE]", ""]
        assert any('"finish_reason":"length"' in line for line in lines)
        assert not any(Path(f"/proc/{child}").exists() for child in children)
        assert keys not in server.log and "Traceback" not in server.log


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the engine's process in /proc")
def test_a_dead_engine_is_told_by_health_and_to_requests_while_the_server_lives(model: Path) -> None:
    with octavo_serve("-m", model) as server, server.client() as client:
        server.wait_until_ready()
        for child in _children(server.process.pid):
            subprocess.run(["kill", "-KILL", str(child)], check=True)
        end = time.monotonic() + 10
        while client.get("/health").status_code == 200 and time.monotonic() < end:
            time.sleep(0.02)
        health = client.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "failed" and "SIGKILL" in health.json()["reason"]
        refused = client.post("/v1/chat/completions", json=CHAT)
        assert refused.status_code == 503 and "SIGKILL" in refused.json()["error"]["message"]
        server.process.terminate()
        assert server.ended(10) == 0


@pytest.mark.parametrize(("exits", "status"), [(True, 1), (False, None)])
def test_a_failed_engine_ends_the_server_only_if_it_is_told_so(exits: bool, status: int | None) -> None:
    with fake_server({"fail_after_s": 0.1, "reason": "out of luck"}, exit_on_failure=exits) as server:
        server.wait_until_ready()
        if exits:
            assert server.ended(10) == status
            assert "out of luck" in server.log and "Traceback" not in server.log
        else:
            time.sleep(1.5)
            with server.client() as client:
                assert client.get("/health").json() == {"status": "failed", "reason": "out of luck"}


def _peak_mib(pid: int) -> float:
    """The most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _children(pid: int) -> list[int]:
    """Processes that `pid` started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:  # it has ended
                continue
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return found
