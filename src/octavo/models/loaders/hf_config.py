"""A Hugging Face config.json to `ModelConfig`, for llama, mistral, qwen2, qwen3 and gemma3."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.errors import LoadError
from octavo.models.config import ModelConfig
from octavo.models.loaders.fields import Fields, checked, layer_count, unique
from octavo.models.loaders.rope_config import rope_config

# What transformers assumes where config.json is silent.
_COMMON: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "attention_bias": False,
    "mlp_bias": False,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _COMMON | {"max_position_embeddings": 2048},
    "mistral": _COMMON | {"max_position_embeddings": 131_072, "num_key_value_heads": 8},
    "qwen2": _COMMON | {"max_position_embeddings": 32_768, "num_key_value_heads": 32},
    "qwen3": _COMMON | {"max_position_embeddings": 32_768, "num_key_value_heads": 32, "head_dim": 128},
    "gemma3_text": _COMMON
    | {
        "max_position_embeddings": 131_072,
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
    },
}
# Not among the above: a base frequency that is given is told from one that is not.
THETA = 10_000.0
GEMMA3_THETA = 1_000_000.0
GEMMA3_LOCAL_THETA = 10_000.0
GEMMA3_PATTERN = 6
_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; `LoadError` if it is missing, no JSON or no object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LoadError(f"{path}: no such file; the directory is incomplete") from None
    except OSError as error:
        raise LoadError(f"{path}: cannot be read ({error.strerror or error}); check permissions") from error
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: is not JSON ({error}); download it again") from None
    if not isinstance(value, dict):
        raise LoadError(f"{path}: holds a {type(value).__name__}, not an object; download it again")
    return value


def is_multimodal(config: Mapping[str, Any]) -> bool:
    """Whether the language model's settings lie under `text_config`, beside a vision tower's."""
    return config.get("model_type") == "gemma3"


def model_config(
    path: Path, config: Mapping[str, Any], generation: Mapping[str, Any], num_tensors: int, *, has_lm_head: bool
) -> ModelConfig:
    """`config` and `generation` are config.json and generation_config.json (may be empty); `path` is for messages.

    Raises `LoadError` for an unknown model type, rope scaling or activation, and for values that make no sense.
    """
    outer = Fields(path, config)
    text = config
    if is_multimodal(config):
        text = config.get("text_config") or {}
        if not isinstance(text, dict):
            raise outer.fail("text_config", "an object")
    model_type = "gemma3_text" if is_multimodal(config) else outer.text("model_type")
    if model_type not in DEFAULTS:
        supported = ", ".join(("llama", "mistral", "qwen2", "qwen3", "gemma3", "gemma3_text"))
        raise LoadError(f"{path}: model type {model_type!r} is not supported; supported are {supported}")
    given = {key: value for key, value in text.items() if value is not None or key == "sliding_window"}
    fields = Fields(path, DEFAULTS[model_type] | given)
    if fields.flag("use_bidirectional_attention", False):
        raise LoadError(f"{path}: use_bidirectional_attention is true; only causal models are supported")
    gemma = model_type == "gemma3_text"
    layers = layer_count(fields, "num_hidden_layers", num_tensors)
    heads = fields.integer("num_attention_heads")
    hidden = fields.integer("hidden_size")
    rope = rope_config(
        fields, theta=GEMMA3_THETA if gemma else THETA, local_theta=GEMMA3_LOCAL_THETA if gemma else None
    )
    layer_types, window = _layer_types(fields, model_type, layers)
    vocab_size = fields.integer("vocab_size")
    sources = (Fields(path, generation), outer, Fields(path, text))
    biased = model_type != "mistral" and fields.flag("attention_bias", False)
    return checked(
        path,
        ModelConfig(
            # Mistral is llama with a window; one model file serves both.
            model_type="llama" if model_type == "mistral" else model_type,
            vocab_size=vocab_size,
            hidden_size=hidden,
            intermediate_size=fields.integer("intermediate_size"),
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=fields.integer("num_key_value_heads", heads),
            head_dim=fields.integer("head_dim", max(1, hidden // heads)),
            max_position_embeddings=fields.integer("max_position_embeddings"),
            rms_norm_eps=fields.number("rms_norm_eps"),
            rope_theta=rope.theta,
            rope_scaling=rope.scaling,
            layer_types=layer_types,
            tie_word_embeddings=_tied(path, config, text, fields, has_lm_head),
            rope_local_theta=rope.local_theta,
            sliding_window=window,
            attention_bias=biased or model_type == "qwen2",
            attention_out_bias=biased and model_type != "qwen2",
            mlp_bias=model_type == "llama" and fields.flag("mlp_bias", False),
            hidden_act=_activation(fields, gemma),
            query_pre_attn_scalar=fields.number("query_pre_attn_scalar") if gemma else None,
            attn_logit_softcapping=fields.optional_number("attn_logit_softcapping") if gemma else None,
            final_logit_softcapping=fields.optional_number("final_logit_softcapping") if gemma else None,
            bos_token_id=next((ids[0] for source in sources if (ids := source.token_ids("bos_token_id"))), None),
            eos_token_ids=unique([i for source in sources for i in source.token_ids("eos_token_id")], vocab_size),
        ),
    )


def _tied(path: Path, config: Mapping[str, Any], text: Mapping[str, Any], fields: Fields, has_lm_head: bool) -> bool:
    """Tied as the config says; where it does not say and there is no head, there is nothing else to use."""
    stated = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    if stated is None:
        return fields.flag("tie_word_embeddings", False) or not has_lm_head
    if not isinstance(stated, bool):
        raise LoadError(f"{path}: 'tie_word_embeddings' is {stated!r}; it must be true or false")
    if not stated and not has_lm_head:
        raise LoadError(
            f"{path}: 'tie_word_embeddings' is false, but tensor 'lm_head.weight' is missing; "
            "download it again, or set tie_word_embeddings to true if the head is the embedding"
        )
    return stated


def _layer_types(fields: Fields, model_type: str, layers: int) -> tuple[tuple[str, ...], int | None]:
    window = fields.optional_integer("sliding_window")
    if model_type == "llama" or (model_type in ("qwen2", "qwen3") and not fields.flag("use_sliding_window", False)):
        window = None
    if model_type == "mistral":
        return ("full_attention" if window is None else "sliding_attention",) * layers, window
    stated = fields.get("layer_types")
    if stated is not None and model_type != "llama":
        if not isinstance(stated, list) or any(kind not in ("full_attention", "sliding_attention") for kind in stated):
            raise fields.fail("layer_types", "a list of full_attention and sliding_attention")
        return tuple(stated), window
    if window is None:
        return ("full_attention",) * layers, None
    if model_type == "gemma3_text":
        period = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", GEMMA3_PATTERN))
        slides = [(index + 1) % period != 0 for index in range(layers)]
    else:
        first = fields.get("max_window_layers")
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise fields.fail("max_window_layers", "a whole number of at least 0")
        slides = [index >= first for index in range(layers)]
    return tuple("sliding_attention" if item else "full_attention" for item in slides), window


def _activation(fields: Fields, gemma: bool) -> Any:
    if gemma:
        name = fields.text("hidden_activation", "gelu_pytorch_tanh")
        wanted = "gelu_tanh"
    else:
        name = fields.text("hidden_act", "silu")
        wanted = "silu"
    if _ACTIVATIONS.get(name) != wanted:
        raise LoadError(f"{fields.path}: activation {name!r} is not supported for this model type; {wanted} is")
    return wanted
