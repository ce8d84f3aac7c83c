"""Gemma 3: sliding and full layers with their own rotary bases, q/k norms, scaled embeddings, norms after each part."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from octavo.cache.spec import LayerSpec
from octavo.kernels.cpu.blocks import BlockWeights
from octavo.kernels.rows import Rotation
from octavo.layers.attention import Attention, AttentionCache
from octavo.layers.few_tokens import FewTokens, block_weights
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.rope_scaling import RopeScaling
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.models.inputs import ForwardInputs
from octavo.models.llama import attention_spec
from octavo.models.weights import WeightSource

_ROTATIONS = ("full_attention", "sliding_attention")
_NORM_OFFSET = 1.0  # Gemma multiplies by 1 + weight


class Gemma3Block:
    """x += norm(attention(norm(x))); x += norm(mlp(norm(x))); all norms and x are float32.

    The last sum of a block is the first thing that the next one does: with both norms that is one kernel.
    """

    def __init__(self, attention: Attention, mlp: GatedMLP, norms: tuple[RMSNorm, RMSNorm, RMSNorm, RMSNorm]) -> None:
        self._attention = attention
        self._mlp = mlp
        self._input_norm, self._post_attention_norm, self._pre_mlp_norm, self.post_mlp_norm = norms

    def compiled(self, rotation: int) -> BlockWeights | None:
        """See `FewTokens`."""
        norms = self._input_norm, self._post_attention_norm, self._pre_mlp_norm, self.post_mlp_norm
        return block_weights(self._attention, self._mlp, norms, rotation)

    def __call__(
        self,
        x: Tensor,
        y: Tensor | None,
        y_norm: RMSNorm | None,
        rotation: Rotation,
        cache: AttentionCache,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Adds to x [T, H] in place: first y_norm(y), if anything. Returns x, and what `post_mlp_norm` has to see next.

        Once K/V are stored, goes on with `rows` [R] alone, if given.
        """
        attended = self._attention(self._input_norm.after_(x, y, y_norm), rotation, cache, rows)
        x = x if rows is None else x[rows]
        return x, self._mlp(self._pre_mlp_norm.after_(x, attended, self._post_attention_norm))


class Gemma3ForCausalLM:
    """The text model. Sliding layers rotate with `rope_local_theta` and no scaling, full ones with `rope_theta`."""

    supports_paged: ClassVar[bool] = True

    def __init__(self, config: ModelConfig, weights: WeightSource) -> None:
        self._softcap = config.final_logit_softcapping
        self._embed, self._head = weights.embedding_and_head(
            tied=config.tie_word_embeddings, scale=config.hidden_size**0.5
        )
        self._layer_types = config.layer_types
        self._blocks = [_block(config, weights, i, spec) for i, spec in enumerate(self.kv_layout(config))]
        self._norm = weights.norm("model.norm", config.rms_norm_eps, offset=_NORM_OFFSET)
        self._few = FewTokens(
            [
                block.compiled(_ROTATIONS.index(kind))
                for block, kind in zip(self._blocks, self._layer_types, strict=True)
            ],
            self._norm,
        )
        local_theta = config.rope_theta if config.rope_local_theta is None else config.rope_local_theta
        limit, device = config.max_position_embeddings, weights.device
        self._rotary = {
            "full_attention": Rotary(config.head_dim, config.rope_theta, config.rope_scaling, limit, device),
            "sliding_attention": Rotary(config.head_dim, local_theta, RopeScaling(), limit, device),
        }

    @staticmethod
    def kv_layout(config: ModelConfig) -> list[LayerSpec]:
        scale = (config.query_pre_attn_scalar or config.head_dim) ** -0.5
        return [attention_spec(config, kind, scale=scale) for kind in config.layer_types]

    def inverse_frequencies(self, layer: int) -> Tensor:
        return self._rotary[self._layer_types[layer]].inverse_frequencies

    def forward(self, inputs: ForwardInputs, cache: AttentionCache) -> Tensor:
        x = self._embed(inputs.token_ids)
        rotation = {kind: rotary.at(inputs.positions, inputs.limit) for kind, rotary in self._rotary.items()}
        few = self._few.run(x, [rotation[kind] for kind in _ROTATIONS], cache)
        if few is not None:
            return inputs.of_wanted(few)
        y, y_norm, rows = None, None, inputs.wanted if self._few.serves else None
        for block, kind in zip(self._blocks, self._layer_types, strict=True):
            x, y = block(x, y, y_norm, rotation[kind], cache, rows if block is self._blocks[-1] else None)
            y_norm = block.post_mlp_norm
        hidden = self._norm.after_(x, y, y_norm)
        return hidden if rows is not None else inputs.of_wanted(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self._head(hidden)
        return logits if self._softcap is None else torch.tanh(logits / self._softcap) * self._softcap

    def greedy(self, hidden: Tensor) -> Tensor | None:
        return None if self._softcap is not None else self._head.greedy(hidden)  # a cap makes equals of some


def _block(config: ModelConfig, weights: WeightSource, i: int, spec: LayerSpec) -> Gemma3Block:
    layer, dtype = f"model.layers.{i}", weights.activation_dtype

    def norm(name: str, dtype: torch.dtype = torch.float32) -> RMSNorm:
        return weights.norm(f"{layer}.{name}", config.rms_norm_eps, offset=_NORM_OFFSET, dtype=dtype)

    attention = Attention(
        i,
        spec,
        weights.linear(f"{layer}.self_attn.qkv_proj"),
        weights.linear(f"{layer}.self_attn.o_proj"),
        q_norm=norm("self_attn.q_norm"),
        k_norm=norm("self_attn.k_norm"),
        dtype=dtype,
    )
    mlp = GatedMLP(
        weights.linear(f"{layer}.mlp.gate_up_proj"), weights.linear(f"{layer}.mlp.down_proj"), config.hidden_act
    )
    norms = (
        norm("input_layernorm", dtype),
        norm("post_attention_layernorm"),
        norm("pre_feedforward_layernorm", dtype),
        norm("post_feedforward_layernorm"),
    )
    return Gemma3Block(attention, mlp, norms)
