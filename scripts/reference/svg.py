"""A drawing of boxes, words and arrows as an SVG file. It brings its own ground, so that it can be read on any page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

# By theme: the ground, the ink of words, the ink of lines, and what boxes are filled with.
INKS = {"light": {"ground": "#ffffff", "ink": "#1b1f24", "line": "#57606a"}}
INKS["dark"] = {"ground": "#1b2026", "ink": "#f0f3f6", "line": "#9aa4af"}
FILLS = {
    "light": {"free": "#eef1f4", "a": "#bfe3de", "b": "#f8dfb0", "c": "#dcd3f7", "hot": "#f7cdc8"},
    "dark": {"free": "#323a43", "a": "#17574f", "b": "#674a10", "c": "#4a3f82", "hot": "#79332c"},
}
CELL = 36  # width of a token or block


def _rules(theme: str) -> str:
    inks = INKS[theme]
    rules = [f".ground{{fill:{inks['ground']}}}", f"text{{fill:{inks['ink']}}}"]
    rules += [f".box{{stroke:{inks['line']}}}", f".line{{stroke:{inks['line']}}}", f"#head path{{fill:{inks['line']}}}"]
    rules += [f".{name}{{fill:{colour}}}" for name, colour in FILLS[theme].items()]
    return "".join(rules)


STYLE = (
    "text{font:13px ui-sans-serif,system-ui,sans-serif}.small{font-size:11.5px}.strong{font-weight:600}"
    ".mid{text-anchor:middle}.end{text-anchor:end}.box{stroke-width:1}.hole{fill:none;stroke-dasharray:4 3}"
    ".line{fill:none;stroke-width:1.4}" + _rules("light") + "@media (prefers-color-scheme:dark){" + _rules("dark") + "}"
)


class Drawing:
    """Coordinates are pixels from the upper left corner."""

    def __init__(self, title: str, description: str, width: int, height: int) -> None:
        """`description` says in words what there is to see, for who cannot see it."""
        self._parts: list[str] = []
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-labelledby="t d">\n'
            f'<title id="t">{escape(title)}</title>\n<desc id="d">{escape(description)}</desc>\n'
            f"<style>{STYLE}</style>\n"
            '<defs><marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
            '<path d="M0 0 9 4 0 8z"/></marker></defs>\n'
            f'<rect class="ground" width="{width}" height="{height}" rx="8"/>\n'
        )

    def __str__(self) -> str:
        return self._head + "\n".join(self._parts) + "\n</svg>\n"

    def words(self, x: float, y: float, text: str, kind: str = "") -> None:
        """`kind` is any of small, strong, mid, end."""
        self._parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, fill: str, text: str = "", kind: str = "") -> None:
        self._parts.append(
            f'<rect class="box {fill}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"/>'
        )
        lines = text.split("\n") if text else []
        for number, line in enumerate(lines):
            self.words(x + width / 2, y + height / 2 + 4.5 + 16 * (number - (len(lines) - 1) / 2), line, f"mid {kind}")

    def cells(
        self, x: float, y: float, fills: Sequence[tuple[str, str]], width: float = CELL, height: float = 28
    ) -> None:
        """A row of boxes side by side: (fill, text) of each."""
        for number, (fill, text) in enumerate(fills):
            self.box(x + number * width, y, width, height, fill, text, "small")

    def arrow(self, *points: tuple[float, float]) -> None:
        path = " ".join(f"{x:g} {y:g}" for x, y in points)
        self._parts.append(f'<path class="line" marker-end="url(#head)" d="M{path}"/>')

    def brace(self, x: float, y: float, width: float, text: str) -> None:
        """A bracket under a span, and what the span is."""
        self._parts.append(f'<path class="line" d="M{x + 1:g} {y:g}v6h{width - 2:g}v-6"/>')
        self.words(x + width / 2, y + 21, text, "small mid")
