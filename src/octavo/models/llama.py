"""Llama, and what shares its form: Mistral, SmolLM2. Pre-norm blocks, rotary attention, gated SiLU MLP."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from octavo.cache.spec import LayerSpec
from octavo.kernels.cpu.blocks import BlockWeights
from octavo.kernels.rows import Rotation
from octavo.layers.attention import Attention, AttentionCache
from octavo.layers.few_tokens import FewTokens, block_weights
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.residual import Residual
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.models.inputs import ForwardInputs
from octavo.models.weights import WeightSource


class LlamaBlock:
    """x += attention(norm(x)); x += mlp(norm(x)); x is float32."""

    def __init__(self, input_norm: RMSNorm, attention: Attention, mlp_norm: RMSNorm, mlp: GatedMLP) -> None:
        self.input_norm = input_norm
        self._attention = attention
        self._mlp_norm = mlp_norm
        self._mlp = mlp

    @property
    def compiled(self) -> BlockWeights | None:
        """See `FewTokens`."""
        return block_weights(self._attention, self._mlp, (self.input_norm, None, self._mlp_norm, None))

    def __call__(
        self,
        stream: Residual,
        next_norm: RMSNorm | None,
        rotation: Rotation,
        cache: AttentionCache,
        rows: Tensor | None = None,
    ) -> None:
        """`next_norm` is that of the block after this one. Of x, `rows` [R] stay once K/V are stored, if given."""
        self._attention.add_to(stream, self.input_norm, self._mlp_norm, rotation, cache, rows)
        self._mlp.add_to(stream, self._mlp_norm, next_norm)


class LlamaForCausalLM:
    """Parameters carry Hugging Face's names."""

    supports_paged: ClassVar[bool] = True
    qk_norm: ClassVar[bool] = False

    def __init__(self, config: ModelConfig, weights: WeightSource) -> None:
        self._embed, self._head = weights.embedding_and_head(tied=config.tie_word_embeddings)
        self._blocks = [self._block(config, weights, i, spec) for i, spec in enumerate(self.kv_layout(config))]
        self._norm = weights.norm("model.norm", config.rms_norm_eps)
        self._few = FewTokens([block.compiled for block in self._blocks], self._norm)
        self._rotary = Rotary(
            config.head_dim, config.rope_theta, config.rope_scaling, config.max_position_embeddings, weights.device
        )

    @staticmethod
    def kv_layout(config: ModelConfig) -> list[LayerSpec]:
        return [attention_spec(config, kind) for kind in config.layer_types]

    def inverse_frequencies(self, layer: int) -> Tensor:
        del layer  # all rotate alike
        return self._rotary.inverse_frequencies

    def _block(self, config: ModelConfig, weights: WeightSource, i: int, spec: LayerSpec) -> LlamaBlock:
        layer, eps, dtype = f"model.layers.{i}", config.rms_norm_eps, weights.activation_dtype
        attention = Attention(
            i,
            spec,
            weights.linear(f"{layer}.self_attn.qkv_proj"),
            weights.linear(f"{layer}.self_attn.o_proj"),
            q_norm=weights.norm(f"{layer}.self_attn.q_norm", eps) if self.qk_norm else None,
            k_norm=weights.norm(f"{layer}.self_attn.k_norm", eps) if self.qk_norm else None,
            dtype=dtype,
        )
        mlp = GatedMLP(
            weights.linear(f"{layer}.mlp.gate_up_proj"), weights.linear(f"{layer}.mlp.down_proj"), config.hidden_act
        )
        input_norm = weights.norm(f"{layer}.input_layernorm", eps, dtype=dtype)
        mlp_norm = weights.norm(f"{layer}.post_attention_layernorm", eps, dtype=dtype)
        return LlamaBlock(input_norm, attention, mlp_norm, mlp)

    def forward(self, inputs: ForwardInputs, cache: AttentionCache) -> Tensor:
        x = self._embed(inputs.token_ids)
        rotation = self._rotary.at(inputs.positions, inputs.limit)
        few = self._few.run(x, (rotation,), cache)
        if few is not None:
            return inputs.of_wanted(few)
        stream, rows = Residual(x), inputs.wanted if self._few.serves else None
        for i, block in enumerate(self._blocks):
            last = i + 1 == len(self._blocks)
            next_norm = None if last else self._blocks[i + 1].input_norm
            block(stream, next_norm, rotation, cache, rows if last else None)
        hidden = stream.normed(self._norm)
        return hidden if rows is not None else inputs.of_wanted(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(hidden)

    def greedy(self, hidden: Tensor) -> Tensor | None:
        return self._head.greedy(hidden)


def attention_spec(config: ModelConfig, layer_type: str, *, scale: float | None = None) -> LayerSpec:
    """Spec of one attention layer of `config`; the score scale is 1/sqrt(head size) unless given."""
    sliding = layer_type == "sliding_attention"
    return LayerSpec(
        kind="sliding" if sliding else "full",
        num_q_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        k_dim=config.head_dim,
        v_dim=config.head_dim,
        scale=config.head_dim**-0.5 if scale is None else scale,
        window=config.sliding_window if sliding else None,
        softcap=config.attn_logit_softcapping,
        sink_logits=False,
    )
