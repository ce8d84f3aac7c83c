"""One sequence's K/V outside any cache, and what it says of itself. Owns meaning and checks, not the bytes' container.

In memory it is tensors; `KVCache.export` and `KVCache.import_` move rows between it and storage.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from octavo.cache.spec import CacheGroup, LayerKind
from octavo.errors import InvalidRequest, LoadError, shown
from octavo.storage import snapshot_file
from octavo.storage.snapshot_file import check_writable

__all__ = ["GroupGeometry", "GroupRows", "KVSnapshot", "LayerRows", "ModelIdentity", "check_writable"]

_TOKENS = "token_ids"
_REMEDY = "make the snapshot again"


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Which model computed K/V, and how. `name` is for people; the other two must be equal for K/V to be."""

    name: str
    fingerprint: str
    compute: str


@dataclass(frozen=True, slots=True)
class GroupGeometry:
    """The shape of a group's K/V: what of its `LayerSpec` decides which rows there are and how wide."""

    kind: str
    num_kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None
    layers: tuple[int, ...]

    @classmethod
    def of(cls, group: CacheGroup) -> GroupGeometry:
        spec = group.spec
        return cls(spec.kind, spec.num_kv_heads, spec.k_dim, spec.v_dim, spec.window, group.layers)

    def __str__(self) -> str:
        window = "" if self.window is None else f" of {self.window}"
        return (
            f"{len(self.layers)} {self.kind}{window} layers from {self.layers[0]} with {self.num_kv_heads} K/V heads "
            f"of {self.k_dim} and {self.v_dim} elements"
        )


@dataclass(frozen=True, slots=True, eq=False)
class LayerRows:
    """Encoded K and V of one layer: a codec's planes by name, each [num_rows, num_kv_heads, width]."""

    k: Mapping[str, Tensor]
    v: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class GroupRows:
    """One group's rows in position order: positions `[0, keep)`, then `[live_start, written)`."""

    geometry: GroupGeometry
    keep: int
    live_start: int
    layers: tuple[LayerRows, ...]


@dataclass(frozen=True, slots=True, eq=False)
class KVSnapshot:
    """K/V of the tokens `token_ids`, rotated as stored (K is `rope_offset` positions short of its index).

    Immutable, and free of whatever cache it came from: block size and storage may differ where it goes.
    """

    model: ModelIdentity
    codecs: tuple[str, str]
    token_ids: tuple[int, ...]
    rope_offset: int
    groups: tuple[GroupRows, ...]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_bytes(self) -> int:
        """Bytes of all encoded rows."""
        return sum(plane.nbytes for plane in self._planes().values())

    def check_model(self, model: ModelIdentity) -> None:
        """Raises `InvalidRequest` unless `model` computes the same K/V."""
        if self.model.fingerprint != model.fingerprint:
            raise InvalidRequest(
                f"the K/V snapshot was taken from {shown(self.model.name)}, and this model, {shown(model.name)}, has "
                f"another config or other weights; {_REMEDY} with this one"
            )
        if self.model.compute != model.compute:
            raise InvalidRequest(
                f"the K/V snapshot was computed in {self.model.compute}, and this engine has {model.compute}; choose "
                f"the same dtype and weights, or {_REMEDY}"
            )

    def check_prefix_of(self, prompt: Sequence[int]) -> None:
        """Raises `InvalidRequest` unless the tokens are a proper prefix of `prompt`, and none was dropped."""
        for position, (cached, given) in enumerate(zip(self.token_ids, prompt, strict=False)):
            if cached != given:
                raise InvalidRequest(
                    f"the K/V snapshot has token {cached} at position {position} and the prompt has {given}; the "
                    f"prompt must begin with all {self.num_tokens} tokens of the snapshot"
                )
        if len(prompt) <= self.num_tokens:
            raise InvalidRequest(
                f"the K/V snapshot has {self.num_tokens} tokens and the prompt {len(prompt)}; the prompt must go on "
                "where the snapshot ends, by at least one token"
            )
        if self.rope_offset:
            raise InvalidRequest(
                f"the K/V snapshot was taken after a context shift of {self.rope_offset} tokens; no prompt can go on "
                "from it: take one before the context is shifted"
            )

    def to_bytes(self) -> bytes:
        return b"".join(self._encode())

    @classmethod
    def from_bytes(cls, data: bytes) -> KVSnapshot:
        """Raises `LoadError` for anything but what `to_bytes` gave, to the last bit."""
        where = "K/V snapshot"
        return cls._of(snapshot_file.decode(io.BytesIO(data), len(data), where), where)

    def save(self, path: Path) -> None:
        """Write a file, whole or not at all, readable by its owner alone. Raises `InvalidRequest`."""
        snapshot_file.write_file(path, self._encode())

    @classmethod
    def load(cls, path: Path) -> KVSnapshot:
        """Raises `LoadError` if the file cannot be read or is no intact snapshot of this version."""
        return cls._of(snapshot_file.read_file(path), str(path))

    def _encode(self) -> Iterator[memoryview | bytes]:
        groups = [
            {**asdict(group.geometry), "keep": group.keep, "live_start": group.live_start} for group in self.groups
        ]
        metadata = {
            "model": asdict(self.model),
            "codecs": list(self.codecs),
            "written": self.num_tokens,
            "rope_offset": self.rope_offset,
            "groups": groups,
        }
        token_ids = torch.tensor(self.token_ids, dtype=torch.int64)
        return snapshot_file.encode(metadata, {_TOKENS: token_ids, **self._planes()})

    def _planes(self) -> dict[str, Tensor]:
        return {
            f"layers.{layer}.{side}.{name}": plane
            for group in self.groups
            for layer, rows in zip(group.geometry.layers, group.layers, strict=True)
            for side, planes in (("k", rows.k), ("v", rows.v))
            for name, plane in planes.items()
        }

    @classmethod
    def _of(cls, contents: snapshot_file.Contents, where: str) -> KVSnapshot:
        return _Reader(where, dict(contents.arrays)).snapshot(contents.metadata)


