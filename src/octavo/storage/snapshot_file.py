"""The bytes of a K/V snapshot: safetensors with a checksum as its last tensor. Knows nothing of what they mean.

| header size, 8 bytes | header, JSON | arrays, widest elements first … | BLAKE2b of all bytes before it, 32 bytes |
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import torch
from torch import Tensor

from octavo.cache.spec import MAX_DIM
from octavo.errors import InvalidRequest, LoadError, shown

FORMAT = "octavo-kv-snapshot"
VERSION = 1
MAX_HEADER_BYTES = 1 << 22
CHECKSUM = "checksum"
_DIGEST_BYTES = 32
_DTYPES = {
    "I64": torch.int64,
    "I32": torch.int32,
    "F32": torch.float32,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
    "U8": torch.uint8,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_REMEDY = "make the snapshot again"


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """What a container holds: a JSON object and named arrays, which share one buffer."""

    metadata: Any
    arrays: Mapping[str, Tensor]


def encode(metadata: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> Iterator[memoryview | bytes]:
    """The container, piece by piece; arrays of a CPU are not copied."""
    # Widest first, so that every array is aligned without gaps, which the format forbids.
    ordered = sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    entries: dict[str, Any] = {}
    offset = 0
    for name, array in ordered:
        end = offset + array.numel() * array.dtype.itemsize
        entries[name] = _entry(_NAMES[array.dtype], list(array.shape), offset, end)
        offset = end
    entries[CHECKSUM] = _entry("U8", [_DIGEST_BYTES], offset, offset + _DIGEST_BYTES)
    about = {"format": FORMAT, "version": str(VERSION), "snapshot": json.dumps(metadata)}
    header = json.dumps({"__metadata__": about, **entries}).encode()
    header += b" " * (-len(header) % 8)
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    head: list[memoryview | bytes] = [len(header).to_bytes(8, "little"), header]
    for piece in chain(head, (_memory(array) for _, array in ordered)):
        digest.update(piece)
        yield piece
    yield digest.digest()


def decode(stream: BinaryIO, size: int, where: str) -> Contents:
    """The contents of a container of `size` bytes, checked to the last one; `where` names it in errors.

    Raises `LoadError` for anything but an intact snapshot of this version. Nothing is read that the header's own
    size, and then the stream's, does not cover.
    """
    prefix, header = _read_header(stream, size, where)
    about = header.get("__metadata__")
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise LoadError(f"{where}: is not a K/V snapshot; give one that was saved with --save-cache or KVSnapshot.save")
    if about.get("version") != str(VERSION):
        raise LoadError(
            f"{where}: is a K/V snapshot of version {shown(about.get('version'))}; this Octavo reads version "
            f"{VERSION}: {_REMEDY} with it"
        )
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    spans = _spans(entries, size - len(prefix), where)
    payload = bytearray(size - len(prefix))
    read = stream.readinto(payload)  # type: ignore[attr-defined]
    if read != len(payload):
        raise LoadError(f"{where}: ended after {len(prefix) + read} of {size} bytes while it was read; {_REMEDY}")
    digest = hashlib.blake2b(prefix, digest_size=_DIGEST_BYTES)
    digest.update(memoryview(payload)[: len(payload) - _DIGEST_BYTES])
    if digest.digest() != payload[len(payload) - _DIGEST_BYTES :]:
        raise LoadError(f"{where}: its checksum does not match its {size} bytes, so it is corrupt; {_REMEDY}")
    buffer = torch.frombuffer(payload, dtype=torch.uint8)
    arrays = {
        name: buffer[begin:end].view(dtype).view(shape)
        for name, (dtype, shape, begin, end) in spans.items()
        if name != CHECKSUM
    }
    return Contents(_metadata(about.get("snapshot"), where), arrays)


def write_file(path: Path, pieces: Iterator[memoryview | bytes]) -> None:
    """Write `path`, whole or not at all, readable by its owner alone. Raises `InvalidRequest` if it cannot be."""
    check_writable(path)
    target = Path(os.path.realpath(path))  # through a link, not over it
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name[:64]}.", dir=target.parent)  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InvalidRequest(
            f"{path}: cannot be written ({error.strerror or error}); give a path with room and permission"
        ) from error


def check_writable(path: Path) -> None:
    """Raises `InvalidRequest` if it is plain before anything is computed that `path` cannot be written."""
    try:
        os.stat(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InvalidRequest(f"{path}: is a link that leads to itself; give another path") from error
    if os.path.exists(path) and not os.path.isfile(path):
        raise InvalidRequest(f"{path}: is no regular file; give another path to save the K/V snapshot to")
    parent = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(parent):
        raise InvalidRequest(f"{path}: cannot be written, as {parent} is no directory; create it first")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InvalidRequest(f"{path}: cannot be written, as {parent} is not writable; give another path")


def read_file(path: Path) -> Contents:
    """Raises `LoadError` if the file cannot be read or is no intact snapshot."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # before it is opened: a pipe would wait for a writer
            raise LoadError(f"{path}: is no regular file; give one that was saved with --save-cache")
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            return decode(file, status.st_size, str(path))
    except OSError as error:
        raise LoadError(f"{path}: cannot be read ({error.strerror or error}); check the path") from error


