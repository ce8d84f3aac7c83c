"""Whether a product gives a row the same bits alone and among others: tried out on the machine at hand in milliseconds.

One mechanism for all routes; which of them is asked, and what follows, is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]  # x [T, K] float32 -> [T, N]

COUNTS = (1, 2, 3, 5, 8, 13, 17, 21, 31, 64)  # of rows


# Where a sum is taken in another order, one number of a thousand may have other bits if the sum is short.
_NUMBERS = 16_384  # that are compared at each count, if there are as many


def differing_count(products: Sequence[Product], columns: int, device: torch.device) -> int | None:
    """The least of COUNTS at which a row's bits are others than in the largest; None if all are the same.

    `columns` is K; inputs are the same every time.
    """
    x = torch.randn(COUNTS[-1], columns, generator=torch.Generator().manual_seed(0)).to(device)
    wholes = [product(x) for product in products]
    for count in COUNTS[:-1]:
        for product, whole in zip(products, wholes, strict=True):
            tried = -(-_NUMBERS // (count * whole.shape[1]))
            parts = list(zip(x.split(count), whole.split(count), strict=True))[-tried:]
            if any(not torch.equal(product(part.contiguous()), of_whole) for part, of_whole in parts):
                return count
    return None
