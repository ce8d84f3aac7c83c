"""`octavo bench regress`: what is saved and read again, what is refused, and both codes in turn over stubs."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.bench import old_source as old_source_module
from octavo.bench import served_arm
from octavo.bench.old_source import clean_commit, old_source
from octavo.bench.percentiles import Spread
from octavo.bench.regress import RegressRun, bench_regress, check_model, regress_arms, save_protocol
from octavo.bench.regress_report import report_lines
from octavo.bench.saved_protocol import VERSION, SavedProtocol, model_digest
from octavo.bench.served_arm import ServedLoad
from octavo.bench.serving import Watcher
from octavo.bench.stamp import commit, environment_stamp
from octavo.environment import child_environment
from octavo.errors import EngineFault, InvalidRequest
from tests.bench.stub_servers import StubServers, steady_run_cell
from tests.cli.conftest import Run

LOAD = ServedLoad((8,), (1, 2), 4, 1, 3, 20)
SLOW = {"slowness": 2.0}
CELLS = [
    "prompt 8, 1 client: output tokens/s",
    "prompt 8, 2 clients: output tokens/s",
    "prompt 8, 1 client: 1 / time to first token",
    "prompt 8, 2 clients: 1 / time to first token",
]


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own times do not count."""
    monkeypatch.setattr(served_arm, "run_cell", steady_run_cell)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"weights")
    return path


def protocol(model: Path, **changes: Any) -> SavedProtocol:
    figures = {name: Spread(3.0, 2.0, 4.0) for name in CELLS}
    saved = SavedProtocol(
        model.name, model_digest(model), ("--parallel=8",), LOAD, 5, "c0ffee" * 6, environment_stamp(), figures
    )
    return replace(saved, **changes)


def regress_run(model: Path, old: dict[str, str] | None = None) -> RegressRun:
    saved = protocol(model)
    return RegressRun(saved, regress_arms(model, saved.flags, saved.load, saved.rounds, old))


def measured(model: Path, servers: StubServers) -> tuple[RegressRun, list[dict[str, Any]]]:
    run, raw = regress_run(model), io.StringIO()
    bench_regress(run, raw, Watcher(), servers)
    return run, [json.loads(line) for line in raw.getvalue().splitlines()]


def slow_arms(*names: str) -> StubServers:
    return StubServers(lambda arm, round_: SLOW if arm.name in names else {})


def test_code_that_became_slower_fails_in_every_figure(model: Path) -> None:
    run, raw = measured(model, slow_arms("now"))
    assert [each.cell for each in run.slower] == CELLS
    assert raw[-1]["slower"] == CELLS
    text = "\n".join(report_lines(run))
    assert text.endswith(f"SLOWER beyond the null spread: {'; '.join(CELLS)}")
    assert "% SLOWER |" in text


def test_code_that_became_faster_does_not_fail(model: Path) -> None:
    run, _ = measured(model, slow_arms("saved commit", "saved commit again"))
    assert run.slower == () and {each.faster for each in run.verdicts} == {"candidate"}
    assert "No slowdown beyond the null spread." in list(report_lines(run))


def test_a_machine_that_is_as_unsteady_as_the_code_is_slow_concludes_no_slowdown(model: Path) -> None:
    run, _ = measured(model, slow_arms("now", "saved commit again"))
    assert run.slower == () and {-each.delta for each in run.verdicts} == {each.null_spread for each in run.verdicts}


def test_both_codes_take_turns_on_fresh_servers_with_the_same_flags(model: Path) -> None:
    old = {"PYTHONPATH": "somewhere"}
    arms = regress_run(model, old).paired.arms
    assert arms[0].command == arms[1].command == arms[2].command
    assert [dict(arm.environment) for arm in arms] == [old, {}, old]
    servers = StubServers()
    measured(model, servers)
    assert servers.started[:6] == [
        *("saved commit", "now", "saved commit again"),
        *("now", "saved commit again", "saved commit"),
    ]


def test_saved_figures_stand_beside_and_are_not_judged(model: Path) -> None:
    run, _ = measured(model, StubServers())
    assert run.same_machine
    lines = list(report_lines(run))
    assert "saved figures are on this machine, but in another run; they are not compared" in lines
    assert sum(line.endswith("| 3.00 (2.00 to 4.00) |") for line in lines) == len(CELLS)
    elsewhere = {**run.saved.environment, "machine": "another"}
    run.saved = replace(run.saved, environment=elsewhere)
    assert "saved figures are on another machine or with other versions; they are not compared" in list(
        report_lines(run)
    )


def test_an_arm_that_dies_concludes_nothing_and_keeps_raw_data(model: Path) -> None:
    servers = StubServers(lambda arm, round_: {"dies_at": 4} if (arm.name, round_) == ("now", 1) else {})
    run, raw = regress_run(model), io.StringIO()
    with pytest.raises(EngineFault, match=r"^now, round 2 of 5: the server died in .*; what was measured is kept$"):
        bench_regress(run, raw, Watcher(), servers)
    lines = [json.loads(line) for line in raw.getvalue().splitlines()]
    assert lines[-1]["complete"] is False and sum(each["type"] == "cell" for each in lines) >= 6
    assert "Nothing is concluded: now, round 2 of 5" in "\n".join(report_lines(run))


