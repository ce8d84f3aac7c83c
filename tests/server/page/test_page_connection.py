"""The live page and its server: keys, restarts, failures, models without a chat template, proxies."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from open_page import OpenPage, opened, profile
from playwright.sync_api import Browser, expect
from server_process import fake_server, octavo_serve

from tests.tiny_models import save_hf


def test_the_key_is_asked_once_and_kept_for_the_tab(browser: Browser) -> None:
    with fake_server(api_keys=["secret"]) as server, profile(browser) as context:
        server.wait_until_ready()
        tab = OpenPage(context.new_page(), f"{server.url}/")
        dialog = tab.page.get_by_role("dialog", name="API key")
        dialog.wait_for()
        tab.page.keyboard.press("Escape")
        expect(dialog).to_be_visible()
        for key, asked in (("wrong", True), ("secret", False)):
            tab.page.get_by_label("Key", exact=True).fill(key)
            tab.page.keyboard.press("Enter")
            if asked:
                tab.shows("#key-why", "does not know that key")
        tab.wait_until_ready()
        tab.say("hello")
        assert "Hello there, world." in tab.wait_for_text(19)
        tab.page.reload()
        tab.wait_until_ready()
        expect(dialog).to_be_hidden()
        assert tab.page.evaluate("[sessionStorage.length, localStorage.length]") == [1, 0]
        assert not any("secret" in url for url in tab.asked)
        other = OpenPage(context.new_page(), f"{server.url}/")
        other.page.get_by_role("dialog", name="API key").wait_for()
        tab.check_origin()


def test_a_restart_is_told_and_the_page_goes_on_with_whatever_is_served_then(browser: Browser, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    save_hf(plain, "llama", num_hidden_layers=1)
    settings = json.loads((plain / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (plain / "tokenizer_config.json").write_text(json.dumps(settings))
    with fake_server({"endless": True, "step_s": 0.05}) as first, profile(browser) as context:
        first.wait_until_ready()
        port = first.port
        tab = OpenPage(context.new_page(), f"{first.url}/")
        tab.wait_until_ready()
        expect(tab.find("#no-template")).to_be_hidden()
        tab.say("hello")
        tab.wait_for_text()
        first.process.send_signal(signal.SIGKILL)
        first.ended()
        tab.shows("#notice", "The connection to the server was lost; trying again.")
        expect(tab.find("#engine-state")).to_have_attribute("data-state", "lost")
        assert tab.wait_for_end().startswith("cut off")
        expect(tab.find("#chat-error")).to_be_visible()
        with octavo_serve("-m", plain, "--port", port, "--kv-budget", "1MiB", "--parallel", 1) as second:
            tab.shows("#notice", "The server was restarted")
            second.wait_until_ready()
            tab.wait_until_ready()
            tab.shows("#model-name", "plain")
            tab.shows("#no-template", "no chat template")
            tab.settle(max_tokens=5)
            with tab.page.expect_request("**/v1/completions") as request:
                tab.say("Once upon")
            assert json.loads(request.value.post_data or "")["prompt"] == "Once upon"
            tab.wait_for_end()
        tab.check_origin()


def test_a_server_that_ends_lets_its_viewers_go_at_once(browser: Browser) -> None:
    with fake_server() as server, profile(browser) as context:
        server.wait_until_ready()
        tab = OpenPage(context.new_page(), f"{server.url}/")
        tab.wait_until_ready()
        server.process.send_signal(signal.SIGTERM)
        assert server.ended(4.0) == 0
        tab.shows("#notice", "trying again")


def test_an_engine_that_has_failed_is_told(browser: Browser) -> None:
    with fake_server({"fail_after_s": 0.5, "reason": "the device fell off the bus"}) as server:
        server.wait_until_ready()
        with opened(browser, f"{server.url}/") as tab:
            tab.shows("#notice", "The device fell off the bus.")
            expect(tab.find("#engine-state")).to_have_attribute("data-state", "failed")
            tab.say("hello")
            tab.shows("#chat-error", "fell off the bus")
            tab.complaints.clear()  # the browser logs the 503


def test_the_page_works_behind_a_prefix_and_without_it(browser: Browser) -> None:
    with fake_server(root_path="/llm") as server:
        server.wait_until_ready()
        for path in ("", "/llm", "/llm/"):
            with opened(browser, f"{server.url}{path}") as tab:
                tab.wait_until_ready()
                tab.say("hello")
                assert "Hello there" in tab.wait_for_text(11)
                assert all("/llm/" in url for url in tab.asked[1:])
