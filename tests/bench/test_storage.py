"""`octavo bench storage`: its rounds over stubs whose speeds are known, and how it ends when an arm fails."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from octavo.bench import served_arm
from octavo.bench.paired_plot import plot_verdicts
from octavo.bench.served_arm import Arm, ServedLoad
from octavo.bench.serving import Watcher
from octavo.bench.stamp import environment_stamp
from octavo.bench.storage import StorageRun, bench_storage, storage_arms
from octavo.bench.storage_report import document_lines
from octavo.errors import EngineFault, InvalidRequest
from octavo.step_batch import StorageKind
from tests.bench.stub_servers import StubServers, steady_run_cell

SLOW = {"slowness": 2.0}
CELLS = ["prompt 8, 1 client", "prompt 8, 2 clients", "prompt 12, 1 client", "prompt 12, 2 clients"]


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own times do not count."""
    monkeypatch.setattr(served_arm, "run_cell", steady_run_cell)


def storage_run(rounds: int = 5, **changes: Any) -> StorageRun:
    load = ServedLoad(**{
        "prompt_tokens": (8, 12),
        "concurrencies": (1, 2),
        "max_tokens": 4,
        "requests_per_client": 1,
        "seed": 3,
        "timeout_s": 20,
        **changes,
    })  # fmt: skip
    arms = storage_arms(Path("tiny.gguf"), ["--parallel=8"], load, rounds)
    return StorageRun("tiny.gguf", "llama", "cpu", "tiny", "octavo bench storage -m tiny.gguf", arms)


def measured(servers: StubServers, **changes: Any) -> tuple[StorageRun, list[dict[str, Any]]]:
    run, raw = storage_run(**changes), io.StringIO()
    bench_storage(run, raw, Watcher(), servers)
    return run, [json.loads(line) for line in raw.getvalue().splitlines()]


def failed(servers: StubServers, **changes: Any) -> tuple[StorageRun, str, list[dict[str, Any]]]:
    run, raw = storage_run(**changes), io.StringIO()
    with pytest.raises(EngineFault) as caught:
        bench_storage(run, raw, Watcher(), servers)
    assert run.problem == str(caught.value)
    assert (run.winner, run.entry) == (None, None)
    return run, str(caught.value), [json.loads(line) for line in raw.getvalue().splitlines()]


def slow_arms(*names: str) -> StubServers:
    return StubServers(lambda arm, round_: SLOW if arm.name in names else {})


def test_every_round_runs_each_arm_on_a_server_of_its_own_in_rotating_order() -> None:
    servers = StubServers()
    run, _ = measured(servers)
    assert servers.started == [
        *("paged", "dense", "paged again"),
        *("dense", "paged again", "paged"),
        *("paged again", "paged", "dense"),
        *("paged", "dense", "paged again"),
        *("dense", "paged again", "paged"),
    ]
    assert len({(each.arm, each.round, each.cell) for each in run.paired.cells}) == 3 * 5 * 4
    assert [each.cell for each in run.verdicts] == CELLS


def test_all_arms_of_a_round_are_sent_the_same_prompts_and_other_rounds_others() -> None:
    servers = StubServers()
    measured(servers)
    sent = [sorted(map(str, stub.prompts()[1:])) for stub in servers.stubs]  # the first is a probe
    warm_up = 2 + 1
    assert {len(each) for each in sent} == {warm_up + 2 * 3}
    assert len({str(each) for each in sent[:3]}) == 1
    assert sent[0] != sent[3]
    for each in sent:
        assert len(set(each)) == len(each)


def test_storage_that_is_faster_everywhere_wins_the_flag() -> None:
    run, raw = measured(slow_arms("paged", "paged again"))
    assert run.winner is StorageKind.DENSE
    assert run.entry == '("llama", "cpu"): StorageKind.DENSE,'
    assert run.reason == f"dense is faster beyond the null spread in {'; '.join(CELLS)}"
    assert raw[-1]["preferred_storage"] == "dense"
    assert "**dense** for `auto`" in "\n".join(document_lines(run))


def test_paged_keeps_the_flag_where_dense_is_slower() -> None:
    run, raw = measured(slow_arms("dense"))
    assert run.winner is StorageKind.PAGED
    assert {each.faster for each in run.verdicts} == {"baseline"}
    assert raw[-1]["entry"] == '("llama", "cpu"): StorageKind.PAGED,'


