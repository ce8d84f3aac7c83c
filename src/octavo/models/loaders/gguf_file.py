"""The GGUF container: header, metadata and the table of tensors, every length checked against the file's size.

Owns the file format only; what names and values mean to a model is for `gguf_config` and `gguf_names`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from octavo.errors import LoadError
from octavo.models.loaders.encoded_tensor import EncodedTensor
from octavo.models.loaders.encodings import Encoding, gguf_encoding
from octavo.models.loaders.mapped_file import Bytes, map_file

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMS = 4
MAX_ARRAY_DEPTH = 2
DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32, _U64 = _SCALARS[4], _SCALARS[10]
# Fewest bytes of a key-value pair (empty key, type, one byte) and of a tensor entry (empty name, no dimensions).
_MIN_PAIR_BYTES, _MIN_ENTRY_BYTES = 13, 24


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of the table. `shape` is row-major, `[out, in]`; `offset` counts from the start of the file."""

    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class GGUFFile:
    """A mapped file whose header has been read and found sound. Tensor data is not touched."""

    path: Path
    data: Bytes
    metadata: Mapping[str, Any]
    entries: Mapping[str, TensorEntry]

    @classmethod
    def open(cls, path: Path) -> GGUFFile:
        """Raises `LoadError` naming the file, the tensor and both sizes where something does not fit."""
        data = map_file(path)
        cursor = _Cursor(path, data.data)
        num_tensors, num_pairs = _read_counts(cursor)
        metadata = _read_metadata(cursor, num_pairs)
        entries = _read_entries(cursor, num_tensors, _alignment(path, metadata))
        return cls(path, data, metadata, entries)

    def tensor(self, entry: TensorEntry) -> EncodedTensor:
        """The tensor as stored, under its GGUF name."""
        stored = self.data[entry.offset : entry.offset + entry.num_bytes]
        return EncodedTensor.from_bytes(entry.name, entry.shape, entry.encoding, stored)


class _Cursor:
    """A position in the file; every read is checked against the end first, so no length is ever trusted."""

    def __init__(self, path: Path, view: memoryview) -> None:
        self.path = path
        self.view = view
        self.size = len(view)
        self.pos = 0

    def need(self, count: int, what: str) -> None:
        if count > self.size - self.pos:
            raise LoadError(
                f"{self.path}: {what} needs {count} bytes at offset {self.pos}, but the file has {self.size} bytes; "
                "it is truncated or corrupt, download it again"
            )

    def scalar(self, layout: struct.Struct, what: str) -> Any:
        self.need(layout.size, what)
        (value,) = layout.unpack_from(self.view, self.pos)
        self.pos += layout.size
        return value

    def text(self, what: str, *, errors: str = "strict") -> str:
        length = self.scalar(_U64, what)
        self.need(length, what)
        start, self.pos = self.pos, self.pos + length
        try:
            return str(self.view[start : self.pos], "utf-8", errors)
        except UnicodeDecodeError:
            raise LoadError(f"{self.path}: {what} at offset {start} is not UTF-8; the file is corrupt") from None

    def texts(self, count: int, what: str) -> list[str]:
        """`count` strings; the tight loop of vocabularies. Bytes that are not UTF-8 become U+FFFD."""
        view, pos, size, unpack = self.view, self.pos, self.size, _U64.unpack_from
        found: list[str] = []
        for _ in range(count):
            if size - pos < 8:
                break
            (length,) = unpack(view, pos)
            pos += 8
            if length > size - pos:
                self.pos = pos
                self.need(length, what)
            found.append(str(view[pos : pos + length], "utf-8", "replace"))
            pos += length
        self.pos = pos
        if len(found) < count:
            self.need(8, what)
        return found


def _read_counts(cursor: _Cursor) -> tuple[int, int]:
    """Checks magic and version; (number of tensors, number of metadata pairs)."""
    path = cursor.path
    if cursor.size < 4 or bytes(cursor.view[:4]) != MAGIC:
        raise LoadError(f"{path}: begins with {bytes(cursor.view[:4])!r}, not {MAGIC!r}; it is not a GGUF file")
    cursor.pos = 4
    version = cursor.scalar(_U32, "the version")
    if version not in VERSIONS:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in (1, *VERSIONS):
            raise LoadError(
                f"{path}: is a big-endian GGUF file; only little-endian ones are supported, convert it again"
            )
        raise LoadError(f"{path}: is GGUF version {version}; versions 2 and 3 are supported, convert it again")
    num_tensors = cursor.scalar(_U64, "the tensor count")
    num_pairs = cursor.scalar(_U64, "the metadata count")
    cursor.need(num_tensors * _MIN_ENTRY_BYTES, f"a table of {num_tensors} tensors")
    cursor.need(num_pairs * _MIN_PAIR_BYTES, f"metadata of {num_pairs} pairs")
    return num_tensors, num_pairs


