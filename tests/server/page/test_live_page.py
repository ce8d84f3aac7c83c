"""The live page in a real browser, over a real server with a tiny model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from open_page import OpenPage, opened, profile
from playwright.sync_api import Browser, expect
from server_process import ServerProcess, model_server

from tests.tiny_models import EOS_TOKEN_ID, save_hf

ENDLESS = {"temperature": 0, "max_tokens": 6000}  # greedy, this model never ends by itself


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shown") / "tiny"
    endless = save_hf(path, "llama", num_hidden_layers=4, max_position_embeddings=8192)
    with torch.no_grad():
        endless.get_output_embeddings().weight[: EOS_TOKEN_ID + 1] = 0  # any other scores higher at every step
    endless.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[ServerProcess]:
    with model_server(model, {"threads": 1, "max_num_seqs": 4, "max_context": 8192}) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture
def tab(browser: Browser, server: ServerProcess) -> Iterator[OpenPage]:
    """The page, ready; whatever it had begun has ended afterwards."""
    with opened(browser, f"{server.url}/") as tab:
        tab.wait_until_ready()
        yield tab
    until_idle(server)


def until_idle(server: ServerProcess) -> dict[str, int]:
    """The first group's statistics once nothing runs."""
    with server.client() as client:
        for _ in range(400):
            [blocks] = client.get("/v1/cache/stats").json()["groups"]
            if not blocks["live"]:
                return blocks
            time.sleep(0.05)
    raise AssertionError("something still runs")


def test_an_answer_streams_and_is_summed_up(tab: OpenPage) -> None:
    tab.settle(temperature=0, max_tokens=400)
    tab.say("hello")
    early = tab.wait_for_text()
    expect(tab.find("#send")).to_have_text("Stop")
    meta = tab.wait_for_end()
    assert len(tab.wait_for_text()) > len(early)
    assert "400 tokens" in meta and "tokens/s" in meta and "first after" in meta and "ended at its limit" in meta
    tab.shows("#chat-status", "Answer complete, 400 tokens")
    expect(tab.find("#empty")).to_be_hidden()


def test_figures_fall_when_nothing_runs(tab: OpenPage, server: ServerProcess) -> None:
    tab.settle(temperature=0, max_tokens=400)
    tab.say("hello")
    expect(tab.find("#fig-inter")).not_to_have_text("–")
    tab.wait_for_end()
    until_idle(server)
    for figure, text in (("rate", "0.0"), ("running", "0"), ("first", "–"), ("inter", "–")):
        expect(tab.find(f"#fig-{figure}")).to_have_text(text)


def test_what_is_set_is_sent_and_what_is_not_is_left_to_the_server(tab: OpenPage) -> None:
    given = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "max_tokens": 3, "seed": 7}
    tab.settle(**given)
    tab.find("#system").fill("Be brief.")
    for text in ("first", "second"):
        with tab.page.expect_request("**/v1/chat/completions") as request:
            tab.say(text)
        tab.wait_for_end()
    body = json.loads(request.value.post_data or "")
    assert {name: body[name] for name in given} == given and body["stream"] is True
    roles = [message["role"] for message in body["messages"] if message["content"]]
    assert roles[0] == "system" and roles[1] == "user" and body["messages"][-1]["content"] == "second"
    for name in given:
        tab.find(f"#settings [name={name}]").fill("")
    tab.settle(max_tokens=2)
    with tab.page.expect_request("**/v1/chat/completions") as request:
        tab.say("third")
    assert set(json.loads(request.value.post_data or "")) == {"messages", "stream", "stream_options", "max_tokens"}


def test_the_last_answer_can_be_made_again_and_all_can_be_cleared(tab: OpenPage) -> None:
    tab.settle(temperature=0, max_tokens=12)
    tab.say("hello")
    tab.wait_for_end()
    first = tab.wait_for_text()
    tab.page.get_by_role("button", name="Regenerate").click()
    tab.wait_for_end()
    assert tab.wait_for_text() == first and tab.find(".turn").count() == 2
    tab.say("and then?")
    tab.wait_for_end()
    assert tab.page.get_by_role("button", name="Regenerate").count() == 1 and tab.find(".turn").count() == 4
    tab.find("#clear").click()
    assert tab.find(".turn").count() == 0 and tab.find("#empty").is_visible()
    expect(tab.find("#prompt")).to_be_focused()


