"""config.json in its old and new forms gives what transformers makes of it; anything unknown is refused (R039)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from tiny_models import FAMILIES, tiny_config

from octavo.errors import LoadError
from octavo.models.config import ModelConfig, RopeScaling
from octavo.models.loaders.hf_config import model_config

SHAPE: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def read(model_type: str, generation: dict[str, Any] | None = None, **settings: Any) -> ModelConfig:
    config = SHAPE | {"model_type": model_type} | settings
    return model_config(Path("config.json"), config, generation or {}, 1000, has_lm_head=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_written_configuration_has_the_values_that_transformers_uses(family: str) -> None:
    theirs = tiny_config(family)
    ours = model_config(Path("config.json"), theirs.to_dict(), {}, 1000, has_lm_head=True)
    for name in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "rms_norm_eps",
        "tie_word_embeddings",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.model_type == {"mistral": "llama"}.get(family, theirs.model_type)
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
    assert ours.eos_token_ids == (theirs.eos_token_id,)
    rope = theirs.rope_parameters
    assert ours.rope_theta == rope.get("full_attention", rope)["rope_theta"]
    assert ours.rope_local_theta == (rope["sliding_attention"]["rope_theta"] if family == "gemma3" else None)
    assert ours.hidden_act == ("gelu_tanh" if family == "gemma3" else "silu")


@pytest.mark.parametrize(
    ("model_type", "config_class"),
    [
        ("llama", transformers.LlamaConfig),
        ("mistral", transformers.MistralConfig),
        ("qwen2", transformers.Qwen2Config),
        ("qwen3", transformers.Qwen3Config),
        ("gemma3_text", transformers.Gemma3TextConfig),
    ],
)
def test_missing_keys_take_the_values_that_transformers_gives_them(model_type: str, config_class: Any) -> None:
    settings = SHAPE | {"num_attention_heads": 32}
    if model_type == "gemma3_text":
        del settings["vocab_size"], settings["num_attention_heads"]
    theirs = config_class(**settings)
    ours = model_config(Path("c"), settings | {"model_type": model_type}, {}, 1000, has_lm_head=True)
    assert ours.vocab_size == theirs.vocab_size
    assert ours.num_attention_heads == theirs.num_attention_heads
    assert ours.num_key_value_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 64 // 32)
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.sliding_window == getattr(theirs, "sliding_window", None)
    if model_type == "gemma3_text":
        assert ours.query_pre_attn_scalar == theirs.query_pre_attn_scalar
        assert list(ours.layer_types) == theirs.layer_types
        assert ours.rope_theta == theirs.rope_parameters["full_attention"]["rope_theta"]
        assert ours.rope_local_theta == theirs.rope_parameters["sliding_attention"]["rope_theta"]


@pytest.mark.parametrize("key", ["rope_type", "type"])
@pytest.mark.parametrize("form", ["rope_scaling", "rope_parameters"])
def test_llama3_scaling_is_read_under_every_key_it_ever_had(key: str, form: str) -> None:
    block = LLAMA3 | {key: "llama3"}
    settings = (
        {"rope_scaling": block, "rope_theta": 5e5} if form == "rope_scaling" else {form: block | {"rope_theta": 5e5}}
    )
    config = read("llama", max_position_embeddings=131_072, **settings)
    assert config.rope_theta == 5e5
    assert config.rope_scaling == RopeScaling(
        kind="llama3",
        factor=32.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )


def test_yarn_and_linear_scaling_keep_their_constants() -> None:
    block = {
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32_768,
        "beta_fast": 16,
        "attention_factor": 0.75,
        "truncate": False,
    }
    assert read("qwen2", rope_scaling=block, rope_theta=1e6, num_key_value_heads=2).rope_scaling == RopeScaling(
        kind="yarn",
        factor=4.0,
        original_max_position_embeddings=32_768,
        beta_fast=16.0,
        attention_factor=0.75,
        truncate=False,
    )
    assert read("llama", rope_scaling={"type": "linear", "factor": 2.0}).rope_scaling == RopeScaling("linear", 2.0)


def test_gemma_scales_full_layers_only_and_keeps_its_local_base() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    old = read("gemma3_text", rope_theta=1e6, rope_local_base_freq=2e4, rope_scaling=scaling)
    nested = {
        "full_attention": scaling | {"rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    assert read("gemma3_text", rope_parameters=nested) == old
    assert (old.rope_theta, old.rope_local_theta) == (1e6, 2e4)
    assert old.rope_scaling == RopeScaling(kind="linear", factor=8.0)


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "mrope", "ntk-by-parts"])
def test_an_unknown_scaling_kind_is_refused_by_name(kind: str) -> None:
    with pytest.raises(LoadError, match=rf"rope scaling '{kind}' is not supported.*default, linear, llama3, yarn"):
        read("llama", rope_scaling={"type": kind, "factor": 2.0})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rope_scaling": {"rope_type": "linear"}}, "'factor' is missing"),
        ({"rope_scaling": {"rope_type": "llama3"} | LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_parameters": {"rope_theta": float("nan")}}, "rope_theta"),
        ({"partial_rotary_factor": 0.5}, "partial"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"hidden_size": -64}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "not a multiple"),
        ({"head_dim": 15}, "even"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps"),
        ({"hidden_act": "relu"}, "'relu'"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"vocab_size": None}, "'vocab_size' is missing"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_its_key(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        read("llama", **settings)


def test_an_unknown_model_type_is_refused_with_the_supported_ones() -> None:
    with pytest.raises(
        LoadError, match=r"'mamba' is not supported; supported are llama, mistral, qwen2, qwen3, gemma3"
    ):
        read("mamba")


def test_bidirectional_attention_is_refused() -> None:
    with pytest.raises(LoadError, match="use_bidirectional_attention"):
        read("gemma3_text", use_bidirectional_attention=True)


def test_mistral_slides_in_every_layer_if_it_has_a_window() -> None:
    assert read("mistral", sliding_window=None, num_key_value_heads=2).layer_types == ("full_attention",) * 4
    config = read("mistral", sliding_window=256, num_key_value_heads=2)
    assert config.layer_types == ("sliding_attention",) * 4
    assert config.sliding_window == 256


def test_qwen_slides_only_where_it_says_so() -> None:
    window = {"sliding_window": 128, "max_window_layers": 3}
    assert read("qwen2", **window, num_key_value_heads=2).layer_types == ("full_attention",) * 4
    config = read("qwen2", **window, use_sliding_window=True, num_key_value_heads=2)
    assert config.layer_types == ("full_attention",) * 3 + ("sliding_attention",)
    assert config.sliding_window == 128
    stated = ["sliding_attention", "full_attention"] * 2
    assert read(
        "qwen3", **window, use_sliding_window=True, num_key_value_heads=2, layer_types=stated
    ).layer_types == tuple(stated)


def test_gemma_slides_by_its_pattern() -> None:
    config = read("gemma3_text", sliding_window_pattern=2, sliding_window=64)
    assert config.layer_types == ("sliding_attention", "full_attention") * 2


def test_biases_follow_the_family() -> None:
    def biases(model_type: str, **settings: Any) -> tuple[bool, bool, bool]:
        config = read(model_type, num_key_value_heads=2, **settings)
        return config.attention_bias, config.attention_out_bias, config.mlp_bias

    assert biases("llama") == (False, False, False)
    assert biases("llama", attention_bias=True, mlp_bias=True) == (True, True, True)
    assert biases("qwen2") == (True, False, False)
    assert biases("qwen3", attention_bias=True) == (True, True, False)


def test_end_ids_come_from_every_file_once_and_only_if_they_exist() -> None:
    config = read("llama", generation={"eos_token_id": [7, 9, 5000]}, eos_token_id=9, bos_token_id=1)
    assert config.eos_token_ids == (7, 9)
    assert config.bos_token_id == 1


LINEAR = {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": LINEAR}, "'rope_parameters' and 'rope_scaling'"),
        ({"rope_parameters": LINEAR | {"factor": 4.0}, "rope_scaling": LINEAR}, "'rope_parameters' and 'rope_scaling'"),
        ({"rope_parameters": {"rope_theta": 1e4}, "rope_theta": 5e5}, r"10000\.0 and 'rope_theta' is 500000\.0"),
        ({"rope_scaling": LINEAR | {"rope_theta": 1e4}, "rope_theta": 5e5}, r"10000\.0 and 'rope_theta' is 500000\.0"),
        ({"rope_parameters": []}, "'rope_parameters'.*must be an object"),
        ({"rope_scaling": []}, "'rope_scaling'.*must be an object"),
        ({"rope_parameters": {"full_attention": [1], "sliding_attention": {}}}, "'full_attention'.*must be an object"),
        ({"rope_scaling": LINEAR | {"type": "dynamic"}}, "'dynamic' is not supported"),
        ({"rope_scaling": LINEAR | {"type": "yarn"}}, "'rope_type' is 'linear' and 'type' is 'yarn'"),
        ({"rope_parameters": LINEAR, "rope_scaling": {"type": "dynamic"}}, "'dynamic' is not supported"),
        ({"rope_parameters": {"full_attention": {}, "rope_type": "dynamic"}}, "'dynamic' is not supported"),
    ],
)
def test_rotary_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        read("llama", **settings)


def test_rotary_settings_given_twice_alike_are_read() -> None:
    twice = read("llama", rope_parameters=LINEAR | {"rope_theta": 5e5}, rope_scaling=LINEAR, rope_theta=5e5)
    assert twice == read("llama", rope_scaling=LINEAR, rope_theta=5e5)


def test_contradicting_bases_of_sliding_layers_are_refused() -> None:
    nested = {"full_attention": {}, "sliding_attention": {"rope_theta": 2e4}}
    with pytest.raises(LoadError, match=r"sliding_attention\.rope_theta' is 20000\.0 and 'rope_local_base_freq'"):
        read("gemma3_text", rope_parameters=nested, rope_local_base_freq=1e4)
