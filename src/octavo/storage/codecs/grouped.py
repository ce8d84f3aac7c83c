"""`q8_0` and `q4_0`: whole-number codes with one float16 scale per 32 elements of a head."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.kernels.cpu.attention import StoredRows
from octavo.storage.codecs.planes import PlaneCodec, finite_half, pack_nibbles, unpack_nibbles

GROUP = 32


class Q8Codec(PlaneCodec):
    """`q8_0`: codes -127 to 127, scaled by the group's largest magnitude / 127. 1.06 bytes per element.

    Relative error of normal data (‖decoded - x‖ / ‖x‖): 0.0046 to 0.0055.
    """

    name = "q8_0"

    def widths(self, dim: int) -> dict[str, tuple[int, torch.dtype]]:
        return {"codes": (dim, torch.int8), "scales": (num_groups(dim), torch.float16)}

    def encode(self, values: Tensor) -> dict[str, Tensor]:
        groups = _in_groups(values)
        # A product, not a quotient: by a constant, devices divide in different ways.
        scales = finite_half(groups.abs().amax(-1) * (1 / 127))
        return {"codes": _codes(groups, scales, values.shape[-1], -127, 127).to(torch.int8), "scales": scales}

    def decode(self, planes: Mapping[str, Tensor], dim: int) -> Tensor:
        return planes["codes"].float() * _per_element(planes["scales"], dim)

    def stored(self, planes: Mapping[str, Tensor], dim: int) -> StoredRows:
        return StoredRows(planes["codes"], encoding="q8_0", dim=dim, scales=planes["scales"])


class Q4Codec(PlaneCodec):
    """`q4_0`: codes -8 to 7, scaled so that the group's element of largest magnitude becomes -8. 0.56 bytes each.

    Stored as code + 8, element d in the lower half of byte d and element d + D / 2 in the upper.
    Relative error of normal data (‖decoded - x‖ / ‖x‖): 0.074 to 0.088.
    """

    name = "q4_0"

    def widths(self, dim: int) -> dict[str, tuple[int, torch.dtype]]:
        return {"codes": (dim // 2, torch.uint8), "scales": (num_groups(dim), torch.float16)}

    def encode(self, values: Tensor) -> dict[str, Tensor]:
        groups = _in_groups(values)
        highest, lowest = groups.amax(-1), groups.amin(-1)
        scales = finite_half(torch.where(highest >= -lowest, highest, lowest) * -0.125)
        return {"codes": pack_nibbles(_codes(groups, scales, values.shape[-1], -8, 7) + 8), "scales": scales}

    def decode(self, planes: Mapping[str, Tensor], dim: int) -> Tensor:
        codes: Tensor = unpack_nibbles(planes["codes"]).float() - 8
        return codes * _per_element(planes["scales"], dim)

    def stored(self, planes: Mapping[str, Tensor], dim: int) -> StoredRows:
        return StoredRows(planes["codes"], encoding="q4_0", dim=dim, scales=planes["scales"])


def num_groups(dim: int) -> int:
    """Scales of one head; the last group may be short."""
    return -(-dim // GROUP)


def _in_groups(values: Tensor) -> Tensor:
    """values [T, H, D] -> [T, H, groups, 32] float32; zeros fill up the last group and change none of its extremes."""
    dim = values.shape[-1]
    padded: Tensor = F.pad(values.float(), (0, -dim % GROUP)).unflatten(-1, (-1, GROUP))
    return padded


def _codes(groups: Tensor, scales: Tensor, dim: int, least: int, most: int) -> Tensor:
    """[T, H, D] whole float32 numbers; ties go to the even one. 0 where the scale is 0 or not finite."""
    scale = scales.float().unsqueeze(-1)
    codes = (groups / scale).clamp(least, most).round()
    codes = torch.where((scale != 0) & scale.isfinite(), codes, 0.0)
    return codes.flatten(-2)[..., :dim]


def _per_element(scales: Tensor, dim: int) -> Tensor:
    """scales [T, H, groups] -> [T, H, D] float32."""
    return scales.float().repeat_interleave(GROUP, dim=-1)[..., :dim]
