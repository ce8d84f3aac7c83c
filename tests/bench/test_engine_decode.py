"""Decode speed over random weights: what is counted, and that a config is all it takes."""

from __future__ import annotations

import json

import pytest
import torch

from octavo.bench import engine_decode
from octavo.bench.engine_decode import EngineDecode, EngineDecodeRun, bench_engine_decode, cell_line, load_random
from octavo.bench.kernel_loads import parse_loads
from octavo.bench.random_model import RandomCheckpoint
from octavo.config import EngineConfig
from octavo.errors import EngineFault, LoadError

CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "initializer_range": 0.05,
    "eos_token_id": 7,
}
ON_CPU = EngineConfig(device="cpu", dtype="float32", threads=1)


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_weights_have_the_configs_shapes_and_spread_and_differ_between_layers(directory):
    checkpoint = RandomCheckpoint.open(directory)
    embedding = checkpoint.tensor("model.embed_tokens.weight").dequantize()
    assert embedding.shape == (300, 32)
    assert abs(embedding.std() - 0.05) < 0.005
    gate, up = (checkpoint.tensor(f"model.layers.0.mlp.{name}_proj.weight") for name in ("gate", "up"))
    assert not torch.equal(gate.dequantize(), up.dequantize())
    assert torch.equal(gate.dequantize(), gate.dequantize())
    assert checkpoint.tensor("model.norm.weight").dequantize().tolist() == [1.0] * 32


def test_a_directory_without_a_config_is_refused(tmp_path):
    with pytest.raises(LoadError, match="no such file"):
        RandomCheckpoint.open(tmp_path)


def test_steps_are_counted_while_every_sequence_decodes(directory):
    loaded = load_random(directory, ON_CPU)
    (load,) = parse_loads("20+2x5")
    engine = EngineDecode(loaded, load, ON_CPU, 10)
    for _ in range(2):
        tokens, steps, seconds = engine.run(10)
        assert (tokens, steps) == (27, 9)  # after the first token of each, which one step gives all of them
        assert seconds > 0


def test_blocks_are_read_even_by_a_model_that_would_be_kept_dense_for_one_sequence(directory):
    one = EngineConfig(device="cpu", dtype="float32", threads=1, max_num_seqs=1, storage="dense")
    engine = EngineDecode(load_random(directory, one), parse_loads("3x40")[0], one, 10)
    for _ in range(2):
        tokens, steps, _ = engine.run(10)
        assert (tokens, steps) == (27, 9)  # all begin at once, beside what is cached of the run before
    assert "dense" not in engine.core.runner.cache.routes.by_route()


def test_a_run_has_a_cell_for_each_load_and_tells_when_the_first_token_came(directory):
    run = EngineDecodeRun(directory, parse_loads("1x9,2x4"), 6, 2, ON_CPU)
    lines = []
    bench_engine_decode(run, lambda cell: lines.append(cell_line(cell)))
    assert [line.split()[0] for line in lines] == ["1x9", "2x4"]
    written = json.loads(json.dumps(run.as_object()))
    assert [cell["load"] for cell in written["cells"]] == ["1x9", "2x4"]
    for cell in written["cells"]:
        speed = cell["tokens_per_s"]
        assert 0 < speed["low"] <= speed["median"] <= speed["high"]
    assert written["first_token_s"] is None or written["first_token_s"] > 0


@pytest.mark.parametrize("error", [EngineFault("no room"), KeyboardInterrupt()])
def test_loads_before_a_failure_are_kept_and_the_run_says_that_it_is_not_whole(
    octavo, directory, monkeypatch, error
) -> None:
    class Engine(EngineDecode):
        def run(self, *given, **named):
            if len(self._prompts) == 2:
                raise error
            return super().run(*given, **named)

    monkeypatch.setattr(engine_decode, "EngineDecode", Engine)
    small = ("--loads", "1x9,2x4", "--new-tokens", 4, "--repeats", 1, "--device", "cpu", "--config", directory)
    done = octavo("bench", "decode", "--random-weights", *small, "--json")
    said = "2x4: no room" if isinstance(error, EngineFault) else "2x4: interrupted"
    assert done.status == (1 if isinstance(error, EngineFault) else 130)
    found = json.loads(done.out)
    assert (found["complete"], found["problem"]) == (False, said)
    assert [cell["load"] for cell in found["cells"]] == ["1x9"]
    first, head, *_ = octavo("bench", "decode", "--random-weights", *small).out.splitlines()
    assert first == f"INCOMPLETE: {said}"
    assert "octavo commit" in head and f"torch {torch.__version__}" in head
