"""A load of requests over random weights: which they are, what is counted, and what is refused."""

from __future__ import annotations

import json

import pytest

from octavo.bench.engine_decode import EngineDecodeRun, bench_engine_decode, load_random
from octavo.bench.engine_requests import RequestEngine, RequestLoad, request_line
from octavo.bench.kernel_loads import parse_loads
from octavo.bench.stream_limit import kv_bytes, weight_bytes
from octavo.config import EngineConfig
from octavo.errors import InvalidRequest
from tests.bench.test_engine_decode import CONFIG, ON_CPU


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_prompts_and_answers_have_lengths_between_the_given_ones_and_the_same_ones_each_time():
    load = RequestLoad.of(200, "5-40")
    lengths = load.lengths()
    assert load.name == "200 requests of 5-40"
    assert lengths == load.lengths() and len(lengths) == 200
    assert {min(side) for side in zip(*lengths, strict=True)} == {5}
    assert {max(side) for side in zip(*lengths, strict=True)} == {40}
    assert sum(prompt == answer for prompt, answer in lengths) < 20


@pytest.mark.parametrize("given", [(0, "1-2"), (3, "9-2"), (3, "0-4"), (3, "7")])
def test_a_load_that_cannot_be_is_refused(given):
    with pytest.raises(InvalidRequest, match=r"such as 100-1024|at least 1"):
        RequestLoad.of(*given)


def test_every_request_is_answered_to_its_last_token_by_prompts_that_no_cache_knows(directory):
    load = RequestLoad.of(6, "20-40")
    engine = RequestEngine(load_random(directory, ON_CPU), load, ON_CPU)
    for _ in range(2):
        done = engine.run()
        assert done.output_tokens == sum(answer for _, answer in load.lengths())
        assert 0 < done.first_token_s < done.seconds
        assert max(answer for _, answer in load.lengths()) <= done.steps < done.output_tokens
    assert engine.core.pool.prefix.counters.hit_tokens == 0


def test_requests_come_after_the_loads_and_in_their_records(directory):
    run = EngineDecodeRun(directory, parse_loads("1x9"), 4, 2, ON_CPU, RequestLoad.of(3, "2-5"))
    lines = []
    bench_engine_decode(run, lambda cell: None, lambda cell: lines.append(request_line(cell)))
    assert len(lines) == 1 and lines[0].startswith("3 requests of 2-5")
    first, last = json.loads(json.dumps(run.as_object()))["cells"]
    assert (first["load"], last["load"]) == ("1x9", "3 requests of 2-5")
    assert last["tokens_per_s"]["low"] <= last["output_tokens"] / last["seconds"]["median"]
    assert first["shape"] == last["shape"] == directory.name


def test_requests_alone_tell_when_the_first_token_came(directory):
    run = EngineDecodeRun(directory, (), 4, 1, ON_CPU, RequestLoad.of(2, "2-5"))
    bench_engine_decode(run, lambda cell: None)
    assert run.cells == [] and run.request_cell is not None
    assert run.first_token_s is None or run.first_token_s > 0


def test_a_step_reads_the_weights_once_and_the_kv_of_every_token(directory):
    loaded = load_random(directory, EngineConfig(device="cpu", dtype="bfloat16", threads=1))
    per_token = 2 * 1 * 16 * 2  # K and V, one head of 16, two bytes each
    assert kv_bytes(loaded, [100, 20.5]) == int(120.5 * per_token)
    tied = weight_bytes(loaded)
    (directory / "config.json").write_text(json.dumps(CONFIG | {"tie_word_embeddings": False}))
    assert weight_bytes(load_random(directory, ON_CPU)) == tied  # the embedding is read a row at a time
