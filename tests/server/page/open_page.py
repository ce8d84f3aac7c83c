"""One tab with the live page, and what tests read from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

STATES = ("free", "live", "shared", "cached", "pinned")
PATIENCE_MS = 20_000


class OpenPage:
    """The page as a person has it: `asked` are the URLs of all requests, `complaints` the browser's."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.asked: list[str] = []
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda line: self.complaints.append(line.text) if line.type == "error" else None)
        page.goto(url)

    def wait_until_ready(self) -> None:
        """It has drawn the machine."""
        self.page.wait_for_selector("#engine-state[data-state=ready]")
        self.page.wait_for_selector("#maps canvas.cells")

    def find(self, selector: str) -> Locator:
        return self.page.locator(selector)

    def shows(self, selector: str, text: str) -> None:
        expect(self.find(selector)).to_contain_text(text, timeout=PATIENCE_MS)

    def settle(self, **values: object) -> None:
        """Open the settings and fill them in."""
        if not self.find("#settings").is_visible():
            self.find("#settings-toggle").click()
        for name, value in values.items():
            self.find(f"#settings [name={name}]").fill(str(value))

    def say(self, text: str) -> None:
        self.find("#prompt").fill(text)
        self.find("#prompt").press("Enter")

    def wait_for_text(self, characters: int = 1) -> str:
        """Of the last answer, once it is so long."""
        said = self.find(".turn.assistant .said").last
        for _ in range(PATIENCE_MS // 20):
            if said.count() and len(text := said.inner_text()) >= characters:
                return text
            self.page.wait_for_timeout(20)
        raise AssertionError(f"no answer of {characters} characters came")

    def wait_for_end(self) -> str:
        """Of the last answer; returns the line below it."""
        expect(self.find("#send")).to_have_text("Send", timeout=PATIENCE_MS)
        return self.find(".turn.assistant .meta").last.inner_text()

    def counts(self, group: int = 0) -> dict[str, int]:
        """Blocks by state, as the map has counted its cells."""
        told = self.find(f"#map-{group}").evaluate("(map) => ({ ...map.dataset })")  # all of one moment
        return {state: int(told[state]) for state in STATES}

    def wait_for_counts(self, wanted: Any, group: int = 0) -> dict[str, int]:
        """The first counts for which `wanted(counts)` holds."""
        for _ in range(PATIENCE_MS // 50):
            if wanted(counts := self.counts(group)):
                return counts
            self.page.wait_for_timeout(50)
        raise AssertionError(f"the map has {self.counts(group)}")

    def picture(self) -> str:
        """The pixels of the first map."""
        drawn: str = self.find("#map-0 canvas.cells").evaluate("(canvas) => canvas.toDataURL()")
        return drawn

    def check_origin(self) -> None:
        """Nothing was asked of anybody but the server that the page came from."""
        home = urlsplit(self.url).netloc
        assert self.asked and all(urlsplit(url).netloc == home for url in self.asked)


@contextmanager
def opened(browser: Browser, url: str, *, width: int = 1280, theme: Any = "light") -> Iterator[OpenPage]:
    """A fresh profile with one tab. Ends with nothing asked of others and nothing complained of."""
    with profile(browser, width=width, theme=theme) as context:
        tab = OpenPage(context.new_page(), url)
        yield tab
        tab.check_origin()
        assert tab.complaints == []


@contextmanager
def profile(browser: Browser, *, width: int = 1280, theme: Any = "light") -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme)
    yield context
    context.close()
