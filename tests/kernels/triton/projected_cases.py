"""Single tokens as a projection gives them, for tests of attention that rotates and stores itself."""

from __future__ import annotations

import math

import numpy as np
import torch

from octavo.kernels.rows import HeadNorms, HeadWeights, Rotation
from octavo.kernels.triton.decode_plan import DecodeRows
from octavo.kernels.triton.head_rows import HeadShape, rotate_and_store_heads
from octavo.kernels.triton.paged_decode import DecodeSpec, PagedDecode, StoredRows
from octavo.kernels.triton.projected_decode import attend_projected

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
BLOCK = 16


def draw(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


class Step:
    """One token of each of some sequences, whose last column is the token's own and not stored yet."""

    def __init__(self, lengths, *, heads=(4, 2, 64), dtype=torch.float16, window=None, normed=True, biased=False):
        self.lengths, count = np.array(lengths, dtype=np.int64), len(lengths)
        hq, hkv, dim = heads
        codec = {torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
        self.spec = DecodeSpec(hq, hkv, dim, dim, BLOCK, codec, codec, 1 / math.sqrt(dim), window)
        self.shape = HeadShape(hq, hkv, dim, codec, codec)
        self.decode = PagedDecode(self.spec, DEVICE)
        per = -(-int(self.lengths.max()) // BLOCK)
        order = torch.randperm(count * per, generator=torch.Generator().manual_seed(1)).int()
        self.table, self.begins = order.to(DEVICE), np.arange(count) * per
        own = self.lengths - 1
        places = order.numpy()[self.begins + own // BLOCK].astype(np.int64) * BLOCK + own % BLOCK
        self.rows = torch.tensor(places, device=DEVICE)
        self.k, self.v = (draw(count * per * BLOCK, hkv, dim, seed=seed).to(dtype) for seed in (2, 3))
        self.qkv = draw(count, (hq + 2 * hkv) * dim, seed=4).to(dtype)
        positions = torch.arange(count, device=DEVICE) * 3 % 7
        self.rotation = Rotation(draw(7, dim, seed=5), draw(7, dim, seed=6), positions)
        norms = HeadNorms(draw(dim, seed=7), draw(dim, seed=8), 1e-3) if normed else None
        self.weights = HeadWeights(norms, draw((hq + 2 * hkv) * dim, seed=9) if biased else None)

    def plan(self, **settings):
        first = np.zeros_like(self.lengths)
        if self.spec.window is not None:
            first = np.maximum(self.lengths - self.spec.window, 0)
        count = len(self.lengths)
        ones = np.ones(count, dtype=np.int64)
        self.decode.plan(DecodeRows(np.arange(count), ones, first, self.lengths, self.begins), **settings)

    def run(self, *, at_once):
        """Attended heads, and K and V as they are stored then."""
        k, v = self.k.clone(), self.v.clone()
        planes = StoredRows(k, None), StoredRows(v, None)
        out = torch.full((len(self.lengths), self.spec.num_q_heads, self.spec.v_dim), float("nan"), device=DEVICE)
        if at_once:
            given = self.qkv, self.rotation, self.weights, self.rows, *planes
            attend_projected(self.decode, *given, self.table, out)
        else:
            norms, bias = self.weights.norms, self.weights.bias
            given = self.shape, self.qkv, self.rotation, norms, self.rows, *planes
            self.decode.run(rotate_and_store_heads(*given, torch.float32, bias), *planes, self.table, out)
        return out, k, v

    def check(self):
        (out, *stored), (expected, *expected_stored) = self.run(at_once=True), self.run(at_once=False)
        for mine, theirs, before in zip(stored, expected_stored, (self.k, self.v), strict=True):
            assert not torch.equal(theirs, before)
            # Sums of squares are added in another order: a key may round to a neighbour.
            assert (mine.float() - theirs.float()).abs().max() < 4e-3 * theirs.float().abs().max()
        # The mean of tens of thousands of values is small: there 1e-3 would let a fault of one percent pass.
        allowed = 2e-3 * float(expected.abs().max())
        if self.k.dtype == torch.float16:
            allowed = min(allowed, 1e-3)
        assert (out - expected).abs().max() < allowed < (out * 1.01 - expected).abs().max()
