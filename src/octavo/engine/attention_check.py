"""At start-up: does compiled attention give a token its own bits on this machine, whatever is computed beside it?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.cache.spec import LayerSpec
from octavo.kernels.cpu.attention import AttentionKernel, AttentionStep, Placement
from octavo.storage.codecs import Codec
from octavo.storage.compiled_attention import CompiledAttention

_START, _TOKENS = 600, 12  # in the third part of the positions: threads share the parts of one sequence
_CPU = torch.device("cpu")


def attention_is_row_invariant(layout: Sequence[LayerSpec], codecs: tuple[Codec, Codec]) -> bool:
    """Whether some tokens of every shape of heads have the same bits together, each alone, and as many sequences.

    Shapes that the compiled kernels do not serve are not tried. Takes some milliseconds a shape.
    """
    return not any(_differs(spec, codecs) for spec in dict.fromkeys(layout) if _is_served(spec, codecs))


def _is_served(spec: LayerSpec, codecs: tuple[Codec, Codec]) -> bool:
    return CompiledAttention.refusal_for(spec, codecs, _CPU) is None


def _differs(spec: LayerSpec, codecs: tuple[Codec, Codec]) -> bool:
    kernel = AttentionKernel(spec.num_q_heads, spec.num_kv_heads, spec.scale, spec.window, spec.softcap)
    generator = torch.Generator().manual_seed(0)
    stored, everything = [], AttentionStep([Placement(0, _START + _TOKENS, 0)])
    for codec, dim in zip(codecs, (spec.k_dim, spec.v_dim), strict=True):
        for_kernels = codec.allocate(_START + _TOKENS, spec.num_kv_heads, dim, _CPU).for_kernels()
        assert for_kernels is not None
        drawn = torch.randn(_START + _TOKENS, spec.num_kv_heads, dim, generator=generator)
        kernel.store(drawn, for_kernels, everything)
        stored.append(for_kernels)
    keys, values = stored
    q = torch.randn(_TOKENS, spec.num_q_heads, spec.k_dim, generator=generator)

    def compute(queries: Tensor, placements: list[Placement]) -> Tensor:
        out = torch.empty(len(queries), spec.num_q_heads, spec.v_dim)
        kernel.run(queries, keys, values, AttentionStep(placements), out)
        return out

    together = compute(q, [Placement(0, _TOKENS, _START)])
    alone = [compute(q[i : i + 1], [Placement(0, 1, _START + i)]) for i in range(_TOKENS)]
    sequences = compute(q, [Placement(i, i + 1, _START + i) for i in range(_TOKENS)])
    return not (torch.equal(together, torch.cat(alone)) and torch.equal(together, sequences))
