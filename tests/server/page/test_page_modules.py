"""Parts of the live page by themselves, in a browser: what becomes of a model's text, and maps of large pools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from open_page import OpenPage, opened
from playwright.sync_api import Browser
from server_process import fake_server

IMPORT = "async (given) => {{ const module = await import('/page/{}'); {} }}"


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Iterator[OpenPage]:
    with fake_server() as server:
        server.wait_until_ready()
        with opened(browser, f"{server.url}/") as tab:
            tab.wait_until_ready()
            yield tab


def run(tab: OpenPage, module: str, code: str, given: Any = None) -> Any:
    return tab.page.evaluate(IMPORT.format(module, code), given)


def rendered(tab: OpenPage, text: str) -> str:
    """The HTML of what `text` becomes."""
    code = "const at = document.createElement('div'); module.render(at, given); return at.innerHTML;"
    html: str = run(tab, "markdown.js", code, text)
    return html.replace(' tabindex="0" role="region"', "")


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("plain\nlines", "<p>plain\nlines</p>"),
        ("one\n\ntwo", "<p>one</p><p>two</p>"),
        ("**bold** `code`", "<p><strong>bold</strong> <code>code</code></p>"),
        ("**`both`**", "<p><strong><code>both</code></strong></p>"),
        ("a ** b ** c * d", "<p>a ** b ** c * d</p>"),
        ("`**not bold**`", "<p><code>**not bold**</code></p>"),
        ("# Title #\ntext", '<p class="heading">Title</p><p>text</p>'),
        ("- a\n- b\n  more\n\nend", "<ul><li>a</li><li>b more</li></ul><p>end</p>"),
        ("3. c\n4) d", '<ol start="3"><li>c</li><li>d</li></ol>'),
        ("say:\n- a\n1. b", "<p>say:</p><ul><li>a</li></ul><ol><li>b</li></ol>"),
        ("```c++\na<b\n **x**\n```\nend", '<pre aria-label="Code, c++"><code>a&lt;b\n **x**</code></pre><p>end</p>'),
        ("```\nstill open", '<pre aria-label="Code"><code>still open</code></pre>'),
        ("````\n```\n````", '<pre aria-label="Code"><code>```</code></pre>'),
        ("", ""),
        ("\n\n \n", ""),
        ("<img src=x onerror=alert(1)>", "<p>&lt;img src=x onerror=alert(1)&gt;</p>"),
        ("[a](javascript:alert(1))", "<p>[a](javascript:alert(1))</p>"),
        ("- <script>alert(1)</script>", "<ul><li>&lt;script&gt;alert(1)&lt;/script&gt;</li></ul>"),
    ],
)  # fmt: skip
def test_text_becomes_elements_and_never_markup(tab: OpenPage, text: str, html: str) -> None:
    assert rendered(tab, text) == html


def test_a_growing_text_ends_as_if_it_had_come_at_once_and_keeps_what_is_complete(tab: OpenPage) -> None:
    text = "# A\n\nsome **bold** text\n\n- one\n- two `x`\n\n```js\nlet a;\n```\n\nthe end"
    code = """
        const at = document.createElement('div');
        let first = null, kept = true;
        for (let n = 1; n <= given.length; n++) {
            module.render(at, given.slice(0, n));
            if (given.slice(0, n).endsWith('**bold** text')) first = at.children[0];
            if (first) kept = kept && at.children[0] === first;
        }
        return [at.innerHTML, kept];"""
    html, kept = run(tab, "markdown.js", code, text)
    assert kept and html.replace(' tabindex="0" role="region"', "") == rendered(tab, text)


def test_hostile_text_takes_no_time_to_show(tab: OpenPage) -> None:
    code = """
        const began = performance.now();
        module.render(document.createElement('div'), given);
        return performance.now() - began;"""
    for text in ("*" * 20_000, "`" * 20_001, "**a" * 7_000, "- " * 10_000, "\n- x" * 5_000, "`a" * 10_000):
        assert run(tab, "markdown.js", code, text) < 1500


def test_a_large_pool_is_drawn_in_cells_that_stand_for_several_blocks(tab: OpenPage) -> None:
    group = {
        "group": 9, "kind": "full", "layers": 2, "window": None, "blocks": 100_000, "block_size": 16,
        "blocks_per_cell": 25, "counts": {"free": 99_000, "live": 1000, "shared": 0, "cached": 0, "pinned": 0},
        "owners": [["chatcmpl-abcdef0123-0"]],
        "runs": [[40, 1, 0, 25, 400, 25], [3960, 0, -1, 0, 0, 0]],
    }  # fmt: skip
    code = """
        const { Palette } = await import('/page/palette.js');
        const palette = new Palette();
        palette.keep(given.owners[0]);
        const map = new module.BlockMap(given, palette);
        document.getElementById('maps').append(map.element);
        map.update(given);
        const began = performance.now();
        map.update(given);
        const took = performance.now() - began;
        map.canvas.focus();
        map.canvas.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }));
        const told = [map.readout.textContent, map.title.textContent, map.element.dataset.live];
        const size = [map.canvas.clientWidth <= map.element.clientWidth, map.canvas.clientHeight];
        map.element.remove();
        return { took, told, size };"""
    drawn = run(tab, "blockmap.js", code, group)
    assert drawn["told"][0] == "Blocks 25–49 · mostly live, 25 in use · A abcdef · 400 of 400 tokens · 25 references"
    assert "100,000 blocks of 16 tokens, 25 to a cell" in drawn["told"][1] and drawn["told"][2] == "1000"
    assert drawn["size"][0] and drawn["size"][1] <= 260 and drawn["took"] < 200


def test_requests_keep_their_colour_and_letter_while_they_are_there(tab: OpenPage) -> None:
    code = """
        const palette = new module.Palette();
        const seen = [];
        for (const ids of given) {
            palette.keep(ids);
            seen.push(ids.map((id) => palette.letter(id) + palette.hue(id)));
        }
        return seen;"""
    assert run(tab, "palette.js", code, [["x", "y", "z"], ["x", "z"], ["x", "z", "w"]]) == [
        ["A0", "B1", "C2"],
        ["A0", "C2"],
        ["A0", "C2", "B1"],
    ]


def test_numbers_are_written_for_people(tab: OpenPage) -> None:
    code = "return given.map(([name, ...values]) => module[name](...values));"
    asked = [
        ["ms", 0.0421], ["ms", 12.3456], ["ms", None], ["bytes", 203 * 2**20], ["bytes", 1536], ["bytes", 7],
        ["percent", 1, 200], ["percent", 0, 0], ["duration", 3.21], ["duration", 300], ["plural", 1, "block"],
        ["plural", 1234, "block"], ["shortId", "chatcmpl-0123456789abcdef-0"], ["shortId", "cmpl-0123456789abcdef-2"],
    ]  # fmt: skip
    assert run(tab, "format.js", code, asked) == [
        "42", "12,346", "–", "203 MiB", "1.5 KiB", "7 B", "0.5 %", "–", "3.2 s", "5 min", "1 block", "1,234 blocks",
        "012345", "012345·2",
    ]  # fmt: skip