def test_a_null_arm_that_differs_as_much_leaves_the_flag_with_paged() -> None:
    run, _ = measured(slow_arms("paged"))
    assert run.winner is StorageKind.PAGED
    assert {each.delta for each in run.verdicts} == {each.null_spread for each in run.verdicts} != {0.0}
    warning = f"The machine was unsteady: only large differences could be told apart in {'; '.join(CELLS)}."
    assert warning in list(document_lines(run))


def test_raw_data_hold_every_cell_of_every_arm_and_what_the_decision_was_made_from() -> None:
    run, raw = measured(StubServers())
    assert [each["type"] for each in raw] == ["head", *(["cell"] * 4 + ["routes"]) * 15, "outcome"]
    head, cell = raw[0], raw[1]
    stamp = environment_stamp()
    told = ("commit", "machine", "python", "versions")
    assert {name: head["environment"][name] for name in told} == {name: stamp[name] for name in told}
    assert (cell["arm"], cell["round"], cell["position"], cell["problem"]) == ("paged", 1, 1, None)
    assert (cell["prompt_tokens"], cell["concurrency"], len(cell["requests"])) == (8, 1, 1)
    assert cell["requests"][0]["output_tokens"] == 4
    rebuilt = [each["figures"]["output_tps"] for each in raw if each.get("arm") == "dense" and each["type"] == "cell"]
    assert sorted(rebuilt) == sorted(each.figures.output_tps for each in run.paired.cells if each.arm == "dense")
    assert run.paired.routes["dense"]["dense"] > 0


def test_the_document_has_machine_command_table_and_entry() -> None:
    run, _ = measured(StubServers())
    text = "\n".join(document_lines(run))
    assert text.startswith("# Storage of llama on cpu, 20")
    assert "    octavo bench storage -m tiny.gguf" in text and "octavo commit" in text and "torch " in text
    for cell in CELLS:
        assert f"| {cell} | 5 | " in text
    assert text.endswith(f"    {run.entry}")
    assert "unsteady" not in text


@pytest.mark.parametrize("dead", ["paged", "dense", "paged again"])
def test_an_arm_that_dies_in_a_round_is_named_with_its_last_words_and_decides_nothing(dead: str) -> None:
    # 1 probe, 3 to warm up, 1 or 2 of the first cell
    servers = StubServers(lambda arm, round_: {"dies_at": 6} if (arm.name, round_) == (dead, 2) else {})
    run, error, raw = failed(servers)
    assert error.startswith(f"{dead}, round 3 of 5: the server died in prompt ")
    assert "octavo serve ended with status -9: out of memory" in error
    assert error.endswith("what was measured is kept, and no flag is decided")
    assert {each.round for each in run.paired.cells} == {1, 2, 3}
    assert raw[-1]["type"] == "outcome" and raw[-1]["problem"] == error and raw[-1]["preferred_storage"] is None
    kept = [each for each in raw if each["type"] == "cell"]
    assert len(kept) >= 24 and any(each["problem"] for each in kept)
    text = "\n".join(document_lines(run))
    assert f"**Nothing is decided**: {error}" in text and "| prompt 8, 1 client | " in text


def test_a_cell_with_too_few_rounds_is_named_with_arm_and_reason() -> None:
    out_of_order = {"fails_from": 4}  # after the probe and the warm-up
    servers = StubServers(lambda arm, round_: out_of_order if (arm.name, round_) == ("dense", 1) else {})
    run, error, raw = failed(servers)
    assert error.startswith(
        "too few rounds: prompt 8, 1 client has 1 good rounds of 5 (dense, round 2: 1 of 1 requests"
    )
    assert "HTTP 500: out of order" in error and "at least 5 are needed" in error
    assert all(cell in error for cell in CELLS)
    assert len(run.paired.cells) == 24 and len(raw) == 24 + 6 + 2, "it ends with the round that made it hopeless"


def test_one_round_more_makes_up_for_one_that_was_lost() -> None:
    servers = StubServers(lambda arm, round_: {"fails_from": 4} if (arm.name, round_) == ("dense", 1) else {})
    run, _ = measured(servers, rounds=6)
    assert run.winner is not None
    assert {len(each.deltas) for each in run.verdicts} == {5}
    twice = StubServers(
        lambda arm, round_: {"fails_from": 4} if (arm.name, round_) in (("dense", 1), ("paged", 3)) else {}
    )
    run, error, _ = failed(twice, rounds=6)
    assert "has 2 good rounds of 6 (dense, round 2: " in error and "; paged, round 4: " in error


