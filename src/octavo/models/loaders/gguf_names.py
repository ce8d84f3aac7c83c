"""GGUF tensor names to Hugging Face parameter names, and what must be undone in each family's stored values."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from octavo.models.config import ModelConfig
from octavo.models.loaders.encoded_tensor import EncodedTensor

ROPE_FACTORS = "rope_freqs.weight"
# Buffers that older converters wrote; they hold what the config already says.
_REDUNDANT = re.compile(r"blk\.\d+\.attn_rot_embd\.weight")

_BLOCK = re.compile(r"blk\.(0|[1-9]\d*)\.(\w+)\.(weight|bias)")
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_MODULES = _MODULES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def is_redundant(name: str) -> bool:
    """Whether the tensor is a known leftover that changes no result."""
    return _REDUNDANT.fullmatch(name) is not None


def hugging_face_name(name: str, model_type: str) -> str | None:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; None for a name the family does not have."""
    if name in _TOP:
        return _TOP[name]
    match = _BLOCK.fullmatch(name)
    if match is None:
        return None
    layer, module, kind = match.groups()
    modules = _GEMMA_MODULES if model_type == "gemma3_text" else _MODULES
    return f"model.layers.{layer}.{modules[module]}.{kind}" if module in modules else None


def with_canonical_values(tensor: EncodedTensor, config: ModelConfig) -> EncodedTensor:
    """The tensor with Hugging Face's values, lazily. `tensor.name` is already the Hugging Face name."""
    if config.model_type == "llama":
        if ".self_attn.q_proj." in tensor.name:
            return replace(tensor, order=_row_order(config.num_attention_heads, config.head_dim))
        if ".self_attn.k_proj." in tensor.name:
            return replace(tensor, order=_row_order(config.num_key_value_heads, config.head_dim))
    if config.model_type == "gemma3_text" and tensor.name.endswith("norm.weight"):
        return replace(tensor, shift=-1.0)
    return tensor


def _row_order(num_heads: int, head_dim: int) -> NDArray[np.int64]:
    """Stored row of each row: GGUF interleaves the two halves of a llama head, so row j·(d/2) + i lies at 2i + j."""
    stored = np.arange(num_heads * head_dim, dtype=np.int64)
    return stored.reshape(num_heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
