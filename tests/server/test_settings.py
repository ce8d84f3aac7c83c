"""Settings that would only fail at the first request are refused when the server is started."""

from __future__ import annotations

import pytest

from octavo.errors import InvalidRequest
from octavo.server.settings import ServerSettings


@pytest.mark.parametrize(
    "origin",
    ["https://page.example", "http://localhost:3000", "http://127.0.0.1:8080", "http://[::1]:5173", "*", "null"],
)
def test_an_origin_as_browsers_send_it_is_taken(origin: str) -> None:
    assert ServerSettings(cors_origins=(origin,)).cors_origins == (origin,)


@pytest.mark.parametrize(
    "origin",
    [
        "",
        " ",
        "page.example",
        "https://page.example/",
        "https://page.example/path",
        "https://Page.example",
        "HTTPS://page.example",
        "https://*.example",
        "https://a.example,https://b.example",
        "https://page.example:port",
        "https://page.example\nx-header: 1",
        "ftp://page.example",
        "https://user@page.example",
        "https://" + "a" * 100_000 + "/",
    ],
)
def test_an_origin_that_no_browser_sends_is_refused_with_what_one_looks_like(origin: str) -> None:
    with pytest.raises(InvalidRequest, match=r"--cors-origin is .*such as https://page\.example or ") as refused:
        ServerSettings(cors_origins=("https://page.example", origin))
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300


@pytest.mark.parametrize("path", ["llm", "/llm/", "/", "//", "/a b", "/llm?x", "/llm\n", "/l\u00fcm", "/%2e"])
def test_a_root_path_that_cannot_be_a_prefix_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest, match=r"--root-path is .*it must look like /prefix"):
        ServerSettings(root_path=path)
    assert ServerSettings(root_path="/llm/v2.1").root_path == "/llm/v2.1"
