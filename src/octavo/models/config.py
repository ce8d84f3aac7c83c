"""What a model is, whichever file format said so. Loaders fill it; model files read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.layers.rope_scaling import RopeScaling

__all__ = ["ModelConfig", "RopeScaling"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and constants of a decoder-only transformer. Field names follow Hugging Face's config.json.

    `layer_types[i]` is `full_attention` or `sliding_attention`. `rope_local_theta` is the base of sliding layers
    where it differs. `eos_token_ids` holds every end id that the model's own files name.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    layer_types: tuple[str, ...]
    tie_word_embeddings: bool
    rope_local_theta: float | None = None
    sliding_window: int | None = None
    attention_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    hidden_act: Literal["silu", "gelu_tanh"] = "silu"
    query_pre_attn_scalar: float | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
