"""The safetensors container: one file's table of tensors, every offset checked against the file's size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

from octavo.errors import LoadError
from octavo.models.loaders.mapped_file import Bytes, map_file

MAX_HEADER_BYTES = 100_000_000
ITEM_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
}


@dataclass(frozen=True, slots=True, eq=False)
class StoredArray:
    """One tensor as it lies in the file. `data` is flat uint8, not copied."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Bytes


def read_safetensors(path: Path) -> dict[str, StoredArray]:
    """Every tensor of a file, by its stored name. Raises `LoadError` with the tensor and both sizes; reads no data."""
    data = map_file(path)
    size = len(data)
    if size < 8:
        raise LoadError(f"{path}: has {size} bytes, too few for a safetensors header; download it again")
    header_bytes = int.from_bytes(data[:8].tobytes(), "little")
    if header_bytes > min(size - 8, MAX_HEADER_BYTES):
        raise LoadError(
            f"{path}: the header needs {header_bytes} bytes, but the file has {size} bytes "
            f"(and {MAX_HEADER_BYTES} are the limit); it is truncated or not a safetensors file"
        )
    header = _parse_header(path, data[8 : 8 + header_bytes].tobytes())
    body = data[8 + header_bytes :]
    arrays = {name: _stored_array(path, name, entry, body) for name, entry in header.items() if name != "__metadata__"}
    _refuse_overlaps(path, {name: header[name]["data_offsets"] for name in arrays})
    return arrays


def _parse_header(path: Path, text: bytes) -> dict[str, Any]:
    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise LoadError(f"{path}: a name occurs twice in the header; the file is corrupt")
        return found

    try:
        header = json.loads(text, object_pairs_hook=without_repeats)
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: the header is not JSON ({error}); it is not a safetensors file") from None
    if not isinstance(header, dict):
        raise LoadError(f"{path}: the header is not a JSON object; it is not a safetensors file")
    return header


def _stored_array(path: Path, name: str, entry: Any, body: Bytes) -> StoredArray:
    where = f"{path}: tensor {name!r}"
    if not isinstance(entry, dict) or not _whole_numbers(entry.get("shape")):
        raise LoadError(f"{where} has no valid shape in the header; the file is corrupt")
    dtype, shape, offsets = entry.get("dtype"), entry["shape"], entry.get("data_offsets")
    if dtype not in ITEM_BYTES:
        raise LoadError(f"{where} has unknown dtype {dtype!r}; known are {', '.join(ITEM_BYTES)}")
    if not _whole_numbers(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise LoadError(f"{where} has no valid data_offsets in the header; the file is corrupt")
    begin, end = offsets
    needed = prod(shape) * ITEM_BYTES[dtype]
    if end - begin != needed:
        raise LoadError(f"{where} of {shape} {dtype} needs {needed} bytes, but the header gives it {end - begin}")
    if end > len(body):
        raise LoadError(
            f"{where} ends at byte {end} of the data, but the file has only {len(body)} bytes of data; "
            "it is truncated, download it again"
        )
    return StoredArray(name, dtype, tuple(shape), body[begin:end])


def _whole_numbers(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _refuse_overlaps(path: Path, offsets: Mapping[str, list[int]]) -> None:
    ordered = sorted(offsets.items(), key=lambda item: item[1])
    for (left, (_, end)), (right, (begin, _)) in pairwise(ordered):
        if begin < end:
            raise LoadError(f"{path}: tensors {left!r} and {right!r} overlap at byte {begin}; the file is corrupt")
