"""`octavo bench serving`: what it prints, where it keeps raw data, how it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.bench.stub_endpoint import serving_stub
from tests.cli.conftest import Run

SMALL = ("--concurrency", "1,2", "--prompt-tokens", 16, "--max-tokens", 4, "--rounds", 2, "--requests", 1)


def test_json_is_one_object_with_environment_protocol_cells_and_rounds(octavo: Run):
    with serving_stub() as stub:
        done = octavo("bench", "serving", "--url", stub.url, *SMALL, "--seed", 3, "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert (found["complete"], found["problem"], found["protocol"]["seed"]) == (True, None, 3)
    assert found["environment"]["versions"]["octavo"]
    assert found["endpoint"]["model"] == "stub-model"
    assert found["prompts"] == "token ids from the endpoint's /tokenize"
    assert [each["concurrency"] for each in found["cells"]] == [1, 2]
    assert len(found["rounds"]) == 4
    for cell in found["cells"]:
        assert 0 < cell["output_tps"]["low"] <= cell["output_tps"]["median"] <= cell["output_tps"]["high"]
        for name in ("ttft_s", "itl_s", "tpot_s"):
            quantiles = [cell[name][each]["median"] for each in ("p50", "p95", "p99")]
            assert quantiles == sorted(quantiles)


def test_the_table_says_what_was_measured_and_how_lengths_are_exact(octavo: Run):
    with serving_stub(takes_ids=False, refused_fields=("ignore_eos",), answer_tokens=3) as stub:
        done = octavo("bench", "serving", "--url", f"{stub.url}/v1", *SMALL)
    assert done.status == 0, done.err
    assert f"{stub.url}/v1/completions, model stub-model" in done.out
    assert "prompts: text, counted by the endpoint's usage.prompt_tokens; usage confirms 6 of 6 lengths" in done.out
    assert "ignore_eos is refused here" in done.out
    assert "answers have 3 to 3 tokens, not all that were asked for" in done.out
    assert "concurrency 2: 4 completed, 0 cancelled, 0 failed, 2 good rounds" in done.out
    assert done.err.splitlines()[:2] == ["octavo: warm-up, concurrency 2", "octavo: round 1 of 2, concurrency 1"]


def test_two_runs_without_a_seed_send_different_prompts(octavo: Run):
    with serving_stub() as stub:
        for _ in range(2):
            assert octavo("bench", "serving", "--url", stub.url, *SMALL).status == 0
        prompts = [tuple(each) for each in stub.prompts() if isinstance(each, list)]
    assert len(set(prompts)) == len(prompts)


def test_an_endpoint_that_dies_leaves_json_and_raw_data_and_a_failing_status(octavo: Run, tmp_path: Path):
    raw = tmp_path / "raw.jsonl"
    with serving_stub(dies_at=5) as stub:  # 1 probe, 2 for warm-up, 1 of the first cell
        done = octavo("bench", "serving", "--url", stub.url, *SMALL, "--json", "--raw-data", raw)
    assert done.status == 1
    found = json.loads(done.out)
    assert not found["complete"]
    assert done.err.splitlines()[-1] == f"octavo: error: {found['problem']}"
    assert "died in round 1 of 2, concurrency 2" in found["problem"]
    assert [json.loads(line)["concurrency"] for line in raw.read_text().splitlines()] == [1, 2, 2]


def test_a_table_of_a_run_that_failed_begins_with_the_reason(octavo: Run):
    with serving_stub(fails_from=6) as stub:
        done = octavo("bench", "serving", "--url", stub.url, *SMALL)
    assert done.status == 1
    assert done.out.startswith("INCOMPLETE: too few rounds: concurrency 1 has 1 good rounds of 2 (HTTP 500")
    assert "3 requests failed: HTTP 500: out of order" in done.out


def test_an_interrupt_loses_nothing_that_was_measured(octavo: Run, monkeypatch: pytest.MonkeyPatch):
    from octavo.bench import serving

    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(serving, "check_rounds", interrupted)
    with serving_stub() as stub:
        done = octavo("bench", "serving", "--url", stub.url, *SMALL, "--json")
    assert done.status == 130
    found = json.loads(done.out)
    assert (found["complete"], found["problem"], len(found["rounds"])) == (False, "interrupted", 4)


def test_a_plot_is_a_png_file(octavo: Run, tmp_path: Path):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "serving.png"
    with serving_stub() as stub:
        done = octavo("bench", "serving", "--url", stub.url, *SMALL, "--plot", plot)
    assert done.status == 0, done.err
    assert plot.read_bytes().startswith(b"\x89PNG") and plot.stat().st_size > 5_000


def test_a_plot_without_matplotlib_is_refused_before_anything_is_sent(octavo: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = octavo("bench", "serving", "--url", "http://localhost:1", "--plot", "x.png")
    assert done.status == 2
    assert "--plot needs matplotlib, which is not installed; pip install 'octavo[bench]'" in done.error


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("--concurrency", "1,x"), "the concurrency is '1,x'; give numbers of clients such as 1,4,8"),
        (("--concurrency", ""), "the concurrency is ''"),
        (("--mix", "burst"), "the mix is 'burst'"),
        (("--api", "responses"), "the api is 'responses'; it is auto, completions or chat"),
        (("--plot", "x.svg"), "give a file that ends with .png"),
        (("--plot", "nowhere/x.png"), "its directory does not exist"),
        (("--raw-data", "nowhere/x"), "cannot be written"),
        (("--tokenizer", "nowhere.gguf"), "nowhere.gguf"),
        (("--rounds", "0"), "rounds is 0"),
        (("--url", "ftp://x"), "the url is 'ftp://x'"),
        ((), "localhost:1 cannot be reached"),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_line(octavo: Run, arguments, fragment):
    pytest.importorskip("matplotlib")
    done = octavo("bench", "serving", "--url", "http://localhost:1", *arguments)
    assert done.status == 2
    assert fragment in done.error
