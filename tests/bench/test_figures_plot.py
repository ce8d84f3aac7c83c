"""What the shorter benchmarks draw, and that their JSON says where it comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.bench import decode, overhead, peers
from octavo.bench.figures_plot import plot_figures
from octavo.bench.grammar import GrammarRound, GrammarRun
from octavo.bench.overhead import OverheadProtocol, OverheadRun
from octavo.bench.peers import Peer, PeerSpeed
from tests.bench.test_overhead import round_
from tests.cli.conftest import Run

pytest.importorskip("matplotlib")


def is_a_drawing(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5_000


def test_a_plot_of_one_sequence_and_json_with_every_run(
    octavo: Run, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = iter(range(1, 100))

    def generate(path: Path, flags: list[str], prompt: str) -> tuple[dict[str, Any], int]:
        timings = {"decode_tps": float(next(speeds)), "prefill_tps": 200.0}
        return {"timings": timings, "usage": {"prompt_tokens": 8}, "prompt_token_ids": [1]}, 64 << 20

    monkeypatch.setattr(decode, "_generate", generate)
    monkeypatch.setattr(peers, "find_peer", lambda path, python: Peer("python", "xllamacpp", "1", ""))
    monkeypatch.setattr(Peer, "decode", lambda *given: PeerSpeed(50.0, 100.0, 1 << 20))
    plot = tmp_path / "decode.png"
    sizes = ("--repeats", 3, "--prompt-tokens", 20, "--new-tokens", 5)
    done = octavo("bench", "decode", "-m", gguf, *sizes, "--plot", plot, "--json")
    assert done.status == 0, done.err
    assert is_a_drawing(plot)
    found = json.loads(done.out)
    assert (found["bench"], found["by_run"]["decode_tps"]) == ("decode", [3.0, 6.0, 9.0])
    assert found["by_run"]["llama.cpp decode_tps"] == [50.0] * 3
    assert next(speeds) == 1 + 1 + 3 * 3, "one process warms up"
    assert found["decode_tps"] == {"median": 6.0, "low": 3.0, "high": 9.0}
    assert found["environment"]["versions"]["torch"] and "commit" in found["environment"]


def test_a_plot_of_what_a_grammar_costs_shows_a_cost_below_zero_too(tmp_path: Path) -> None:
    bench = GrammarRun("m", 4, 8, 3, [GrammarRound(100.0, each) for each in (99.5, 109.0, 90.0)])
    assert (bench.spread("cost_percent").median, bench.spread("cost_percent").low) == pytest.approx((0.5, -9.0))
    plot = tmp_path / "grammar.png"
    plot_figures("a batch", bench.charts(), plot)
    assert is_a_drawing(plot)
    assert list(bench.charts()) == ["tokens/s", "cost, %"]


def test_a_plot_of_what_a_server_costs(octavo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def bench(run: OverheadRun, on_round: Any) -> None:
        run.rounds += [round_(), round_(served_tps=900)]

    monkeypatch.setattr(overhead, "bench_overhead", bench)
    plot = tmp_path / "overhead.png"
    done = octavo("bench", "overhead", "--rounds", 2, "--plot", plot)
    assert done.status == 0, done.err
    assert is_a_drawing(plot)
    names = [list(spreads) for spreads in OverheadRun(OverheadProtocol(), rounds=[round_()]).charts().values()]
    assert names == [["engine", "server", "server, 64 streams"], ["server"], ["engine", "HTTP"]]


@pytest.mark.parametrize("command", ["decode", "grammar", "overhead", "prefill", "storage", "kernels", "regress run x"])
def test_a_plot_that_could_not_be_written_is_refused_before_anything_is_measured(octavo: Run, command: str) -> None:
    done = octavo("bench", *command.split(), "--plot", "x.svg")
    assert done.status == 2
    assert "--plot is 'x.svg'; give a file that ends with .png" in done.error