def test_blocks_fill_as_an_answer_grows_and_stopping_frees_them_on_screen(tab: OpenPage, server: ServerProcess) -> None:
    before, drawn = tab.wait_for_counts(lambda counts: not counts["live"]), tab.picture()
    tab.settle(**ENDLESS)
    tab.say("go on and on")
    early = tab.wait_for_counts(lambda counts: counts["live"] >= 3)
    grown = tab.wait_for_counts(lambda counts: counts["live"] >= early["live"] + 4)
    assert grown["free"] < before["free"] and tab.picture() != drawn
    row = tab.find(".request")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("(this chat)")
    expect(row).to_contain_text("generating")
    answer = row.get_by_role("progressbar", name="Answer")
    assert int(answer.get_attribute("aria-valuenow") or 0) > 0 and answer.get_attribute("aria-valuemax") == "6000"
    tab.find("#send").click()
    after = tab.wait_for_counts(lambda counts: not counts["live"] and not counts["shared"])
    assert tab.wait_for_end().startswith("stopped") and after["cached"] > 0
    expect(row).to_have_count(0)
    tab.shows("#requests-none", "None runs or waits")
    assert until_idle(server)["cached"] == after["cached"]


def test_the_map_is_what_the_statistics_say(tab: OpenPage, server: ServerProcess) -> None:
    tab.settle(temperature=0, max_tokens=40)
    tab.say("count")
    tab.wait_for_end()
    blocks = until_idle(server)
    counts = tab.wait_for_counts(lambda counts: counts["cached"] == blocks["cached"])
    assert counts == {"free": blocks["free"], "live": 0, "shared": 0, "cached": blocks["cached"], "pinned": 0}
    assert sum(counts.values()) == blocks["total"]
    for state in ("free", "cached"):
        tab.shows("#map-0 .legend", f"{state}{counts[state]:,}")
    with server.client() as client:
        prefix = client.get("/v1/cache/stats").json()["prefix_cache"]
        routes = client.get("/v1/internal/routes").json()["routes"]
    tab.shows("#prefix", f"{prefix['hits']} of {prefix['hits'] + prefix['misses']}")
    assert tab.find("#routes tbody tr").count() == len(routes)
    tab.shows("#routes", routes[0]["reason"])
    tab.shows("#memory", "K/V cache")


def test_another_tab_sees_what_this_one_asks_for(tab: OpenPage, browser: Browser, server: ServerProcess) -> None:
    with opened(browser, f"{server.url}/") as other:
        other.wait_until_ready()
        tab.settle(**ENDLESS)
        tab.say("watch me")
        other.wait_for_counts(lambda counts: counts["live"] >= 3)
        expect(other.find(".request")).to_have_count(1)
        assert "this chat" not in other.find(".request").inner_text()
        other.settle(temperature=0, max_tokens=5)
        other.say("me too")
        assert "5 tokens" in other.wait_for_end()
        tab.find("#send").click()
        for each in (tab, other):
            each.wait_for_counts(lambda counts: not counts["live"])


def test_the_keyboard_alone_does_it_all(tab: OpenPage) -> None:
    keyboard, page = tab.page.keyboard, tab.page
    tab.settle(**ENDLESS)
    tab.find("#prompt").focus()
    keyboard.type("line one")
    keyboard.press("Shift+Enter")
    keyboard.type("line two")
    keyboard.press("Enter")
    assert tab.find(".turn.user .said").inner_text() == "line one\nline two"
    tab.wait_for_counts(lambda counts: counts["live"] >= 3)
    tab.find("#map-0 canvas.cells").focus()
    tab.shows("#map-0 .readout", "Block 0")
    for key, block in (("ArrowRight", "Block 1 "), ("Home", "Block 0 "), ("ArrowLeft", "Block 0 "), ("End", "free")):
        keyboard.press(key)
        tab.shows("#map-0 .readout", block)
        tab.shows("#map-voice", block)
    keyboard.press("Home")
    keyboard.press("ArrowDown")
    told = tab.find("#map-0 .readout").inner_text()
    assert int(told.split()[1]) > 1  # a row below
    keyboard.press("Escape")
    assert tab.wait_for_end().startswith("stopped")
    page.evaluate("document.activeElement.blur()")
    page.evaluate("document.body.focus()")
    focused, order = "[document.activeElement].map((each) => each.id || each.name || each.className)[0]", []
    for _ in range(20):
        keyboard.press("Tab")
        order.append(page.evaluate(focused))
        if order[-1] == "cells":
            break
    wanted = ["theme", "settings-toggle", "clear", "system", "temperature", "seed"]
    wanted += ["log", "prompt", "send", "machine", "cells"]
    assert [each for each in order if each in wanted] == wanted
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_pointing_at_a_request_or_a_cell_tells_them_from_the_others(tab: OpenPage) -> None:
    tab.settle(**ENDLESS)
    tab.say("hold some blocks")
    tab.wait_for_counts(lambda counts: counts["live"] >= 3)
    tab.find("#map-0 canvas.cells").hover(position={"x": 4, "y": 4})
    tab.shows("#map-0 .readout", "Block 0 ·")
    tab.find(".request").hover()
    tab.shows("#map-0 .readout", "in use")
    tab.find("#send").click()


