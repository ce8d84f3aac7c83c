"""To how many rows a decode step is padded, so that few graphs serve all batches."""

from __future__ import annotations

_SMALL = (1, 2, 4, 8)
_STEPS = ((32, 8), (64, 16))  # up to so many rows, in steps of so many
_WIDE_STEP = 32


def padded_rows(num_rows: int, most: int) -> int:
    """1, 2, 4, 8, then multiples of 8 up to 32, of 16 up to 64, and of 32 above; `most` where that is less."""
    assert 1 <= num_rows <= most, f"{num_rows} rows, of {most} at most"
    for size in _SMALL:
        if num_rows <= size:
            return min(size, most)
    step = next((step for limit, step in _STEPS if num_rows <= limit), _WIDE_STEP)
    return min(-(-num_rows // step) * step, most)
