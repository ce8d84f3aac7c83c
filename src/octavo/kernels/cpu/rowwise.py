"""Norms, rotary embedding and gates of rows, by csrc/rowwise.c."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from octavo.errors import CapacityError
from octavo.kernels.cpu import library

_NO_MEMORY = "no memory is left to find the best of the logits; lower --max-context"


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., N] and weight [N] float32 -> x · weight / sqrt(mean(x²) + eps), contiguous."""
    functions = library.load().functions
    assert functions is not None
    x = x.contiguous()
    y = torch.empty_like(x)
    width = x.shape[-1]
    functions.octavo_rms_norm(x.data_ptr(), weight.data_ptr(), x.numel() // width, width, eps, y.data_ptr())
    return y


def add_rms_norm_(x: Tensor, y: Tensor, weight: Tensor, eps: float, inner: tuple[Tensor, float] | None) -> Tensor:
    """Add y to x, both [..., N] float32 and contiguous, after a norm by `inner` (weight, eps) if there is one.

    Returns `rms_norm` of the sum.
    """
    functions = library.load().functions
    assert functions is not None
    normed = torch.empty_like(x)
    width = x.shape[-1]
    functions.octavo_add_rms_norm(
        x.data_ptr(),
        y.data_ptr(),
        None if inner is None else inner[0].data_ptr(),
        0.0 if inner is None else inner[1],
        weight.data_ptr(),
        x.numel() // width,
        width,
        eps,
        normed.data_ptr(),
    )
    return normed


def rotate_heads_(
    qkv: Tensor,
    num_q: int,
    num_k: int,
    cos: Tensor,
    sin: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
) -> None:
    """Normalise (with the weights of q and k, if there are `norms`) and rotate the first heads, in place.

    qkv [T, H, D] float32, contiguous; its first `num_q` heads are queries, the next `num_k` keys. cos and sin
    [T, D] float32; sin carries the sign of each half.
    """
    functions = library.load().functions
    assert functions is not None
    num_tokens, num_heads, dim = qkv.shape
    rotation = library.Rotation(cos.data_ptr(), sin.data_ptr())
    functions.octavo_rotate(
        qkv.data_ptr(),
        num_tokens,
        num_heads * dim,
        num_q,
        num_k,
        dim,
        ctypes.addressof(rotation),
        None if norms is None else norms[0].data_ptr(),
        None if norms is None else norms[1].data_ptr(),
        eps,
    )


def gate(x: Tensor, gelu: bool) -> Tensor:
    """x [T, 2 N] float32, contiguous, gates first -> SiLU (or tanh-GELU) of the gates, times the rest: [T, N]."""
    functions = library.load().functions
    assert functions is not None
    num_tokens, width = x.shape[0], x.shape[1] // 2
    y = torch.empty(num_tokens, width)
    functions.octavo_gate(x.data_ptr(), num_tokens, width, int(gelu), y.data_ptr())
    return y


def best(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [R, N] float32, contiguous, N > 0 -> the largest of each row [R] and its first place [R] int64.

    NaN counts as the largest. Raises `CapacityError` if memory ran out.
    """
    functions = library.load().functions
    assert functions is not None
    values, places = torch.empty(len(x)), torch.empty(len(x), dtype=torch.int64)
    if functions.octavo_best(x.data_ptr(), len(x), x.shape[1], values.data_ptr(), places.data_ptr()):
        raise CapacityError(_NO_MEMORY)
    return values, places


def greedy(x: Tensor) -> Tensor:
    """x [R, N] float32, contiguous, N > 0 -> [R] int64: the first place of the largest, -1 where that is not finite.

    Raises as `best`.
    """
    functions = library.load().functions
    assert functions is not None
    places = torch.empty(len(x), dtype=torch.int64)
    if functions.octavo_greedy(x.data_ptr(), len(x), x.shape[1], places.data_ptr()):
        raise CapacityError(_NO_MEMORY)
    return places
