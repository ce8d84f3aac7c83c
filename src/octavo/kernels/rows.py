"""Norms, rotary embedding and gates of rows: compiled kernels on a CPU, Triton's on a GPU, torch where there are none.

All in float32. A row's result is bitwise the same whatever rows are computed beside it, but for torch's on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.kernels.cpu import library
from octavo.kernels.cpu import rowwise as compiled
from octavo.kernels.rowwise import by_rows

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True)
class Rotation:
    """How the heads of a step's tokens are rotated: tables [P, D] float32 of cos and of sin, which carries the sign of
    each half, and positions [T] int64 of the tokens in them.
    """

    cos_table: Tensor
    sin_table: Tensor
    positions: Tensor

    @cached_property
    def cos(self) -> Tensor:
        """[T, D], of the tokens."""
        return self.cos_table[self.positions]

    @cached_property
    def sin(self) -> Tensor:
        """[T, D], of the tokens."""
        return self.sin_table[self.positions]


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """What queries and keys are normalised by before they are rotated: weights [D] float32, and eps."""

    q: Tensor
    k: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """What a layer does to projected heads before they are rotated: add `bias` [H · D] float32, then normalise."""

    norms: HeadNorms | None = None
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class HalfNormed:
    """rms_norm(x) of x [T, N]: `weighted` [T, N], x · weight in 16 bit, over sqrt(sum of a row's `squares` / N + eps).

    `squares` [T, parts] float32 are sums over parts of a row, by who leaves x in this form. Who takes it divides.
    """

    weighted: Tensor
    squares: Tensor
    eps: float

    @property
    def parts(self) -> int:
        return self.squares.shape[1]


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """x [..., N] and weight [N] float32 -> x · weight / sqrt(mean(x²) + eps) over the last dimension, in `dtype`."""
    if _by_triton(x):
        from octavo.kernels.triton import fused_rows

        return fused_rows.add_rms_norm_(x.contiguous(), None, weight, eps, dtype)
    return _rms_norm(x, weight, eps).to(dtype)


def add_rms_norm_(
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    eps: float,
    dtype: torch.dtype = torch.float32,
    inner: tuple[Tensor, float] | None = None,
) -> Tensor:
    """Add y to x, both [..., N] and contiguous, x float32, and return `rms_norm` of the sum.

    y may be in parts [S, ..., N], which are added up first. `inner` (weight, eps): y is normalised first.
    """
    if _by_triton(x):
        from octavo.kernels.triton import fused_rows

        return fused_rows.add_rms_norm_(x, y, weight, eps, dtype, inner)
    if y.dim() > x.dim():
        y = y.sum(0)
    if is_compiled(x) and y.dtype == torch.float32 and y.is_contiguous():
        return compiled.add_rms_norm_(x, y, weight, eps, inner).to(dtype)
    x += y if inner is None else _rms_norm(y.float(), *inner)
    return _rms_norm(x, weight, eps).to(dtype)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _by_triton(x: Tensor) -> bool:
    return x.device.type == "cuda" and _has_triton()


def is_compiled(x: Tensor) -> bool:
    """Whether the compiled kernels take x as it is."""
    is_taken = x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous()
    return is_taken and library.load().functions is not None


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if x.device.type != "cpu":
        return F.rms_norm(x, weight.shape, weight, eps)
    if library.load().functions is not None:
        return compiled.rms_norm(x, weight, eps)
    # rms_norm is six kernels here, layer_norm one. The mean of (x, -x) is 0 and its variance mean(x²).
    doubled = torch.cat((weight, weight))
    return F.layer_norm(torch.cat((x, -x), dim=-1), doubled.shape, doubled, None, eps)[..., : x.shape[-1]]


def best(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [R, N] float32 -> the largest of each row, which is NaN if there is one, and the first place that has it."""
    if is_compiled(x) and x.numel():
        return compiled.best(x)
    values, places = x.max(dim=1)
    return values, places


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of pairs (i, i + D/2): x [T, H, D] of any strides, cos and sin [T, D], sin signed by half."""
    return torch.addcmul(x * cos.unsqueeze(1), torch.roll(x, x.shape[-1] // 2, -1), sin.unsqueeze(1))


def rotate_heads(
    qkv: Tensor,
    num_q: int,
    num_k: int,
    cos: Tensor,
    sin: Tensor,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of qkv [T, H, D] float32, which may be overwritten.

    Queries and keys are normalised, where there are weights for both in `norms`, and then rotated (see `rotate`).
    """
    if is_compiled(qkv):
        compiled.rotate_heads_(qkv, num_q, num_k, cos, sin, norms, eps)
        return qkv[:, :num_q], qkv[:, num_q : num_q + num_k], qkv[:, num_q + num_k :]
    heads, v = qkv[:, : num_q + num_k], qkv[:, num_q + num_k :]
    if norms is not None:
        q, k = rms_norm(heads[:, :num_q], norms[0], eps), rms_norm(heads[:, num_q:], norms[1], eps)
        return rotate(q, cos, sin), rotate(k, cos, sin), v
    q, k = rotate(heads, cos, sin).split((num_q, num_k), dim=1)
    return q, k, v


def split_heads(
    qkv: Tensor, num_q: int, num_k: int, dim: int, rotation: Rotation, weights: HeadWeights
) -> tuple[Tensor, Tensor, Tensor]:
    """`rotate_heads` of qkv [T, H · D] as a product gives it, of any floating dtype: q, k and v, each [T, heads, D].

    It may be in parts [S, T, H · D], which are added up first.
    """
    if qkv.dim() == 3:
        qkv = qkv.sum(0)
    biased = qkv if weights.bias is None else qkv + weights.bias
    heads = biased.float().view(qkv.shape[0], -1, dim)
    if weights.norms is None:
        return rotate_heads(heads, num_q, num_k, rotation.cos, rotation.sin)
    norms = weights.norms
    return rotate_heads(heads, num_q, num_k, rotation.cos, rotation.sin, (norms.q, norms.k), norms.eps)


def look_up(table: Tensor, ids: Tensor) -> Tensor:
    """Rows `ids` [T] int64 of table [V, N], contiguous and of any floating dtype -> [T, N] float32."""
    if _by_triton(table):
        from octavo.kernels.triton import fused_rows

        return fused_rows.look_up(table, ids)
    return table[ids].float()


def gate(x: Tensor, activation: Activation) -> Tensor:
    """x [T, 2 N], gates before values, float32 or 16 bit -> activation(gates) · values [T, N], in x's dtype."""
    if _by_triton(x):
        from octavo.kernels.triton import fused_rows

        return fused_rows.gate(x.contiguous(), activation == "gelu_tanh", x.dtype)
    if is_compiled(x):
        return compiled.gate(x, gelu=activation == "gelu_tanh")
    gates, values = x.chunk(2, dim=-1)
    return by_rows(F.silu if activation == "silu" else _gelu_tanh, gates).mul_(values)


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")