class _Reader:
    """Turns a container's JSON and arrays into a snapshot, believing neither."""

    def __init__(self, where: str, arrays: dict[str, Tensor]) -> None:
        self._where = where
        self._arrays = arrays

    def snapshot(self, metadata: Any) -> KVSnapshot:
        token_ids = self._arrays.pop(_TOKENS, None)
        if token_ids is None or token_ids.dtype != torch.int64 or token_ids.dim() != 1:
            raise self._bad("has no token ids")
        written = self._count(metadata, "written")
        if written != len(token_ids):
            raise self._bad(f"has {len(token_ids)} token ids and says that {written} tokens are written")
        model = self._field(metadata, "model", dict)
        names = self._field(metadata, "codecs", list)
        if len(names) != 2 or not all(isinstance(name, str) for name in names):
            raise self._bad("does not name a codec for K and one for V")
        snapshot = KVSnapshot(
            model=ModelIdentity(*(self._field(model, key, str) for key in ("name", "fingerprint", "compute"))),
            codecs=(names[0], names[1]),
            token_ids=tuple(token_ids.tolist()),
            rope_offset=self._count(metadata, "rope_offset", written),
            groups=tuple(self._group(each, written) for each in self._field(metadata, "groups", list)),
        )
        if self._arrays:
            raise self._bad(f"has an array {shown(next(iter(self._arrays)))} that belongs to no layer")
        return snapshot

    def _group(self, metadata: Any, written: int) -> GroupRows:
        kind, layers = self._field(metadata, "kind", str), self._field(metadata, "layers", list)
        if kind not in get_args(LayerKind) or not layers or not all(type(n) is int and n >= 0 for n in layers):
            raise self._bad("has a group of unknown kind or without layers")
        window = None if self._field(metadata, "window", object) is None else self._count(metadata, "window")
        heads, k_dim, v_dim = (self._count(metadata, key) for key in ("num_kv_heads", "k_dim", "v_dim"))
        keep, live_start = self._count(metadata, "keep", written), self._count(metadata, "live_start", written)
        if keep > live_start:
            raise self._bad(f"has a group that keeps {keep} tokens, beyond where it goes on, {live_start}")
        shape = (keep + written - live_start, heads)
        rows = tuple(
            LayerRows(self._take(f"layers.{n}.k.", shape), self._take(f"layers.{n}.v.", shape)) for n in layers
        )
        return GroupRows(GroupGeometry(kind, heads, k_dim, v_dim, window, tuple(layers)), keep, live_start, rows)

    def _take(self, prefix: str, shape: tuple[int, int]) -> dict[str, Tensor]:
        names = [name for name in self._arrays if name.startswith(prefix)]
        if not names:
            raise self._bad(f"has no array {prefix}*")
        for name in names:
            if self._arrays[name].dim() != 3 or self._arrays[name].shape[:2] != shape:
                raise self._bad(
                    f"has an array {shown(name)} of shape {list(self._arrays[name].shape)}, not {[*shape, '…']}"
                )
        return {name.removeprefix(prefix): self._arrays.pop(name) for name in names}

    def _count(self, metadata: Any, key: str, most: int = 2**31 - 1) -> int:
        value = self._field(metadata, key, int)
        if isinstance(value, bool) or not 0 <= value <= most:
            raise self._bad(f"says that {key} is {shown(value)}, which must be from 0 to {most}")
        return int(value)

    def _field(self, metadata: Any, key: str, kind: type) -> Any:
        if not isinstance(metadata, dict) or key not in metadata or not isinstance(metadata[key], kind):
            raise self._bad(f"does not say what {key} is")
        return metadata[key]

    def _bad(self, problem: str) -> LoadError:
        return LoadError(f"{self._where}: {problem}; {_REMEDY}")
