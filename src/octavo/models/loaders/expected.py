"""Which tensors a model of a given config must have, with which shapes; and the check that a file has exactly those."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from octavo.errors import LoadError
from octavo.models.config import ModelConfig

Shape = tuple[int, ...]


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Hugging Face name -> shape of every tensor that the family's model file reads."""
    hidden = config.hidden_size
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    layer = _layer_shapes(config)
    for index in range(config.num_hidden_layers):
        for suffix, shape in layer.items():
            shapes[f"model.layers.{index}.{suffix}"] = shape
    return shapes


def check_tensors(path: Path, config: ModelConfig, found: Mapping[str, Shape]) -> None:
    """Raises `LoadError` for a tensor that is missing, has another shape, or is not known to the family."""
    expected = expected_shapes(config)
    missing = [name for name in expected if name not in found]
    if missing:
        raise LoadError(
            f"{path}: tensor {missing[0]!r} is missing ({len(missing)} of {len(expected)} are), "
            f"which a {config.model_type} model needs; the file is incomplete, download it again"
        )
    for name, shape in expected.items():
        if found[name] != shape:
            raise LoadError(
                f"{path}: tensor {name!r} has shape {list(found[name])}, but the configuration asks for "
                f"{list(shape)}; the file and its configuration do not belong together"
            )
    unknown = [name for name in found if name not in expected]
    if unknown:
        raise LoadError(
            f"{path}: tensor {unknown[0]!r} is not part of a {config.model_type} model ({len(unknown)} such); "
            "leaving it out would change the output, so this variant is not supported"
        )


def _layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (queries, hidden, config.attention_bias),
        "self_attn.k_proj": (keys, hidden, config.attention_bias),
        "self_attn.v_proj": (keys, hidden, config.attention_bias),
        "self_attn.o_proj": (hidden, queries, config.attention_out_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, Shape] = {}
    for name, (rows, columns, bias) in linears.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if config.model_type == "gemma3_text":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    shapes |= {f"{name}.weight": (hidden,) for name in norms}
    if config.model_type in ("qwen3", "gemma3_text"):
        shapes |= {f"self_attn.{name}.weight": (config.head_dim,) for name in ("q_norm", "k_norm")}
    return shapes
