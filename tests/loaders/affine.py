"""What affine groups stand for, by their definition."""

from __future__ import annotations

import torch

from octavo.layers.quant_tensor import AffineGroups


def affine_values(groups: AffineGroups) -> torch.Tensor:
    """[N, K] float32: (codes - zero) * scale, plus the minimum where there is one."""
    num_rows, num_columns = groups.codes.shape
    values = (groups.codes.view(num_rows, -1, groups.group).float() - groups.zero) * groups.scale[..., None]
    if groups.minimum is not None:
        values = values + groups.minimum[..., None]
    return values.view(num_rows, num_columns)
