"""Random weights: the same values wherever they are computed, and never on the host where they go elsewhere."""

from __future__ import annotations

import json

import pytest
import torch

from octavo.bench.random_model import RandomCheckpoint, RandomTensor
from octavo.layers.linear.dense_route import DenseRoute, stack

CPU = torch.device("cpu")
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}


@pytest.fixture
def shards(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    checkpoint = RandomCheckpoint.open(tmp_path)
    return [checkpoint.tensor(f"model.layers.1.self_attn.{name}_proj.weight") for name in "qkv"]


def test_stacked_shards_are_their_values_one_below_the_other(shards):
    whole = stack(shards, torch.bfloat16)
    assert torch.equal(whole, torch.cat([shard.dequantize(torch.bfloat16) for shard in shards]))
    assert whole.float().std() == pytest.approx(0.02, rel=0.1)


def test_weights_for_a_device_are_never_computed_on_the_host(shards, monkeypatch):
    monkeypatch.setattr(RandomTensor, "dequantize", lambda *_: pytest.fail("computed on the host"))
    for some in (shards, shards[:1]):
        packed = DenseRoute(torch.bfloat16, torch.device("meta")).pack(some)
        assert packed.weight.device.type == "meta"
        assert packed.weight.shape == (sum(shard.shape[0] for shard in some), 64)


def test_tensors_differ_and_come_again_in_another_checkpoint(shards, tmp_path):
    again = RandomCheckpoint.open(tmp_path).tensor(shards[1].name)
    assert torch.equal(again.dequantize(), shards[1].dequantize())
    assert not torch.equal(shards[2].dequantize(), shards[1].dequantize())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_computes_the_same_values(shards):
    on_gpu = stack(shards, torch.bfloat16, torch.device("cuda"))
    assert torch.equal(on_gpu.cpu(), stack(shards, torch.bfloat16))
