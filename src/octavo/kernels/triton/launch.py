"""What a device's launches may use. Knows no kernel."""

from __future__ import annotations

from functools import cache

import torch


@cache
def dependent_launch(device: torch.device) -> bool:
    """Whether a kernel may start while the one before it ends, and wait where it must (programmatic dependent launch).

    A kernel that is launched so waits in every program before it reads what the step computes, and before it writes.
    What it reads earlier, weights and what the step's plan sent, must be older than the kernel in front of it.
    """
    return _capability(device) >= (9, 0)


@cache
def has_warpgroup_products(device: torch.device) -> bool:
    """Whether four warps multiply together what copies of whole tiles bring to shared memory: on Hopper."""
    return _capability(device)[0] == 9


def _capability(device: torch.device) -> tuple[int, int]:
    """CUDA's; (0, 0) for other devices."""
    cuda = device.type == "cuda" and torch.version.cuda is not None
    return torch.cuda.get_device_capability(device) if cuda else (0, 0)
