"""Whether a product gives a row the same bits alone and among others: tried out on the machine at hand in milliseconds.

One mechanism for all routes; which of them is asked, and what follows, is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]  # x [T, K] float32 -> [T, N]

COUNTS = (1, 2, 3, 5, 8, 13, 17, 21, 31, 64)  # of rows


def differing_count(products: Sequence[Product], columns: int, device: torch.device) -> int | None:
    """The least of COUNTS at which a row's bits are others than in the largest; None if all are the same.

    `columns` is K; inputs are the same every time.
    """
    x = torch.randn(COUNTS[-1], columns, generator=torch.Generator().manual_seed(0)).to(device)
    wholes = [product(x) for product in products]
    for count in COUNTS[:-1]:
        part = x[-count:].contiguous()
        if any(not torch.equal(product(part), whole[-count:]) for product, whole in zip(products, wholes, strict=True)):
            return count
    return None