def test_a_refusal_is_one_line_and_nothing_is_lost(tab: OpenPage) -> None:
    tab.settle(temperature=-1)
    tab.say("hello")
    tab.shows("#chat-error", "Temperature: ")
    assert tab.find(".turn").count() == 0 and tab.find("#prompt").input_value() == "hello"
    tab.settle(temperature=0, max_tokens=3)
    tab.say("x" * 60_000)
    tab.shows("#chat-error", "tokens")
    assert "\n" not in tab.find("#chat-error").inner_text() and tab.find(".turn").count() == 2
    tab.say("hello")
    tab.wait_for_end()
    tab.complaints.clear()  # the browser logs the 400
    assert tab.find("#chat-error").is_visible() is False or "tokens" in tab.find("#chat-error").inner_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_serious_stands_in_the_way_of_anybody(browser: Browser, server: ServerProcess, theme: str) -> None:
    with opened(browser, f"{server.url}/", theme=theme) as tab:
        tab.wait_until_ready()
        assert tab.page.evaluate("document.documentElement.dataset.theme") == theme
        tab.settle(**ENDLESS)
        tab.say("hello")
        tab.wait_for_text()
        tab.find(".request").wait_for()
        check_accessible(tab)
        tab.page.set_viewport_size({"width": 360, "height": 740})
        check_accessible(tab)
        tab.page.get_by_role("button", name="Machine").click()
        expect(tab.find("#map-0")).to_be_visible()
        check_accessible(tab)
        for selector in ("html", "#machine"):
            assert tab.find(selector).evaluate("(each) => each.scrollWidth <= each.clientWidth"), (
                f"{selector} is too wide"
            )
        tab.page.get_by_role("button", name="Chat", exact=True).click()
        tab.find("#send").click()
        tab.wait_for_end()
        tab.find("#key-dialog").evaluate("(dialog) => dialog.showModal()")
        check_accessible(tab)


def check_accessible(tab: OpenPage) -> None:
    found = Axe().run(tab.page).response["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    assert not serious, json.dumps([(each["id"], [node["target"] for node in each["nodes"]]) for each in serious])


def test_the_theme_can_be_changed_and_stays(browser: Browser, server: ServerProcess) -> None:
    with opened(browser, f"{server.url}/", theme="dark") as tab:
        tab.page.get_by_role("button", name="Switch to the light theme").click()
        assert tab.page.evaluate("document.documentElement.dataset.theme") == "light"
        tab.page.reload()
        assert tab.page.evaluate("document.documentElement.dataset.theme") == "light"
        tab.page.get_by_role("button", name="Switch to the dark theme").wait_for()


def test_nothing_moves_for_those_who_want_it_still(browser: Browser, server: ServerProcess) -> None:
    moving = "document.getAnimations().length"
    for preference, moves in (("no-preference", True), ("reduce", False)):
        with profile(browser) as context:
            tab = OpenPage(context.new_page(), f"{server.url}/")
            tab.page.emulate_media(reduced_motion=preference)  # type: ignore[arg-type]
            tab.wait_until_ready()
            tab.settle(**ENDLESS)
            tab.say("hello")
            tab.wait_for_text()
            assert (tab.page.evaluate(moving) > 0) is moves
            tab.find("#send").click()
            tab.wait_for_end()


def test_what_was_never_answered_is_not_said_again(tab: OpenPage) -> None:
    tab.settle(temperature=0, max_tokens=3)
    tab.page.route("**/v1/chat/completions", lambda route: route.abort())
    tab.say("lost")
    tab.shows("#chat-error", "cannot be reached")
    tab.page.unroute("**/v1/chat/completions")
    for text in ("kept", "last"):
        with tab.page.expect_request("**/v1/chat/completions") as request:
            tab.say(text)
        tab.wait_for_end()
    messages = json.loads(request.value.post_data or "")["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant", "user"] and messages[0]["content"] == "kept"
    tab.complaints.clear()  # the browser logs what was cut


def test_a_hidden_page_does_not_watch(browser: Browser, server: ServerProcess) -> None:
    with profile(browser) as context:
        tab = OpenPage(context.new_page(), f"{server.url}/")
        tab.wait_until_ready()
        hide = "(hidden) => { Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden });"
        hide += "document.dispatchEvent(new Event('visibilitychange')); }"
        with tab.page.expect_event("requestfailed", lambda request: request.url.endswith("/v1/internal/events")):
            tab.page.evaluate(hide, True)
        with tab.page.expect_request("**/v1/internal/events"):
            tab.page.evaluate(hide, False)
        tab.wait_until_ready()
