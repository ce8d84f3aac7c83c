"""GGUF metadata to `ModelConfig`, for the architectures llama, qwen2, qwen3 and gemma3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.errors import LoadError
from octavo.models.config import ModelConfig, RopeScaling
from octavo.models.loaders.fields import Fields, checked, layer_count, unique

MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}

# Gemma 3 facts that its GGUF files leave out.
GEMMA3_LOCAL_THETA = 10_000.0
GEMMA3_PATTERN = 6
GEMMA3_27B_LAYERS = 62

# Multipliers of other models that share these architectures' names; 1 (or 0) means "not used".
_REFUSED = {
    "attention.scale": 0.0,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "logit_scale": 1.0,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "expert_count": 0,
}


def model_config(
    path: Path,
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    factors: tuple[float, ...] | None,
) -> ModelConfig:
    """`shapes` are the tensors' under their GGUF names; `factors` the values of `rope_freqs.weight` if there is one.

    Raises `LoadError` for an unknown architecture, scaling or a value that makes no sense.
    """
    architecture = Fields(path, metadata).text("general.architecture")
    if architecture not in MODEL_TYPES:
        supported = ", ".join(MODEL_TYPES)
        raise LoadError(f"{path}: architecture {architecture!r} is not supported; supported are {supported}")
    fields = Fields(path, metadata, f"{architecture}.")
    for key, neutral in _REFUSED.items():
        if fields.get(key) not in (None, neutral):
            raise LoadError(f"{path}: {architecture}.{key} is {fields.get(key)!r}; this variant is not supported")
    if "token_embd.weight" not in shapes or len(shapes["token_embd.weight"]) != 2:
        raise LoadError(f"{path}: tensor 'token_embd.weight' is missing or not a matrix; it is not a language model")
    vocab_size = _vocab_size(path, metadata, fields, shapes["token_embd.weight"][0])
    layers = layer_count(fields, "block_count", len(shapes))
    hidden, heads = fields.integer("embedding_length"), _per_layer(fields, "attention.head_count")
    head_dim = _head_dim(fields, hidden, heads)
    layer_types, window = _layer_types(fields, layers)
    tokens = Fields(path, metadata, "tokenizer.ggml.")
    ends = [token for key in ("eos", "eot", "eom") for token in tokens.token_ids(f"{key}_token_id")]
    gemma = architecture == "gemma3"
    config = ModelConfig(
        model_type=MODEL_TYPES[architecture],
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=_per_layer(fields, "feed_forward_length"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=_per_layer(fields, "attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position_embeddings=fields.integer("context_length"),
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope_theta=fields.number("rope.freq_base", 1_000_000.0 if gemma else 10_000.0),
        rope_scaling=_rope_scaling(fields, head_dim, factors),
        layer_types=layer_types,
        tie_word_embeddings="output.weight" not in shapes,
        rope_local_theta=fields.number("rope.freq_base_swa", GEMMA3_LOCAL_THETA) if gemma else None,
        sliding_window=window,
        attention_bias=_any_bias(shapes, ("attn_q", "attn_k", "attn_v")),
        attention_out_bias=_any_bias(shapes, ("attn_output",)),
        mlp_bias=_any_bias(shapes, ("ffn_gate", "ffn_up", "ffn_down")),
        hidden_act="gelu_tanh" if gemma else "silu",
        query_pre_attn_scalar=_gemma_scalar(layers, hidden, heads, head_dim) if gemma else None,
        attn_logit_softcapping=_softcap(fields, "attn_logit_softcapping"),
        final_logit_softcapping=_softcap(fields, "final_logit_softcapping"),
        bos_token_id=next(iter(unique(tokens.token_ids("bos_token_id"), vocab_size)), None),
        eos_token_ids=unique(ends, vocab_size),
    )
    return checked(path, config)


def _vocab_size(path: Path, metadata: Mapping[str, Any], fields: Fields, rows: int) -> int:
    """The embedding's rows: a vocabulary may be padded up to them, but never exceed them."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > rows:
        raise LoadError(f"{path}: the vocabulary has {len(tokens)} tokens, but the embedding only {rows} rows")
    stated = fields.optional_integer("vocab_size")
    if stated is not None and stated != rows:
        raise LoadError(f"{path}: {fields.prefix}vocab_size is {stated}, but the embedding has {rows} rows")
    return rows


