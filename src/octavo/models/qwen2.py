"""Qwen2 and Qwen2.5: Llama's form, with biases on the q, k and v projections."""

from __future__ import annotations

from octavo.models.llama import LlamaForCausalLM


class Qwen2ForCausalLM(LlamaForCausalLM):
    """The biases come with the checkpoint's `q_proj.bias`, `k_proj.bias` and `v_proj.bias`."""
