"""At start-up: a codec that cannot hold a model's heads is refused, one that is known to change tokens is named."""

from __future__ import annotations

import logging

import pytest

from octavo.cache.spec import LayerSpec
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import load_model, plan_model
from octavo.errors import InvalidRequest
from octavo.llm import LLM
from octavo.sampling_params import SamplingParams
from octavo.storage.codecs import CODECS, check_heads, warn_of_losses
from octavo.storage.codecs.known_losses import KNOWN_LOSSES
from tests.tiny_models import save_hf, save_tokenizer


def full(k_dim, v_dim):
    return LayerSpec("full", 4, 2, k_dim, v_dim, 0.25)


def pair(k, v):
    return CODECS[k], CODECS[v]


def test_a_codec_that_cannot_hold_the_heads_is_refused_with_those_that_can():
    layout = [full(64, 64), full(64, 40)]
    with pytest.raises(
        InvalidRequest, match=r"q4_0 for v .*layer 1 .*40 elements.*choose one of auto, f32, f16, bf16$"
    ):
        check_heads(pair("q8_0", "q4_0"), layout)
    with pytest.raises(InvalidRequest, match=r"turbo4 for k .*layer 0 .*24 elements.*choose one of"):
        check_heads(pair("turbo4", "f16"), [full(24, 64)])


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256, 48, 512])
def test_every_codec_takes_the_usual_head_sizes(name, dim):
    check_heads(pair(name, name), [full(dim, dim)])


def test_floating_codecs_take_any_head_size():
    check_heads(pair("f16", "bf16"), [full(24, 33)])


def test_a_model_is_refused_when_it_is_planned_before_any_weight_is_read(tmp_path):
    save_hf(tmp_path, "llama", hidden_size=96, num_attention_heads=4)
    config = EngineConfig(kv_dtype="k=f16,v=q8_0", device="cpu", threads=1)
    with pytest.raises(InvalidRequest, match=r"q8_0 for v .*24 elements"):
        plan_model(tmp_path, config)
    narrow = EngineConfig(device="cpu", threads=1, dtype="bfloat16")  # `auto` is float32 on some processors
    assert plan_model(tmp_path, narrow).codecs == pair("f16", "f16")


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("choice", ["auto", "q8_0", "k=q4_0,v=f16", "turbo4", "k=f16,v=q8_0", "k=bf16,v=q4_0"])
def test_keys_of_qwen2_in_fewer_than_16_bits_are_warned_about_once(tmp_path, caplog, family, choice):
    save_hf(tmp_path, family)
    with caplog.at_level(logging.WARNING, logger="octavo"):
        plan = plan_model(tmp_path, EngineConfig(kv_dtype=choice, device="cpu", threads=1))
    warnings = [record.getMessage() for record in caplog.records if "kv dtype" in record.getMessage()]
    if family == "qwen2" and plan.codecs[0].name in ("q8_0", "q4_0", "turbo4"):
        assert len(warnings) == 1
        assert plan.codecs[0].name in warnings[0]
        assert "qwen2" in warnings[0]
        assert "--kv-dtype k=f16,v=q8_0" in warnings[0]
    else:
        assert warnings == []


def test_what_is_said_to_survive_is_not_warned_about(caplog):
    for model_type, known in KNOWN_LOSSES.items():
        k, v = (part.split("=")[1] for part in known.survives.split(","))
        with caplog.at_level(logging.WARNING, logger="octavo"):
            warn_of_losses(pair(k, v), model_type)
    assert caplog.records == []


@pytest.mark.parametrize("storage", ["dense", "paged"])
@pytest.mark.parametrize("choice", ["q8_0", "k=q8_0,v=q4_0", "turbo4", "k=f16,v=q8_0"])
@pytest.mark.parametrize("head_dim", [32, 80])
def test_an_engine_takes_the_kv_memory_that_its_ledger_says(tmp_path, choice, storage, head_dim):
    save_hf(tmp_path, "gemma3", head_dim=head_dim)
    save_tokenizer(tmp_path)
    config = EngineConfig(
        kv_dtype=choice, storage=storage, max_num_seqs=2, max_context=100, device="cpu", dtype="bfloat16", threads=1
    )
    core = EngineCore(load_model(plan_model(tmp_path, config), config), config)
    stores = [rows for layer in core.runner.cache._layers.values() for rows in (layer.blocks, layer.ring) if rows]
    planes = [plane for rows in stores for store in (rows.k, rows.v) for plane in store.planes().values()]
    memories = {plane.untyped_storage().data_ptr(): plane.untyped_storage().nbytes() for plane in planes}
    assert core.ledger.kv_bytes - core.ledger.snapshot_bytes == sum(memories.values())
    k, v = core.loaded.plan.codecs
    for group in core.ledger.groups:
        assert group.bytes_per_token == group.num_layers * 2 * (k.bytes_per_row(head_dim) + v.bytes_per_row(head_dim))
    assert len(LLM.over(core).generate("The harbour", SamplingParams(max_tokens=4, ignore_eos=True))[0].outputs) == 1