def test_a_cell_with_too_few_rounds_concludes_nothing(model: Path) -> None:
    servers = StubServers(lambda arm, round_: {"fails_from": 4} if (arm.name, round_) == ("now", 1) else {})
    with pytest.raises(EngineFault, match=r"has 1 good rounds of 5 \(now, round 2: "):
        measured(model, servers)


def test_what_is_saved_can_be_read_again(model: Path, tmp_path: Path) -> None:
    path, servers = tmp_path / "saved.json", StubServers()
    paired = regress_arms(model, ("--parallel=8",), LOAD, 5)
    saved = save_protocol(path, paired, model, ("--parallel=8",), "c0ffee", None, Watcher(), servers)
    assert servers.started == ["now"] * 5
    assert sorted(saved.figures) == sorted(CELLS)
    assert all(0 < each.low <= each.median <= each.high for each in saved.figures.values())
    read = SavedProtocol.read(path)
    assert read == saved
    assert (read.load, read.commit, read.rounds) == (LOAD, "c0ffee", 5)
    assert read.environment["machine"]


def test_a_round_that_failed_is_not_saved(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    servers = StubServers(lambda arm, round_: {"fails_from": 4} if round_ == 3 else {})
    raw = io.StringIO()
    with pytest.raises(EngineFault, match=r"round 4: \d of \d requests failed: .*; nothing is saved"):
        save_protocol(path, regress_arms(model, (), LOAD, 5), model, (), "c0ffee", raw, Watcher(), servers)
    assert not path.exists()
    head, *cells, outcome = [json.loads(line) for line in raw.getvalue().splitlines()]
    assert (head["type"], head["commit"], head["rounds"]) == ("head", "c0ffee", 5)
    assert sum(each["type"] == "cell" and each["requests"] != [] for each in cells) == 5 * 2
    assert outcome["complete"] is False and "round 4: " in outcome["problem"]


def test_a_server_that_dies_while_a_protocol_is_measured_leaves_the_rounds_before_as_raw_data(
    model: Path, tmp_path: Path
) -> None:
    servers, raw = StubServers(lambda arm, round_: {"dies_at": 4} if round_ == 2 else {}), io.StringIO()
    with pytest.raises(EngineFault, match=r"^now, round 3 of 5: the server died in "):
        save_protocol(tmp_path / "x", regress_arms(model, (), LOAD, 5), model, (), "c0ffee", raw, Watcher(), servers)
    lines = [json.loads(line) for line in raw.getvalue().splitlines()]
    assert [each["round"] for each in lines if each["type"] == "cell"][:4] == [1, 1, 2, 2]
    assert lines[-1]["problem"].startswith("now, round 3 of 5: the server died in ")


def test_a_file_that_exists_is_never_overwritten(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    path.write_text("mine")
    for refused in (lambda: SavedProtocol.check_target(path), lambda: protocol(model).write(path)):
        with pytest.raises(InvalidRequest, match="name another file"):
            refused()
    with pytest.raises(InvalidRequest, match="its directory does not exist"):
        SavedProtocol.check_target(tmp_path / "nowhere" / "x")
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        ("{", "is no saved protocol"),
        ("[]", "is no saved protocol; make one with `octavo bench regress save`"),
        ('{"bench": "serving"}', "is no saved protocol"),
        ({"version": VERSION + 1}, f"has version {VERSION + 1} of the protocol, this is version {VERSION}"),
        ({"version": None}, "has version None of the protocol"),
        ({"load": {}}, "is damaged (KeyError: 'prompt_tokens'); save the protocol anew"),
        ({"flags": 3}, "is damaged (TypeError"),
    ],
    ids=str,
)
def test_a_file_that_cannot_be_compared_with_is_refused(
    model: Path, tmp_path: Path, octavo: Run, content: Any, fragment: str
) -> None:
    path = tmp_path / "saved.json"
    path.write_text(content if isinstance(content, str) else json.dumps({**protocol(model).as_object(), **content}))
    done = octavo("bench", "regress", "run", path, "-m", model)
    assert done.status == 2 and fragment in done.error
    assert fragment not in octavo("bench", "regress", "run", tmp_path / "absent.json").error


def test_another_model_of_the_same_name_is_refused(model: Path, tmp_path: Path) -> None:
    saved = protocol(model)
    check_model(saved, model)
    model.write_bytes(b"other weights")
    with pytest.raises(
        InvalidRequest, match=r"tiny\.gguf is not the model tiny\.gguf that the protocol was saved with"
    ):
        check_model(saved, model)


def test_the_digest_of_a_directory_is_of_its_names_and_contents(tmp_path: Path) -> None:
    def digest(**files: str) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        return model_digest(folder)

    assert digest(a="1", b="2") == digest(b="2", a="1")
    assert len({digest(a="1", b="2"), digest(a="2", b="1"), digest(a="1"), digest(a="12"), digest(c="1", b="2")}) == 5


