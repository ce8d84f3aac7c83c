"""Draws a picture of the machine for a terminal, or as plain text. Knows nothing of where pictures come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from octavo.cli.errors import one_line
from octavo.cli.top_picture import GroupPart, MachinePart, Picture, RequestPart, Trend

# A glyph of its own for each state, so that bars can be read without colours.
STATES = {
    "live": ("█", "green"),
    "shared": ("▓", "cyan"),
    "cached": ("▒", "blue"),
    "pinned": ("▞", "magenta"),
    "free": ("·", "dim"),
}
STATE_STYLES = {"ready": "green", "loading": "yellow", "draining": "yellow", "failed": "bold red", "stopped": "red"}
BAR = 40
PROGRESS_BAR = 10
MAX_ROUTES = 6
LEAST_REQUESTS = 3
GIB, MIB = 1 << 30, 1 << 20


class Frame:
    """A renderable, no higher than a terminal that it has for itself. `notice` is of the connection."""

    def __init__(self, url: str, picture: Picture, trend: Trend, notice: str = "") -> None:
        self._url = url
        self._picture = picture
        self._trend = trend
        self._notice = notice

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        parts: list[RenderableType] = [_title(self._url, self._picture)]
        if self._notice:
            parts.append(Text(one_line(self._notice), style="bold yellow"))
        machine = self._picture.machine
        if machine is not None:
            parts += [_speed(machine, self._trend), Rule("K/V blocks", style="dim"), _blocks(machine)]
            parts += [_prefix(machine), Rule("attention routes", style="dim"), _routes(machine)]
            parts += [_memory(machine), Rule(_heading(machine), style="dim")]
            rows = len(machine.requests)
            if console.is_terminal:
                used = len(console.render_lines(Group(*parts), options, pad=False))
                rows = max(LEAST_REQUESTS, options.size.height - used - 2)  # its head, and how many are left out
            parts.append(_requests(machine, rows))
        yield Group(*parts)


def _title(url: str, picture: Picture) -> Text:
    engine, model = picture.engine, picture.model
    title = Text("octavo ", style="bold")
    title.append(one_line(picture.server.version) + "  ", style="dim")
    title.append(url + "  ")
    title.append(engine.state, style=STATE_STYLES.get(engine.state, ""))
    if engine.busy:
        title.append(", a step takes long", style="yellow")
    title.append(f"  up {duration(picture.server.uptime_s)}")
    if engine.reason:
        title.append(f"\n{one_line(engine.reason)}", style="yellow")
    if model is not None:
        chosen = (
            f"\n{model.name} ({model.family}, {model.dtype}, {model.weights} weights, {model.storage} storage, "
            f"{model.kv_dtype} K/V, context {model.max_context:,})"
        )
        title.append("\n" + one_line(chosen))
    return title


def _speed(machine: MachinePart, trend: Trend) -> Table:
    table = _grid(4)
    table.add_row(
        f"running {machine.running:,}",
        f"waiting {machine.waiting:,}",
        f"preemptions {machine.cache.preemptions:,}",
        f"steps {machine.steps:,}",
    )
    table.add_row(
        f"generated {_rate(trend.generated)} tokens/s",
        f"prompts {_rate(trend.prompt)} tokens/s",
        f"first token {_milliseconds(trend.first_token_s)}",
        f"between tokens {_milliseconds(trend.inter_token_s)}",
    )
    table.add_row(
        f"in all {machine.generated_tokens:,}",
        f"in all {machine.cache.prompt_tokens:,}",
        f"step {_milliseconds(trend.step_s)}",
        f"{_rate(trend.steps)} steps/s",
    )
    return table


def _blocks(machine: MachinePart) -> Table:
    table = Table.grid(padding=(0, 2))
    for group in machine.groups:
        counts = " ".join(f"{state} {group.counts.get(state, 0):,}" for state in STATES)
        table.add_row(_group_name(group), state_bar(group.counts, BAR), counts)
    return table


def _group_name(group: GroupPart) -> str:
    window = f", window {group.window:,}" if group.window else ""
    layers = f"{group.layers} {one_line(group.kind)} layer{'s'[: group.layers > 1]}{window}"
    return f"{group.group}: {layers}, {group.blocks:,} x {group.block_size}"


def state_bar(counts: Mapping[str, int], width: int) -> Text:
    """Blocks by state; a state that has any has at least one cell."""
    total = sum(counts.values())
    bar = Text()
    if total == 0:
        return bar
    left = width
    for state, (glyph, style) in STATES.items():
        count = counts.get(state, 0)
        cells = left if state == "free" else min(left, max(1, round(width * count / total)) if count else 0)
        bar.append(glyph * cells, style=style)
        left -= cells
    return bar


def _prefix(machine: MachinePart) -> Text:
    cache, prefix = machine.cache, machine.cache.prefix_cache
    lookups = prefix.hits + prefix.misses
    share = f" ({100 * prefix.hits / lookups:.0f}%)" if lookups else ""
    return Text(
        f"prefix cache: {prefix.hits:,} hits of {lookups:,} lookups{share}, {cache.cached_prompt_tokens:,} of "
        f"{cache.prompt_tokens:,} prompt tokens cached, {prefix.evictions:,} entries given up"
    )


def _routes(machine: MachinePart) -> RenderableType:
    if not machine.routes:
        return Text("nothing has run yet", style="dim")
    table = Table.grid(padding=(0, 2))
    for each in machine.routes[:MAX_ROUTES]:
        table.add_row(one_line(each.route), Text(f"{each.count:,}", justify="right"), one_line(each.reason))
    if len(machine.routes) > MAX_ROUTES:
        table.add_row("others", Text(f"{sum(each.count for each in machine.routes[MAX_ROUTES:]):,}", justify="right"))
    return table


def _memory(machine: MachinePart) -> Text:
    memory = machine.memory
    parts = {
        "weights": memory.weight_bytes,
        "K/V": memory.kv_bytes,
        "workspace": memory.workspace_bytes,
        "activations": memory.activation_bytes,
    }
    line = ", ".join(f"{name} {size(num_bytes)}" for name, num_bytes in parts.items() if num_bytes)
    if memory.total_bytes is not None and memory.available_bytes is not None:
        line += f"; {size(memory.total_bytes)} of {size(memory.available_bytes)}"
    return Text(f"memory: {line}")


def _heading(machine: MachinePart) -> str:
    shown = len(machine.requests) + machine.requests_left_out
    return f"requests ({shown:,})"


def _requests(machine: MachinePart, rows: int) -> RenderableType:
    if not machine.requests:
        return Text("none", style="dim")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("id", max_width=22, no_wrap=True, overflow="ellipsis")
    table.add_column("stage")
    for name in ("age", "prompt", "cached", "answer"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for each in machine.requests[:rows]:
        table.add_row(*_request(each))
    left_out = max(0, len(machine.requests) - rows) + machine.requests_left_out
    return Group(table, Text(f"and {left_out:,} more", style="dim")) if left_out else table


def _request(each: RequestPart) -> Iterable[RenderableType]:
    prefilling = each.generated_tokens == 0
    limit = each.max_generated_tokens
    done, of = (each.computed_tokens, each.prompt_tokens) if prefilling else (each.generated_tokens, limit or 0)
    style = "yellow" if each.stage == "waiting" else "cyan" if prefilling else "green"
    cells = min(PROGRESS_BAR, round(PROGRESS_BAR * done / of)) if of else 0
    what = each.stage if each.stage == "waiting" else "prefill" if prefilling else "decode"
    return (
        one_line(each.id),
        Text(what, style=style),
        duration(each.age_s),
        f"{min(each.computed_tokens, each.prompt_tokens):,}/{each.prompt_tokens:,}",
        "" if each.cached_tokens is None else f"{each.cached_tokens:,}",
        f"{each.generated_tokens:,}" + ("" if limit is None else f"/{limit:,}"),
        Text("━" * cells, style=style).append("─" * (PROGRESS_BAR - cells), style="dim") if of else "",
    )


def duration(seconds: float) -> str:
    """Short: 12.3 s, 4m05s, 3h07m, 2d04h."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 24 else f"{hours // 24}d{hours % 24:02}h"


def size(num_bytes: int) -> str:
    """In GiB, or MiB below one."""
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{num_bytes / MIB:,.1f} MiB"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.1f} ms"


def _grid(columns: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(columns):
        table.add_column(min_width=18)
    return table