def _entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def _memory(array: Tensor) -> memoryview:
    # A view of bytes first: numpy has no bfloat16.
    return array.contiguous().cpu().flatten().view(torch.uint8).numpy().data


def _read_header(stream: BinaryIO, size: int, where: str) -> tuple[bytes, dict[str, Any]]:
    """All bytes up to the end of the header, and the header."""
    length = stream.read(8)
    num_bytes = int.from_bytes(length, "little")
    if size < 8 + _DIGEST_BYTES or len(length) < 8 or num_bytes > min(size - 8 - _DIGEST_BYTES, MAX_HEADER_BYTES):
        raise LoadError(
            f"{where}: declares a header of {num_bytes} bytes, but has {size} bytes (and {MAX_HEADER_BYTES} are the "
            "limit); it is truncated, or no K/V snapshot"
        )
    text = stream.read(num_bytes)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise LoadError(f"{where}: its header is not JSON; it is corrupt, or no K/V snapshot") from None
    if not isinstance(header, dict):
        raise LoadError(f"{where}: its header is not a JSON object; it is corrupt, or no K/V snapshot")
    return length + text, header


def _spans(
    entries: Mapping[str, Any], num_bytes: int, where: str
) -> dict[str, tuple[torch.dtype, tuple[int, ...], int, int]]:
    """dtype, shape, begin and end of each array: one after the other, the checksum last, `num_bytes` in all."""
    spans: dict[str, tuple[torch.dtype, tuple[int, ...], int, int]] = {}
    offset = 0
    for name, entry in entries.items():
        dtype = _DTYPES.get(entry["dtype"]) if isinstance(entry, dict) and isinstance(entry.get("dtype"), str) else None
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if dtype is None or not _is_shape(shape):
            raise LoadError(f"{where}: array {shown(name)} has no valid dtype and shape; {_REMEDY}")
        end = offset + prod(shape) * dtype.itemsize
        if entry.get("data_offsets") != [offset, end] or offset % dtype.itemsize:
            raise LoadError(f"{where}: array {shown(name)} does not lie at bytes {offset} to {end}; {_REMEDY}")
        spans[name] = (dtype, tuple(shape), offset, end)
        offset = end
    if not spans or next(reversed(spans)) != CHECKSUM or spans[CHECKSUM][:2] != (torch.uint8, (_DIGEST_BYTES,)):
        raise LoadError(f"{where}: has no checksum at its end; {_REMEDY}")
    if offset != num_bytes:
        raise LoadError(
            f"{where}: has {num_bytes} bytes of arrays, its header says {offset}; it is truncated or corrupt"
        )
    return spans


def _is_shape(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and len(value) <= 3 and all(type(n) is int and 0 <= n <= MAX_DIM for n in value)


def _metadata(text: object, where: str) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        raise LoadError(f"{where}: its description is not JSON; {_REMEDY}") from None
