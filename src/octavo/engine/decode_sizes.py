"""To how many rows a decode step is padded, so that few graphs serve all batches."""

from __future__ import annotations

_SMALL = (1, 2, 4, 8)
_STEP = 8
_WIDE_FROM, _WIDE_STEP = 32, 16


def padded_rows(num_rows: int, most: int) -> int:
    """1, 2, 4, 8, then multiples of 8 up to 32 and of 16 above; `most` where that is less."""
    assert 1 <= num_rows <= most, f"{num_rows} rows, of {most} at most"
    for size in _SMALL:
        if num_rows <= size:
            return min(size, most)
    step = _STEP if num_rows <= _WIDE_FROM else _WIDE_STEP
    return min(-(-num_rows // step) * step, most)
