"""Rotary position embedding: frequencies with long-context scaling, and their use on packed rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from octavo.errors import LoadError
from octavo.kernels.rows import Rotation
from octavo.layers.rope_scaling import RopeScaling

_BLOCK = 4096  # positions tabulated at once, always with the same shape, so that a value never depends on the batch


class Rotary:
    """Rotary table of one base and scaling. Tabulates blocks of positions on first use."""

    def __init__(
        self, head_dim: int, theta: float, scaling: RopeScaling, max_position: int, device: torch.device
    ) -> None:
        self._inv_freq, self._magnitude = rotary_frequencies(head_dim, theta, scaling, max_position)
        self._cos = torch.empty(0, head_dim, device=device)
        self._sin = torch.empty(0, head_dim, device=device)

    @property
    def inverse_frequencies(self) -> Tensor:
        """[D / 2] float32, with long-context scaling: dimensions i and i + D/2 turn by so much per position."""
        return self._inv_freq

    def at(self, position: Tensor, limit: int) -> Rotation:
        """Rotation for positions [T] int64, all below `limit` (a host-side bound, so nothing waits for the device).

        The tables stay where they are while `limit` does not rise.
        """
        if limit > self._cos.shape[0]:
            self._extend(limit)
        return Rotation(self._cos, self._sin, position)

    def _extend(self, limit: int) -> None:
        cos, sin = [self._cos], [self._sin]
        for start in range(self._cos.shape[0], limit, _BLOCK):
            angle = torch.arange(start, start + _BLOCK, dtype=torch.float32)[:, None] * self._inv_freq[None, :]
            block_cos, block_sin = angle.cos() * self._magnitude, angle.sin() * self._magnitude
            cos.append(torch.cat((block_cos, block_cos), -1).to(self._cos.device))
            sin.append(torch.cat((-block_sin, block_sin), -1).to(self._sin.device))
        self._cos, self._sin = torch.cat(cos), torch.cat(sin)


def rotary_frequencies(head_dim: int, theta: float, scaling: RopeScaling, max_position: int) -> tuple[Tensor, float]:
    """Inverse frequencies [head_dim / 2] float32, and the factor that cos and sin are multiplied by.

    `linear`: frequencies divided by the factor. `llama3`: wavelengths beyond `original / low` divided, those below
    `original / high` kept, a linear blend between (Llama 3.1 model card). `yarn`: Peng et al. 2023, arXiv:2309.00071.
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    inv_freq = 1.0 / torch.pow(torch.tensor(theta, dtype=torch.float32), exponent)
    if scaling.factors is not None:
        if len(scaling.factors) != head_dim // 2:
            raise LoadError(
                f"rope_freqs has {len(scaling.factors)} factors; head size {head_dim} needs {head_dim // 2}"
            )
        return inv_freq / torch.tensor(scaling.factors, dtype=torch.float32), 1.0
    if scaling.kind == "linear":
        return inv_freq / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _llama3(inv_freq, scaling, max_position), 1.0
    if scaling.kind == "yarn":
        return _yarn(inv_freq, head_dim, theta, scaling, max_position)
    return inv_freq, 1.0


def _llama3(inv_freq: Tensor, scaling: RopeScaling, max_position: int) -> Tensor:
    original = scaling.original_max_position_embeddings or max_position
    wavelength = 2 * math.pi / inv_freq
    low, high = original / scaling.low_freq_factor, original / scaling.high_freq_factor
    smooth = (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blended = (1 - smooth) * inv_freq / scaling.factor + smooth * inv_freq
    return torch.where(wavelength > low, inv_freq / scaling.factor, torch.where(wavelength < high, inv_freq, blended))


def _yarn(
    inv_freq: Tensor, head_dim: int, theta: float, scaling: RopeScaling, max_position: int
) -> tuple[Tensor, float]:
    original = scaling.original_max_position_embeddings or max_position

    def dimension(rotations: float) -> float:
        """The pair index whose frequency turns `rotations` times over the original context."""
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    blended = inv_freq / scaling.factor * ramp + inv_freq * (1 - ramp)
    return blended, _yarn_magnitude(scaling)


def _yarn_magnitude(scaling: RopeScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def magnitude(mscale: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * mscale * math.log(scaling.factor) + 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return magnitude(scaling.mscale) / magnitude(scaling.mscale_all_dim)
    return magnitude(1.0)
