"""The launch that turns what a q/k/v linear gives into rotated queries and stored K and V."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from octavo.kernels.rows import HeadNorms, Rotation
from octavo.kernels.triton.head_kernel import rotate_and_store
from octavo.kernels.triton.launch import dependent_launch
from octavo.kernels.triton.paged_decode import StoredRows

_FEW_TOKENS = 8

CODEC_FORMS = {"f32": 0, "f16": 0, "bf16": 0, "q8_0": 1, "q4_0": 2}


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Heads of one group of layers, q, k and v of `dim` elements each, and how K and V are stored."""

    num_q_heads: int
    num_kv_heads: int
    dim: int
    k_codec: str
    v_codec: str

    def refusal(self) -> str | None:
        """Why the kernel does not serve this; None if it does."""
        for codec in (self.k_codec, self.v_codec):
            if codec not in CODEC_FORMS:
                return f"no kernel that stores {codec}"
        if self.dim % 16 or not 16 <= self.dim <= 256:
            return f"no kernel that stores heads of {self.dim} elements"
        return None


def rotate_and_store_heads(
    shape: HeadShape,
    qkv: Tensor,
    rotation: Rotation,
    norms: HeadNorms | None,
    rows: Tensor,
    k: StoredRows,
    v: StoredRows,
    dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """Queries [T, Hq, D] in `dtype` of qkv [T, (Hq + 2 Hkv) · D], whose keys and values go to stored rows [T] int64.

    qkv is of any floating dtype, and may be in parts [S, T, ...], which are added up first; `bias` float32 is added.
    Tokens whose row does not exist, such as -1, store nothing.
    `rows`, positions and tables must be older than the kernel in front: see `launch.py`.
    """
    num_tokens = qkv.shape[-2]
    hq, hkv, dim = shape.num_q_heads, shape.num_kv_heads, shape.dim
    q = torch.empty(num_tokens, hq, dim, dtype=dtype, device=qkv.device)
    if not num_tokens:
        return q
    dependent = dependent_launch(qkv.device)
    heads = head_tile(num_tokens, hq)
    parts = triton.cdiv(hq, heads) + 2 * triton.cdiv(hkv, heads)
    rotate_and_store[(num_tokens, parts)](
        qkv,
        rotation.cos_table if bias is None else bias,
        rotation.positions,
        rotation.cos_table,
        rotation.sin_table,
        rotation.cos_table if norms is None else norms.q,
        rotation.cos_table if norms is None else norms.k,
        rows,
        q,
        k.data,
        k.data if k.scales is None else k.scales,
        v.data,
        v.data if v.scales is None else v.scales,
        qkv.stride(-2),
        rotation.cos_table.shape[0],
        k.data.shape[0],
        0.0 if norms is None else norms.eps,
        HQ=hq,
        HKV=hkv,
        DIM=dim,
        WIDTH=max(32, triton.next_power_of_2(dim)),
        HEADS=heads,
        K_CODEC=CODEC_FORMS[shape.k_codec],
        V_CODEC=CODEC_FORMS[shape.v_codec],
        HAS_NORMS=norms is not None,
        HAS_BIAS=bias is not None,
        DEPENDENT=dependent,
        PARTS=1 if qkv.dim() == 2 else len(qkv),
        num_warps=heads,  # a warp for each head whatever their number: its sums are added in one order
        **({"launch_pdl": True} if dependent else {}),
    )
    return q


def head_tile(num_tokens: int, num_q_heads: int) -> int:
    """Heads of a program, a power of two, as measured on an H200."""
    return 1 if num_tokens <= _FEW_TOKENS else min(8, int(triton.next_power_of_2(num_q_heads)))
