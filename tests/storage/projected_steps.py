"""Steps of projected heads through a cache: what layers hand over, with norms, positions and a 16-bit result."""

from __future__ import annotations

import torch

from octavo.kernels.rows import HeadNorms, HeadWeights, Rotation
from octavo.step_batch import StepBatch

STEPS = ([(0, 20), (1, 3), (2, 1)], [(0, 1), (1, 9), (2, 8)], [(2, 1), (0, 1), (1, 1)], [(1, 12), (0, 2)])


def rotation_of(batch: StepBatch, dim: int, device: torch.device) -> Rotation:
    angle = torch.arange(256)[:, None] * (1.0 / 100 ** (torch.arange(0, dim, 2) / dim))
    cos, sin = torch.cat((angle.cos(), angle.cos()), -1), torch.cat((-angle.sin(), angle.sin()), -1)
    positions = [position for row in batch.rows for position in range(row.rope_start, row.rope_stop)]
    return Rotation(cos.to(device), sin.to(device), torch.tensor(positions, device=device))


def attend_projected(scheduler, layout, device, dtype=torch.float16, *, steps=STEPS, scale=1):
    """Outputs of every step and layer. Larger shares have `scale` times as many tokens."""
    generator = torch.Generator().manual_seed(5)
    outputs = []
    for shares in steps:
        batch = scheduler.batch([(slot, [0] * (count * scale if count > 8 else count)) for slot, count in shares])
        scheduler.cache.plan(batch)
        for layer, spec in enumerate(layout):
            width = (spec.num_q_heads + 2 * spec.num_kv_heads) * spec.k_dim
            qkv = torch.randn(batch.num_tokens, width, generator=generator).to(dtype).to(device)
            norms = HeadNorms(*torch.rand(2, spec.k_dim, generator=generator).add(0.5).to(device), 1e-5)
            rotation = rotation_of(batch, spec.k_dim, device)
            weights = HeadWeights(norms) if layer % 2 else HeadWeights(bias=torch.linspace(-1, 1, width, device=device))
            got = scheduler.cache.attend_qkv(layer, qkv, rotation, weights, dtype)
            assert got.dtype == dtype
            outputs.append(got.clone())
    return outputs