def test_answers_of_another_length_are_not_compared() -> None:
    short = {"refused_fields": ("ignore_eos",), "answer_tokens": 3}
    _, error, _ = failed(StubServers(lambda arm, round_: short if arm.name == "dense" else {}))
    assert "dense, round 1: 1 of 1 answers have not 4 tokens, but 3" in error


def test_an_arm_whose_warm_up_fails_is_named() -> None:
    _, error, raw = failed(StubServers(lambda arm, round_: {"fails_from": 1} if arm.name == "dense" else {}))
    assert error.startswith("dense, round 1 of 5: warm-up, prompt 8, 2 clients: every request failed: HTTP 500")
    assert [each["type"] for each in raw] == ["head", *["cell"] * 4, "routes", "outcome"]


def test_a_server_that_uses_another_storage_than_its_arm_is_not_measured_for_it() -> None:
    _, error, _ = failed(StubServers(lambda arm, round_: {"storage": "paged"}))
    assert error.startswith("dense, round 1 of 5: its storage is paged, not dense")


def test_a_server_that_does_not_start_is_told_with_its_arm() -> None:
    def start(arm: Arm) -> Any:
        raise EngineFault("octavo serve ended with status 2: octavo: error: 9.0 GB are needed, 2.0 GB are free")

    run, raw = storage_run(), io.StringIO()
    with pytest.raises(
        EngineFault, match=r"^paged, round 1 of 5: octavo serve ended with status 2: .* 2\.0 GB are free"
    ):
        bench_storage(run, raw, Watcher(), start)
    assert [json.loads(line)["type"] for line in raw.getvalue().splitlines()] == ["head", "outcome"]


def test_an_interrupt_leaves_raw_data_that_say_so() -> None:
    def interrupted(arm: Arm, round_: int) -> dict[str, Any]:
        if round_ == 1:
            raise KeyboardInterrupt
        return {}

    run, raw = storage_run(), io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        bench_storage(run, raw, Watcher(), StubServers(interrupted))
    lines = [json.loads(line) for line in raw.getvalue().splitlines()]
    assert len(lines) == 1 + 3 * 5 + 1
    assert lines[-1]["problem"] == "interrupted"
    assert json.loads(json.dumps(run.as_object()))["complete"] is False


def test_too_few_rounds_are_refused_before_a_server_is_started() -> None:
    servers = StubServers()
    with pytest.raises(InvalidRequest, match="rounds is 4; it must be 5 to 1000, or nothing is decided"):
        measured(servers, rounds=4)
    assert servers.started == []


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"prompt_tokens": (0,)}, "prompt tokens is 0"),
        ({"prompt_tokens": (8, 8)}, "the prompt lengths are 8, 8; name each only once"),
        ({"concurrencies": (0, 1)}, "concurrency is 0"),
        ({"concurrencies": (2, 2)}, "the concurrencies are 2, 2"),
        ({"max_tokens": 0}, "max tokens is 0"),
        ({"requests_per_client": 0}, "requests is 0"),
        ({"timeout_s": 0}, "timeout is 0"),
    ],
    ids=str,
)
def test_numbers_that_cannot_be_are_refused(changes: dict[str, Any], fragment: str) -> None:
    with pytest.raises(InvalidRequest, match=fragment):
        measured(StubServers(), **changes)


def test_the_arms_differ_by_storage_alone() -> None:
    arms = storage_run().paired.arms
    commands = [[word for word in arm.command if not word.startswith("--storage")] for arm in arms]
    assert commands[0] == commands[1] == commands[2]
    assert [arm.storage for arm in arms] == ["paged", "dense", "paged"]
    assert arms[0].shown == "octavo serve -m tiny.gguf --storage=paged --parallel=8"


def test_a_plot_shows_deltas_and_the_null_arm(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run, _ = measured(StubServers())
    path = tmp_path / "storage.png"
    plot_verdicts(run.verdicts, "storage", ("paged", "dense"), "output tokens/s", path)
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000
