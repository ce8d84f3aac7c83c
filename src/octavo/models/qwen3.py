"""Qwen3: Llama's form, with a norm on each query and key head before rotation."""

from __future__ import annotations

from typing import ClassVar

from octavo.models.llama import LlamaForCausalLM


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Parameters as Llama's, plus `self_attn.q_norm` and `self_attn.k_norm`."""

    qk_norm: ClassVar[bool] = True
