"""`octavo bench prefill`: order and prompts of its rounds, its arithmetic, and one small run of the real thing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo.bench import peers, prefill
from octavo.bench.peers import Peer, PrefillFigures
from octavo.bench.prefill import OURS, PEER, PrefillRun, draw_prompts
from octavo.bench.prefill_report import report_lines
from octavo.errors import EngineFault
from tests.cli.conftest import Run

BESIDE = Peer("python", "llama-cpp-python", "1.2", "CPU : AVX = 1 | AVX512 = 0 | FMA = 1 | ")
SMALL = ("--prompt-tokens", "8,24", "--rounds", 3)


class Engines:
    """Both engines without processes: what they were asked, and speeds that a test can foresee."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails_at: int = 99) -> None:
        self.asked: list[tuple[str, list[list[int]]]] = []
        self._fails_at = fails_at
        monkeypatch.setattr(prefill, "measure_ours", lambda path, config, prompts: self._run(OURS, prompts))
        monkeypatch.setattr(Peer, "prefill", lambda peer, path, threads, prompts: self._run(PEER, prompts))
        monkeypatch.setattr(peers, "find_peer", lambda path, python: BESIDE)

    def _run(self, name: str, prompts: Sequence[list[int]]) -> PrefillFigures:
        if len(self.asked) == self._fails_at:
            raise EngineFault(f"{name} ended")
        self.asked.append((name, list(prompts)))
        round_ = sum(asked == name for asked, _ in self.asked)
        tps = [round_ * len(prompt) * (2.0 if name == OURS else 1.0) for prompt in prompts[1:]]
        return PrefillFigures(tps, (300 if name == OURS else 200) << 20)


def test_engines_take_turns_in_changing_order_on_the_same_prompts(
    octavo: Run, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = Engines(monkeypatch)
    done = octavo("bench", "prefill", "-m", gguf, *SMALL, "--json")
    assert done.status == 0, done.err
    assert [name for name, _ in engines.asked] == [OURS, PEER, PEER, OURS, OURS, PEER]
    for (_, first), (_, second) in zip(engines.asked[::2], engines.asked[1::2], strict=True):
        assert first == second
        assert [len(prompt) for prompt in first] == [8, 8, 24]  # the first warms up
    found = json.loads(done.out)
    assert (found["complete"], found["prompt_tokens"]) == (True, [8, 24])
    assert found["environment"]["versions"]["torch"]
    assert found["prefill_tps"][OURS]["24"] == {"median": 96.0, "low": 48.0, "high": 144.0}
    assert found["ours_over"][PEER]["8"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert found["tps_by_round"][PEER] == [[8.0, 24.0], [16.0, 48.0], [24.0, 72.0]]
    assert found["peers"] == {
        PEER: {"package": "llama-cpp-python", "version": "1.2", "build": "CPU : AVX = 1 | AVX512 = 0 | FMA = 1 |"}
    }
    assert found["peak_mib"][OURS]["median"] == 300.0 and found["peak_mib"][PEER]["high"] == 200.0
    assert done.err == "octavo: round 1 of 3\noctavo: round 2 of 3\noctavo: round 3 of 3\n"


def test_no_prompt_is_like_another_in_any_round() -> None:
    prompts = [str(prompt) for round_ in range(4) for prompt in draw_prompts(range(50), (64, 128), round_)]
    assert len(set(prompts)) == 12
    assert len({prompt[:40] for prompt in prompts}) == 12


def test_what_was_measured_before_a_failure_is_shown(octavo: Run, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Engines(monkeypatch, fails_at=3)
    done = octavo("bench", "prefill", "-m", gguf, *SMALL)
    assert done.status == 1
    assert done.err.splitlines()[-1] == "octavo: error: octavo, round 2 of 3: octavo ended"
    head, _, peer, _, *rows = done.out.splitlines()
    assert head == "INCOMPLETE: octavo, round 2 of 3: octavo ended"
    assert peer == "llama.cpp: llama-cpp-python 1.2, compiled for AVX FMA"
    assert rows[-1] == "peak memory, MiB   octavo 300.00 (300.00 to 300.00)   llama.cpp 200.00 (200.00 to 200.00)"
    assert rows[0].split("   ")[-1] == "ours ÷ llama.cpp 2.00 (2.00 to 2.00)"


def test_the_table_without_a_peer_has_ours_alone() -> None:
    run = PrefillRun("m.gguf", (8,), 1, measured={OURS: [PrefillFigures([100.0], 1 << 20)]})
    assert list(report_lines(run))[-2].split() == ["8", "tokens", "octavo", "100.00", "(100.00", "to", "100.00)"]
    assert run.as_object()["ours_over"] == {}


def test_a_small_run_loads_the_model_in_a_process_of_its_own(
    octavo: Run, gguf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    for name in ("llama_cpp", "xllamacpp"):
        monkeypatch.setitem(sys.modules, name, None)
    plot = tmp_path / "prefill.png"
    sizes = ("--prompt-tokens", "8,24", "--rounds", 1, "--plot", plot)
    done = octavo("bench", "prefill", "-m", gguf, *sizes, "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert list(found["prefill_tps"]) == [OURS]
    assert all(spread["median"] > 0 for spread in found["prefill_tps"][OURS].values())
    assert found["peak_mib"][OURS]["median"] > 50 and found["peers"] == {}
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("--prompt-tokens", "x"), "the prompt length is 'x'; give numbers of tokens such as 128,512,2048"),
        (("--prompt-tokens", "0"), "prompt tokens is 0; it must be 1 to 1023"),
        (("--prompt-tokens", "1024"), "prompt tokens is 1024; it must be 1 to 1023"),
        (("--prompt-tokens", "8,8"), "the prompt lengths are 8, 8; name each only once"),
        (("--prompt-tokens", "8", "--rounds", "0"), "rounds is 0"),
        (("--plot", "x.svg"), "give a file that ends with .png"),
        (("-m", "nowhere.gguf"), "nowhere.gguf"),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_line(octavo: Run, gguf: Path, arguments: tuple[Any, ...], fragment: str) -> None:
    pytest.importorskip("matplotlib")
    done = octavo("bench", "prefill", "-m", gguf, *arguments)
    assert done.status == 2
    assert fragment in done.error