def _read_metadata(cursor: _Cursor, num_pairs: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(num_pairs):
        key = cursor.text(f"the key of metadata pair {index}")
        if key in metadata:
            raise LoadError(f"{cursor.path}: metadata key {key!r} occurs twice; the file is corrupt")
        metadata[key] = _read_value(cursor, cursor.scalar(_U32, f"the type of {key!r}"), key)
    return metadata


def _read_value(cursor: _Cursor, kind: int, key: str, depth: int = 0) -> Any:
    what = f"metadata {key!r}"
    if kind == _STRING:
        return cursor.text(what, errors="replace")
    if kind in _SCALARS:
        return cursor.scalar(_SCALARS[kind], what)
    if kind != _ARRAY or depth >= MAX_ARRAY_DEPTH:
        raise LoadError(
            f"{cursor.path}: {what} has unknown type {kind} at depth {depth}; the file is corrupt or too new"
        )
    element = cursor.scalar(_U32, what)
    count = cursor.scalar(_U64, what)
    if element == _STRING:
        cursor.need(count * 8, f"{what}, an array of {count} strings,")
        return cursor.texts(count, what)
    if element in _SCALARS:
        layout = _SCALARS[element]
        cursor.need(count * layout.size, f"{what}, an array of {count} numbers,")
        values = struct.unpack_from(f"<{count}{layout.format[-1]}", cursor.view, cursor.pos)
        cursor.pos += count * layout.size
        return list(values)
    cursor.need(count * 12, f"{what}, an array of {count} arrays,")
    return [_read_value(cursor, element, key, depth + 1) for _ in range(count)]


def _alignment(path: Path, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
        raise LoadError(f"{path}: general.alignment is {alignment!r}; it must be a power of two of at least 8")
    return alignment


def _read_entries(cursor: _Cursor, num_tensors: int, alignment: int) -> dict[str, TensorEntry]:
    relative = [_read_entry(cursor, index) for index in range(num_tensors)]
    data_start = -(-cursor.pos // alignment) * alignment
    entries: dict[str, TensorEntry] = {}
    for entry in relative:
        if entry.name in entries:
            raise LoadError(f"{cursor.path}: tensor {entry.name!r} occurs twice; the file is corrupt")
        entries[entry.name] = _placed(cursor, entry, data_start, alignment)
    _refuse_overlaps(cursor.path, entries)
    return entries


def _read_entry(cursor: _Cursor, index: int) -> TensorEntry:
    """A table entry with its offset still relative to the data section."""
    name = cursor.text(f"the name of tensor {index}")
    where = f"{cursor.path}: tensor {name!r}"
    num_dims = cursor.scalar(_U32, f"the dimension count of tensor {name!r}")
    if not 1 <= num_dims <= MAX_DIMS:
        raise LoadError(f"{where} has {num_dims} dimensions; 1 to {MAX_DIMS} are possible, the file is corrupt")
    dims = [cursor.scalar(_U64, f"the shape of tensor {name!r}") for _ in range(num_dims)]
    encoding = gguf_encoding(cursor.scalar(_U32, f"the type of tensor {name!r}"), where)
    offset = cursor.scalar(_U64, f"the offset of tensor {name!r}")
    if 0 in dims:
        raise LoadError(f"{where} has shape {dims[::-1]}, which holds no values; the file is corrupt")
    if dims[0] % encoding.block_size:
        raise LoadError(
            f"{where} has rows of {dims[0]} values; {encoding.name} needs a multiple of {encoding.block_size}"
        )
    num_bytes = encoding.row_bytes(dims[0]) * prod(dims[1:])
    return TensorEntry(name, tuple(reversed(dims)), encoding, offset, num_bytes)


def _placed(cursor: _Cursor, entry: TensorEntry, data_start: int, alignment: int) -> TensorEntry:
    """The entry with an absolute offset. Python's integers cannot wrap, so plain comparisons are safe."""
    where = f"{cursor.path}: tensor {entry.name!r}"
    if entry.offset % alignment:
        raise LoadError(f"{where} begins at offset {entry.offset}, not a multiple of {alignment}; the file is corrupt")
    begin = data_start + entry.offset
    if begin + entry.num_bytes > cursor.size:
        raise LoadError(
            f"{where} needs bytes {begin} to {begin + entry.num_bytes}, but the file has {cursor.size} bytes; "
            "it is truncated or corrupt, download it again"
        )
    return TensorEntry(entry.name, entry.shape, entry.encoding, begin, entry.num_bytes)


def _refuse_overlaps(path: Path, entries: Mapping[str, TensorEntry]) -> None:
    ordered = sorted(entries.values(), key=lambda entry: entry.offset)
    for left, right in pairwise(ordered):
        if left.offset + left.num_bytes > right.offset:
            raise LoadError(
                f"{path}: tensor {right.name!r} begins at byte {right.offset}, inside tensor {left.name!r} "
                f"({left.num_bytes} bytes at {left.offset}); the file is corrupt"
            )
