"""Context shift in storage: keys of the tokens that go on are rotated back by as many positions as were dropped.

Which blocks are dropped is the bookkeeping's business, and done before; values and kept tokens stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.cache.refusals import InvalidArgument
from octavo.cache.spec import CacheGroup
from octavo.errors import InvalidRequest
from octavo.step_batch import StepRow, StorageKind
from octavo.storage.block_table import BlockTable
from octavo.storage.codecs import Codec, RowStore
from octavo.storage.plan import Piece, pieces_of

# layer -> [R / 2]: dimensions [0, R) of a head are rotated, in pairs (i, i + R / 2)
InverseFrequencies = Callable[[int], Tensor]

# Only where an encoded key is the key itself, rounded: others would lose as much again with every shift.
ROTATABLE = frozenset({"f32", "f16", "bf16"})


def check_codec(k_codec: Codec) -> None:
    """Raises `InvalidRequest` if stored keys cannot be rotated."""
    if k_codec.name not in ROTATABLE:
        raise InvalidRequest(
            f"kv dtype {k_codec.name} for k cannot be shifted; choose one of {', '.join(sorted(ROTATABLE))} for k, "
            "or context limit policy stop"
        )


def check_row(row: StepRow, groups: Sequence[CacheGroup], table: BlockTable) -> None:
    """Raises `InvalidArgument` unless `row` was shifted further than `table`, without a gap in what it shows."""
    name, offset, keep = f"slot {row.slot}", row.rope_offset, row.keep
    if row.storage is not StorageKind.PAGED:
        raise InvalidArgument(f"{name} holds a {row.storage.value} sequence; only paged ones can be shifted")
    if table.rope_offset and table.keep != keep:
        raise InvalidArgument(f"{name} keeps {keep} tokens and kept {table.keep} when it was shifted before")
    if not table.rope_offset <= offset <= row.start - keep:
        raise InvalidArgument(
            f"{name} with {row.start} tokens, {keep} of them kept, has rope offset {offset}; "
            f"it must be from {table.rope_offset} to {row.start - keep}"
        )
    for g, (group, live_start) in enumerate(zip(groups, row.live_start, strict=True)):
        needed = max(keep, group.spec.first_visible(row.rope_start)) + offset
        if live_start > needed or (group.spec.window is None and live_start < needed):
            raise InvalidArgument(
                f"{name} goes on at position {live_start} in group {g} after {keep} kept tokens; "
                f"with rope offset {offset} it must be {needed}"
            )


def rotate_back(
    layers: Mapping[int, RowStore], mapping: NDArray[np.int64], delta: int, inverse_frequencies: Mapping[int, Tensor]
) -> None:
    """Rotate the keys in stored rows `mapping` [T] of every layer by `-delta` positions."""
    pieces, rows = pieces_of(mapping), torch.from_numpy(mapping)
    for layer, keys in layers.items():
        cos, sin = _rotation(inverse_frequencies[layer], -delta)
        decoded = _read(keys, pieces, len(mapping))
        keys.write(rows.to(decoded.device), _rotated(decoded, cos.to(decoded.device), sin.to(decoded.device)))


def check_frequencies(inverse_frequencies: Tensor, layer: int, k_dim: int) -> None:
    """Raises `InvalidArgument` if a head has fewer than the dimensions that are rotated."""
    if inverse_frequencies.dim() != 1 or 2 * len(inverse_frequencies) > k_dim:
        raise InvalidArgument(
            f"layer {layer} is given inverse frequencies of shape {tuple(inverse_frequencies.shape)}; "
            f"a head of {k_dim} takes at most {k_dim // 2}"
        )


def _rotation(inverse_frequencies: Tensor, delta: int) -> tuple[Tensor, Tensor]:
    """cos and sin [R / 2] float32 of `delta` positions. No long-context magnitude: stored keys carry it already."""
    angle = inverse_frequencies.double() * delta
    return angle.cos().float(), angle.sin().float()


def _read(keys: RowStore, pieces: Sequence[Piece], num_tokens: int) -> Tensor:
    """Decoded rows [T, H, D] float32."""
    (plane,) = keys.planes().values()  # of a rotatable codec: the values themselves
    out = torch.empty(plane.shape[1], num_tokens, plane.shape[2], device=plane.device)
    for piece in pieces:
        keys.read(piece.start, piece.stop, out[:, piece.at : piece.at + piece.stop - piece.start])
    return out.transpose(0, 1)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, H, D] with pairs (i, i + R/2) of its first R dimensions rotated."""
    half = len(cos)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
