"""Takes the pictures of the live page in docs/img: `python -m scripts.screenshots`, with the dev extra and chromium.

Starts `octavo serve` over a real model, has it answer a few requests, and photographs the page meanwhile.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "img"
QUESTION = "Write a Python function that reverses a list, and explain it in a numbered list."
INTRODUCTION = "You explain machines to people who have not seen them before, one step at a time. " * 5
QUESTIONS = ("Why do tides come twice a day?", "How does a press print a folio?", "What is a lighthouse for?")


@dataclass(frozen=True, slots=True)
class Shot:
    name: str
    theme: str
    width: int
    height: int
    machine: bool = False  # show it in place of the chat, where there is room for one


SHOTS = (
    Shot("live-page-light", "light", 1280, 800),
    Shot("live-page-dark", "dark", 1280, 800),
    Shot("live-page-narrow", "dark", 360, 740, machine=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", default="smollm2")
    model = parser.parse_args().model
    IMAGES.mkdir(parents=True, exist_ok=True)
    with server(model) as url, sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for shot in SHOTS:
            take(browser, url, shot)
        browser.close()


@contextmanager
def server(model: str) -> Iterator[str]:
    """Its URL, once it is ready."""
    command = [sys.executable, "-m", "octavo", "serve", "-m", model, "--port", "0", "--parallel", "5"]
    process = subprocess.Popen([*command, "--max-context", "2048"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"ready: .* at (\S+)/v1", line):
                yield found[1]
                return
        raise SystemExit("the server did not become ready")
    finally:
        process.terminate()
        process.wait()


def take(browser: Browser, url: str, shot: Shot) -> None:
    page = browser.new_page(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme=shot.theme,  # type: ignore[arg-type]
    )
    page.set_default_timeout(120_000)
    page.goto(url)
    page.wait_for_selector("#engine-state[data-state=ready]")
    others = [threading.Thread(target=ask, args=(url, question)) for question in QUESTIONS]
    for each in others:
        each.start()
    chat(page)
    if shot.machine:
        page.get_by_role("button", name="Machine").click()
        page.wait_for_timeout(600)
    else:
        page.locator("#map-0 canvas.cells").hover(position={"x": 40, "y": 6})
    page.screenshot(path=IMAGES / f"{shot.name}.png")
    page.close()
    for each in others:
        each.join()


def chat(page: Page) -> None:
    page.locator("#settings-toggle").click()
    page.locator("[name=temperature]").fill("0")
    page.locator("[name=max_tokens]").fill("400")
    page.locator("#settings-toggle").click()
    page.locator("#prompt").fill(QUESTION)
    page.locator("#prompt").press("Enter")
    while len(page.locator(".turn.assistant .said").inner_text()) < 420 and page.locator("#send.stops").count():
        page.wait_for_timeout(100)


def ask(url: str, question: str) -> None:
    messages = [{"role": "system", "content": INTRODUCTION}, {"role": "user", "content": question}]
    body = {"messages": messages, "max_tokens": 420, "ignore_eos": True, "temperature": 0.7, "seed": 1}
    with httpx.Client(timeout=600, trust_env=False) as client:
        client.post(f"{url}/v1/chat/completions", json=body).raise_for_status()


if __name__ == "__main__":
    main()
