"""API keys: which Authorization headers open the server, and where keys come from."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from asgi_calls import JSON, call, fake_app, get

from octavo.errors import InvalidRequest
from octavo.server.auth import KeyRing
from octavo.server.key_file import read_key_file
from octavo.server.settings import ServerSettings

KEYS = ("sk-right", "schlüssel")


@pytest.mark.parametrize(
    "value",
    [
        b"Bearer sk-right",
        b"bearer sk-right",
        b"BEARER  sk-right",
        b"Bearer sk-right \t",
        "Bearer schlüssel".encode(),
    ],
    ids=["plain", "lower case", "two spaces", "space at the end", "utf-8"],
)
def test_a_right_key_opens_whatever_the_case_of_the_scheme(value: bytes) -> None:
    assert get(fake_app(api_keys=KEYS), "/v1/models", ("authorization", value)).status == 200


@pytest.mark.parametrize(
    "value",
    [
        b"Bearer sk-wrong",
        b"Bearer sk-righ",
        b"Bearer sk-right\n",
        b"Bearer sk-right sk-right",
        b"Bearer \xe9",
        "Bearer schlüssel".encode("latin-1"),
        b"Bearer",
        b"Bearer ",
        b"sk-right",
        b"Basic sk-right",
        b"Bearer" + b"k" * 1_000_000,
        b"Bearer " + b"k" * 1_000_000,
        b"",
    ],
    ids=lambda value: repr(value[:24]),
)
def test_anything_else_is_refused_in_openai_s_shape(value: bytes) -> None:
    answer = get(fake_app(api_keys=KEYS), "/v1/models", ("authorization", value))
    assert answer.status == 401
    assert answer.error["code"] in ("missing_api_key", "invalid_api_key")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert "sk-" not in answer.error["message"]


def test_no_header_and_two_headers_are_refused() -> None:
    app = fake_app(api_keys=KEYS)
    header = ("authorization", "Bearer sk-right")
    assert get(app, "/v1/models").error["code"] == "missing_api_key"
    assert get(app, "/v1/models", header, header).status == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("GET", "/nowhere"),
        ("GET", "/health/"),
        ("GET", "//health"),
        ("OPTIONS", "/v1/models"),
        ("POST", "/v1/cache/reset"),
        ("POST", "/v1/chat/completions"),
    ],
)
def test_every_other_route_needs_a_key(method: str, path: str) -> None:
    assert call(fake_app(api_keys=KEYS), method, path, [JSON], b"{}").status == 401


def test_a_key_is_asked_for_before_a_body_is_read() -> None:
    app = fake_app(api_keys=KEYS, max_body_bytes=10)
    assert call(app, "POST", "/v1/chat/completions", [JSON], b"x" * 100).status == 401


def test_a_preflight_needs_no_key_and_a_refusal_can_be_read_by_the_page() -> None:
    app = fake_app(api_keys=KEYS, cors_origins=("https://page.example",))
    origin = ("origin", "https://page.example")
    asked = [origin, ("access-control-request-method", "POST"), ("access-control-request-headers", "authorization")]
    preflight = call(app, "OPTIONS", "/v1/chat/completions", asked)
    assert preflight.status == 200
    assert preflight.headers["access-control-allow-origin"] == "https://page.example"
    refused = get(app, "/v1/models", origin)
    assert refused.status == 401
    assert refused.headers["access-control-allow-origin"] == "https://page.example"


def test_a_preflight_from_elsewhere_is_refused_in_openai_s_shape() -> None:
    app = fake_app(cors_origins=("https://page.example",))
    asked = [("origin", "https://other.example"), ("access-control-request-method", "POST")]
    answer = call(app, "OPTIONS", "/v1/models", asked)
    assert answer.status == 400
    assert "origin" in answer.error["message"]
    assert "access-control-allow-origin" not in answer.headers


def test_without_keys_the_server_is_open() -> None:
    assert get(fake_app(), "/v1/models", ("authorization", b"Bearer \xff")).status == 200


def test_a_key_is_never_logged_or_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    app = fake_app(api_keys=KEYS)
    get(app, "/v1/models?key=sk-right", ("authorization", "Bearer sk-right"))
    get(app, "/v1/models", ("authorization", "Bearer sk-wrong"))
    assert caplog.records
    assert "sk-" not in caplog.text
    assert "sk-" not in repr(ServerSettings(api_keys=KEYS))
    assert "sk-" not in repr(vars(KeyRing(KEYS)))


def test_every_key_of_a_ring_opens_it() -> None:
    ring = KeyRing(("a", "b", "c"))
    assert [ring.opens(key) for key in (b"a", b"b", b"c", b"d", b"", b"ab")] == [True, True, True, False, False, False]


def test_a_key_file_has_one_key_a_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\n  two \n#three")
    assert read_key_file(path) == ("one", "two", "#three")


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe", b"k" * (1 << 20) + b"k"], ids=len)
def test_a_key_file_without_a_key_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match="keys"):
        read_key_file(path)


def test_a_key_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no-such-file"):
        read_key_file(tmp_path / "no-such-file")
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_key_file(tmp_path)


@pytest.mark.parametrize("key", ["", "two words", "tab\t", "line\n", "\x00"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(InvalidRequest, match="API key") as raised:
        ServerSettings(api_keys=("fine", key))
    assert not key.strip() or key.strip() not in str(raised.value)
