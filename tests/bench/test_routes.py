"""Fused against gathered decode: what the two arms differ by, what is compared, and what cannot be."""

from __future__ import annotations

import json

import pytest

from octavo.bench import routes
from octavo.bench.engine_decode import load_random
from octavo.bench.kernel_loads import parse_loads
from octavo.bench.mock_tokenizer import mock_tokenizer
from octavo.bench.routes import (
    RouteCell,
    RouteRun,
    bench_in_engine,
    bench_through_servers,
    cell_line,
    fewer_clients,
    random_server,
    report_lines,
    served_config,
    through_of,
)
from octavo.bench.served_decode import ServedDecode
from octavo.errors import EngineFault, InvalidRequest
from octavo.kernels.cpu import library
from octavo.parity.server_process import ServedProcess
from tests.bench.test_engine_decode import CONFIG, ON_CPU


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": 700}))
    return tmp_path


def run_of(through, loads="2x30,1x9", rounds=2):
    return RouteRun("a model", through_of(through), parse_loads(loads), 12, rounds, ON_CPU)


@pytest.mark.skipif(library.load().functions is None, reason="no compiled kernels: both arms would gather")
def test_both_arms_are_measured_in_each_round_by_their_own_route(directory):
    run, cells = run_of("engine", rounds=3), []
    bench_in_engine(run, load_random(directory, ON_CPU), cells.append)
    assert [cell.load.name for cell in cells] == ["2x30", "1x9"]
    for cell in cells:
        assert {name: len(speeds) for name, speeds in cell.speeds.items()} == {"fused": 3, "gather": 3}
        assert min(min(speeds) for speeds in cell.speeds.values()) > 0
    written = json.loads(json.dumps(run.as_object()))["cells"]
    assert [(cell["load"], cell["through"]) for cell in written] == [("2x30", "engine"), ("1x9", "engine")]


def test_an_arm_that_took_the_others_route_is_no_comparison(directory, monkeypatch):
    monkeypatch.setattr(routes, "SWITCHES", {"fused": routes.SWITCHES["gather"], "gather": routes.SWITCHES["gather"]})
    run = run_of("engine")
    with pytest.raises(EngineFault, match="the fused arm took gather"):
        bench_in_engine(run, load_random(directory, ON_CPU), lambda cell: None)
    found = run.as_object()
    assert (found["complete"], len(found["cells"])) == (False, 1)
    assert found["problem"].startswith("2x30: the fused arm took gather")
    assert next(report_lines(run)).startswith("INCOMPLETE: 2x30: the fused arm took gather")


def test_a_server_of_random_weights_answers_every_token_of_every_client(directory):
    run = run_of("server", "3x30,1x100")
    run.new_tokens = 40
    with ServedProcess(random_server(directory)(served_config(run))) as server:
        served = ServedDecode(server.url)
        for load in run.loads:
            assert served.decode(load, 40) > 0
        assert sum(served.routes().values()) > 160
        with pytest.raises(EngineFault, match=r"^111 tokens for 500$"):
            served.decode(run.loads[0], 500)  # beyond the context


def test_servers_differ_by_the_kill_switch_and_are_asked_in_turn(monkeypatch):
    asked, environments = [], []

    class Process:
        def __init__(self, command, environment):
            environments.append(environment["OCTAVO_PAGED_ATTENTION_NATIVE"])
            self.url = f"http://localhost/{'gather' if environments[-1] else 'fused'}"

        def __enter__(self):
            return self

        def __exit__(self, *error):
            asked.append("ended")

    class Served:
        def __init__(self, url):
            self.name = url.rpartition("/")[2]

        def decode(self, load, new_tokens):
            asked.append((self.name, new_tokens))
            return 30.0 if self.name == "fused" else 20.0

        def routes(self):
            return {"fused_decode" if self.name == "fused" else "gather": 1}

    monkeypatch.setattr(routes, "ServedProcess", Process)
    monkeypatch.setattr(routes, "ServedDecode", Served)
    run = run_of("server", "1x9")
    bench_through_servers(run, lambda config: ["serve"], lambda cell: None)
    assert environments == ["", "0"]
    warm = [("fused", 8), ("fused", 8), ("gather", 8), ("gather", 8)]
    assert asked == [*warm, ("fused", 12), ("gather", 12), ("gather", 12), ("fused", 12), "ended", "ended"]
    (cell,) = run.cells
    assert (run.outcome.complete, run.as_object()["problem"]) == (True, None)
    assert cell.ratio.median == 1.5
    assert "1.50" in cell_line(cell) and list(report_lines(run))[-1].endswith("| 1.50 (1.50 to 1.50) |")


def test_a_server_has_met_every_number_of_clients_that_a_step_may_have_before_it_is_timed(monkeypatch):
    asked = []

    class Process:
        def __init__(self, command, environment):
            self.url = "http://localhost"

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

    class Served:
        def __init__(self, url):
            pass

        def decode(self, load, new_tokens):
            asked.append((len(load.lengths), new_tokens))
            return 1.0

        def routes(self):
            return {}

    monkeypatch.setattr(routes, "ServedProcess", Process)
    monkeypatch.setattr(routes, "ServedDecode", Served)
    bench_through_servers(run_of("server", "5x9", rounds=1), lambda config: ["serve"], lambda cell: None)
    assert asked == [(count, 8) for count in (1, 2, 4, 5) for _ in range(4)] + [(5, 12)] * 2
    assert [len(load.lengths) for load in fewer_clients(parse_loads("4x9")[0])] == [1, 2]


def test_a_ratio_is_of_what_one_round_gave():
    cell = RouteCell(parse_loads("1x9")[0], {"fused": [10.0, 40.0, 90.0], "gather": [10.0, 20.0, 30.0]})
    assert (cell.ratio.low, cell.ratio.median, cell.ratio.high) == (1.0, 2.0, 3.0)


def test_a_server_has_room_for_all_loads_at_once():
    config = served_config(run_of("server", "4x100,1x300"))
    assert (config.max_num_seqs, config.max_context) == (4, 313)
    assert config.num_kv_blocks * config.block_size >= 4 * 112 + 312


def test_what_can_be_measured_through_is_named_in_the_refusal():
    with pytest.raises(InvalidRequest, match="it is engine or server"):
        through_of("post")


def test_every_token_of_a_padded_vocabulary_has_a_text_of_its_own():
    tokenizer = mock_tokenizer(700)
    assert tokenizer.vocab_size == 700
    texts = [tokenizer.decode([index]) for index in range(300, 700)]
    assert len(set(texts)) == 400 and all(texts)
    assert tokenizer.encode("th[300]", add_special_tokens=False)[0] < 300
