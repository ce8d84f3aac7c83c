"""The live page as files: who gets them, with which headers, and what they may do in a browser."""

from __future__ import annotations

import re

import pytest
from asgi_calls import call, fake_app, get

from octavo.server.live.page import _parts

PARTS = sorted(set(_parts()) - {"index.html"})


def test_the_page_needs_no_key_and_what_it_shows_does() -> None:
    app = fake_app(api_keys=("secret",))
    assert get(app, "/").status == 200
    assert {get(app, f"/page/{name}").status for name in PARTS} == {200}
    assert {get(app, path).status for path in ("/v1/internal/events", "/v1/cache/stats", "/page")} == {401}


def test_all_that_the_page_asks_for_is_there_and_lies_beside_it() -> None:
    sources = {name: part.content.decode() for name, part in _parts().items()}
    named = set(re.findall(r'(?:src|href)="page/([^"]+)"', sources["index.html"]))
    for source in sources.values():
        named |= set(re.findall(r'^import [^;]* from "\./([^"]+)"', source, re.MULTILINE))
    assert named == set(PARTS)
    for name, source in sources.items():
        assert "innerHTML" not in source and "eval(" not in source, name
        assert not re.search(r"https?://(?!www\.w3\.org/)", source), name
    assert " style=" not in sources["index.html"] and "<script>" not in sources["index.html"]


@pytest.mark.parametrize("path", ["/", "/page/app.js"])
def test_a_browser_is_told_to_let_nothing_else_in(path: str) -> None:
    headers = get(fake_app(), path).headers
    policy = dict(each.split(" ", 1) for each in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
    assert {policy[each] for each in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"


def test_parts_have_their_kind_and_are_sent_once() -> None:
    app = fake_app()
    first = get(app, "/page/base.css")
    assert first.headers["content-type"] == "text/css; charset=utf-8" and first.headers["cache-control"] == "no-cache"
    assert get(app, "/page/app.js").headers["content-type"] == "text/javascript; charset=utf-8"
    again = get(app, "/page/base.css", ("if-none-match", first.headers["etag"]))
    assert (again.status, again.body) == (304, b"")
    assert call(app, "HEAD", "/").status == 200


@pytest.mark.parametrize("name", ["index.html", "nothing.js", "..", "../app.py", "%2e%2e/app.py"])
def test_there_are_no_other_parts(name: str) -> None:
    assert get(fake_app(), f"/page/{name}").status == 404


def test_links_begin_with_the_prefix_that_a_proxy_shows() -> None:
    assert b'<base href="/">' in get(fake_app(), "/").body
    app = fake_app(root_path="/llm")
    assert all(b'<base href="/llm/">' in get(app, path).body for path in ("/", "/llm", "/llm/"))


def test_a_server_can_be_without_it() -> None:
    app = fake_app(page=False)
    for path in ("/", "/page/app.js"):
        answer = get(app, path)
        assert answer.status == 404 and "--no-page" in answer.error["message"]
    assert get(app, "/health").status == 200
