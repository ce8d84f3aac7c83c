"""The layers of a model over a few tokens in one call, where compiled kernels serve all of them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from octavo.kernels.cpu.blocks import MOST_TOKENS, BlockWeights, CallableCache, CompiledBlocks
from octavo.kernels.rows import Rotation
from octavo.layers.attention import Attention, AttentionCache
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm


class FewTokens:
    """All of a model's `blocks` and the norm after them; serves nothing where the weights of a block are None."""

    def __init__(self, blocks: Sequence[BlockWeights | None], norm: RMSNorm) -> None:
        weights = [block for block in blocks if block is not None]
        served = len(weights) == len(blocks) > 0
        self._blocks = CompiledBlocks(weights, norm.weight, norm.eps) if served else None

    @property
    def serves(self) -> bool:
        """Whether compiled kernels serve every block: with those a row is the same whatever rows are beside it."""
        return self._blocks is not None

    def run(self, x: Tensor, rotations: Sequence[Rotation], cache: AttentionCache) -> Tensor | None:
        """x [T, H] float32 through all blocks and the norm: [T, H] float32, bit for bit what one by one gives.

        x may be overwritten. None, with nothing done, where that takes them one by one.
        """
        if self._blocks is None or x.shape[0] > MOST_TOKENS or not isinstance(cache, CallableCache):
            return None
        call = cache.attention_call()
        return None if call is None else self._blocks.run(x.contiguous(), rotations, call)


def block_weights(
    attention: Attention,
    mlp: GatedMLP,
    norms: tuple[RMSNorm, RMSNorm | None, RMSNorm, RMSNorm | None],
    rotation: int = 0,
) -> BlockWeights | None:
    """A block's weights for `FewTokens`; None if one of them is no compiled kernel's.

    `norms` come before attention, after it, before the feed-forward layer and after it.
    """
    attending, feeding = attention.compiled, mlp.compiled
    if attending is None or feeding is None:
        return None
    input_norm, attention_out, mlp_norm, mlp_out = norms
    assert len({norm.eps for norm in norms if norm is not None}) == 1
    return BlockWeights(
        input_norm.weight,
        attending,
        None if attention_out is None else attention_out.weight,
        mlp_norm.weight,
        feeding,
        None if mlp_out is None else mlp_out.weight,
        input_norm.eps,
        rotation,
    )