def _per_layer(fields: Fields, key: str, default: int | None = None) -> int:
    """A number, or a list that holds the same number for every layer."""
    value = fields.get(key)
    if isinstance(value, list):
        if not value or any(item != value[0] for item in value) or not isinstance(value[0], int) or value[0] < 1:
            raise fields.fail(key, "the same number for every layer (models whose layers differ are not supported)")
        return int(value[0])
    return fields.integer(key, default)


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    head_dim = fields.integer("attention.key_length", max(1, hidden // heads))
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(key, head_dim) != head_dim:
            raise fields.fail(key, f"the head size {head_dim} (models where they differ are not supported)")
    return head_dim


def _layer_types(fields: Fields, layers: int) -> tuple[tuple[str, ...], int | None]:
    """Layer types and window. Only Gemma 3 slides: other architectures' readers of GGUF attend in full."""
    window = fields.get("attention.sliding_window")
    if fields.prefix != "gemma3." or window in (None, 0):
        return ("full_attention",) * layers, None
    pattern = fields.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        if len(pattern) < layers or not all(isinstance(item, bool) for item in pattern):
            raise fields.fail("attention.sliding_window_pattern", f"a number or {layers} booleans")
        slides = pattern[:layers]
    else:
        period = fields.integer("attention.sliding_window_pattern", GEMMA3_PATTERN)
        slides = [(index + 1) % period != 0 for index in range(layers)]
    types = tuple("sliding_attention" if item else "full_attention" for item in slides)
    return types, fields.integer("attention.sliding_window")


def _rope_scaling(fields: Fields, head_dim: int, factors: tuple[float, ...] | None) -> RopeScaling:
    if factors is not None:
        if len(factors) != head_dim // 2:
            raise LoadError(f"{fields.path}: 'rope_freqs.weight' has {len(factors)} values, not {head_dim // 2}")
        if not all(math.isfinite(factor) and factor > 0 for factor in factors):
            raise LoadError(f"{fields.path}: 'rope_freqs.weight' holds values that are not above 0; it is corrupt")
        return RopeScaling(factors=factors)
    kind = fields.text("rope.scaling.type", "linear")
    # Older converters wrote `rope.scale_linear`.
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0))
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return RopeScaling()
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor)
    if kind != "yarn":
        raise LoadError(f"{fields.path}: rope scaling {kind!r} is not supported; supported are none, linear, yarn")
    return _yarn(fields, factor)


def _yarn(fields: Fields, factor: float) -> RopeScaling:
    """YaRN with the metadata's constants.

    `yarn_attn_factor` is Hugging Face's `attention_factor`; `attn_factor` multiplies the default one instead;
    `yarn_log_multiplier` is `mscale_all_dim` (with `mscale` 1).
    """
    if fields.get("rope.scaling.yarn_ext_factor") not in (None, 1.0):
        raise fields.fail("rope.scaling.yarn_ext_factor", "1 (other values are not supported)")
    log_multiplier = fields.optional_number("rope.scaling.yarn_log_multiplier")
    attention_factor = fields.optional_number("rope.scaling.yarn_attn_factor")
    extra = fields.number("rope.scaling.attn_factor", 1.0)
    if attention_factor is None and extra != 1.0:
        attention_factor = extra * _yarn_magnitude(factor, 1.0) / _yarn_magnitude(factor, log_multiplier or 0.0)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position_embeddings=fields.integer(
            "rope.scaling.original_context_length", fields.integer("context_length")
        ),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=attention_factor,
        mscale=None if log_multiplier is None else 1.0,
        mscale_all_dim=log_multiplier,
    )


def _yarn_magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def _softcap(fields: Fields, key: str) -> float | None:
    return None if fields.get(key) in (None, 0.0) else fields.number(key)


def _gemma_scalar(layers: int, hidden: int, heads: int, head_dim: int) -> float:
    """`query_pre_attn_scalar`, which no GGUF key holds: the head size, but hidden size per head in the 27B model."""
    return float(hidden // heads if layers == GEMMA3_27B_LAYERS else head_dim)


def _any_bias(shapes: Mapping[str, tuple[int, ...]], modules: tuple[str, ...]) -> bool:
    return any(name.endswith(tuple(f".{module}.bias" for module in modules)) for name in shapes)