def git(root: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(root), *settings, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository whose package says `then` in its only commit."""
    root = tmp_path / "checkout"
    (root / "src" / "octavo").mkdir(parents=True)
    (root / "src" / "octavo" / "__init__.py").write_text("said = 'then'\n")
    git(root.parent, "init", "-q", str(root))
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "then")
    return root


def test_the_saved_commits_code_is_what_runs_although_the_checkout_has_moved_on(checkout: Path) -> None:
    then = clean_commit(checkout)
    package = checkout / "src" / "octavo" / "__init__.py"
    package.write_text("said = 'now'\n")
    git(checkout, "commit", "-q", "-a", "-m", "now")
    with old_source(checkout, then) as environment:
        command = [sys.executable, "-P", "-c", "import octavo; print(octavo.said)"]
        given = {**child_environment(), **environment}
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
        folder = Path(environment["PYTHONPATH"].partition(":")[0])
        assert folder.is_dir()
    assert done.stdout == "then\n"
    assert not folder.exists()
    assert package.read_text() == "said = 'now'\n" and git(checkout, "status", "--porcelain") == ""


def test_a_commit_that_the_checkout_lacks_is_refused(checkout: Path) -> None:
    with (
        pytest.raises(InvalidRequest, match="the code of commit 0123abcd is not at hand"),
        old_source(checkout, "0123abcd"),
    ):
        raise AssertionError


def test_code_that_could_not_be_brought_back_is_not_saved(checkout: Path, tmp_path: Path) -> None:
    assert clean_commit(checkout) == commit(checkout)
    (checkout / "src" / "octavo" / "__init__.py").write_text("said = 'changed'\n")
    with pytest.raises(InvalidRequest, match="the checkout has changes, which could not be brought back later"):
        clean_commit(checkout)
    with pytest.raises(InvalidRequest, match="runs from no git checkout"):
        clean_commit(tmp_path)


def test_a_package_that_comes_before_the_saved_one_is_noticed(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_source_module, "_PACKAGE", ".")
    (checkout / "src").rename(checkout / "elsewhere")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-q", "-m", "moved")
    with pytest.raises(EngineFault, match="would not be what runs: Python imports"):
        old_source(checkout, clean_commit(checkout)).__enter__()


def test_the_command_fails_where_now_is_slower_and_prints_what_it_found(
    model: Path, tmp_path: Path, octavo: Run, monkeypatch: pytest.MonkeyPatch, checkout: Path
) -> None:
    servers = slow_arms("now")
    monkeypatch.setattr(bench_regress, "__defaults__", (servers,))
    monkeypatch.setattr("octavo.bench.old_source.checkout", lambda: checkout)
    path, out = tmp_path / "saved.json", tmp_path / "raw.jsonl"
    protocol(model, commit=clean_commit(checkout)).write(path)
    done = octavo("bench", "regress", "run", path, "-m", model, "--json", "--out", out)
    assert done.status == 1
    found = json.loads(done.out)
    assert found["complete"] and found["slower"] == CELLS
    assert done.err.splitlines()[-1] == "octavo: slower than the saved commit"
    assert [json.loads(line)["type"] for line in out.read_text().splitlines()][-1] == "outcome"
    again = octavo("bench", "regress", "run", path, "-m", model, "--out", out)
    assert again.status == 2 and "cannot be written (File exists); name another file" in again.error


def test_the_command_saves_what_it_measured_with_the_commit_and_the_flags(
    model: Path, tmp_path: Path, octavo: Run, monkeypatch: pytest.MonkeyPatch, checkout: Path
) -> None:
    servers = StubServers()
    monkeypatch.setattr(save_protocol, "__defaults__", (servers,))
    monkeypatch.setattr("octavo.bench.old_source.checkout", lambda: checkout)
    path = tmp_path / "saved.json"
    small = ("--prompt-tokens", "8", "--concurrency", "1,2", "--max-tokens", 4, "--requests", 1, "--parallel", 2)
    raw = tmp_path / "raw.jsonl"
    done = octavo("bench", "regress", "save", path, "-m", model, *small, "--threads", 1, "--out", raw)
    assert done.status == 0, done.err
    assert json.loads(raw.read_text().splitlines()[-1]) == {"type": "outcome", "complete": True, "problem": None}
    assert servers.started == ["now"] * 5
    saved = SavedProtocol.read(path)
    assert (saved.commit, saved.flags, saved.rounds) == (commit(checkout), ("--parallel=2", "--threads=1"), 5)
    head, *rows = done.out.splitlines()
    assert head == f"saved {path}: commit {saved.commit[:12]}, tiny.gguf"
    assert rows == [f"{name}   {spread}" for name, spread in saved.figures.items()] and len(rows) == len(CELLS)
    again = octavo("bench", "regress", "save", path, "-m", model, *small)
    assert again.status == 2 and "exists already; name another file" in again.error
    few = octavo("bench", "regress", "save", tmp_path / "other.json", "-m", model, "--rounds", 4)
    assert few.status == 2 and "rounds is 4; it must be 5 to 1000" in few.error
    assert servers.started == ["now"] * 5, "what is refused is not measured"
