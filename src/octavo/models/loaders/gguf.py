"""GGUF checkpoints: one file or a split set, with canonical names, values and config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from octavo.errors import LoadError
from octavo.models.config import ModelConfig
from octavo.models.loaders.checkpoint_base import TensorTable
from octavo.models.loaders.encoded_tensor import EncodedTensor
from octavo.models.loaders.expected import check_tensors
from octavo.models.loaders.gguf_config import model_config
from octavo.models.loaders.gguf_file import GGUFFile
from octavo.models.loaders.gguf_names import ROPE_FACTORS, hugging_face_name, is_redundant, with_canonical_values
from octavo.tokenizer import Tokenizer

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class GGUFCheckpoint(TensorTable):
    """An opened GGUF file or split set. `metadata` is the first file's, as stored."""

    def __init__(
        self, path: Path, config: ModelConfig, tensors: Mapping[str, EncodedTensor], metadata: Mapping[str, Any]
    ) -> None:
        super().__init__(path, config, tensors)
        self.metadata = metadata

    @classmethod
    def open(cls, path: Path) -> GGUFCheckpoint:
        """Opens a file, or the whole split set that `path` is one of. Raises `LoadError`; reads no weights."""
        files = [GGUFFile.open(shard) for shard in split_set(path)]
        _check_split(files)
        metadata = files[0].metadata
        stored = _stored_tensors(files)
        factors = stored.pop(ROPE_FACTORS, None)
        config = model_config(
            path,
            metadata,
            {name: tensor.shape for name, tensor in stored.items()},
            None if factors is None else tuple(factors.dequantize().flatten().tolist()),
        )
        return cls(path, config, _canonical(path, config, stored), metadata)

    def tokenizer(self, *, force: bool = False) -> Tokenizer:
        """Raises `LoadError` for an unknown pre-tokeniser unless `force`."""
        return Tokenizer.from_gguf(self.metadata, force=force)


def split_set(path: Path) -> list[Path]:
    """Every file of the set that `path` names by its `-00001-of-0000N` suffix; `[path]` for a whole file."""
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 1 <= int(match["number"]) <= count:
        raise LoadError(f"{path}: file {int(match['number'])} of a set of {count}; the file name is wrong")
    for number in range(1, count + 1):
        shard = path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf")
        if not shard.exists():
            raise LoadError(f"{shard}: missing, file {number} of a set of {count}; put the whole set in one directory")
    return [path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]


def first_of_sets(directory: Path) -> list[Path]:
    """The GGUF models in a directory, split sets by their first file."""
    found = sorted(path for path in directory.iterdir() if path.suffix == ".gguf")
    matches = {path: _SHARD.fullmatch(path.name) for path in found}
    return [path for path, match in matches.items() if match is None or int(match["number"]) == 1]


def _check_split(files: list[GGUFFile]) -> None:
    first = files[0]
    count = first.metadata.get("split.count", 1) or 1
    if count != len(files):
        raise LoadError(
            f"{first.path}: is one of {count!r} files by its metadata, but {len(files)} by its name; "
            "keep the names NAME-00001-of-0000N.gguf"
        )
    for number, file in enumerate(files):
        if len(files) > 1 and file.metadata.get("split.no") != number:
            raise LoadError(f"{file.path}: split.no is {file.metadata.get('split.no')!r}, not {number}; it was renamed")
    total = first.metadata.get("split.tensors.count")
    found = sum(len(file.entries) for file in files)
    if len(files) > 1 and total is not None and total != found:
        raise LoadError(f"{first.path}: the set should hold {total!r} tensors, but holds {found}; download it again")


def _stored_tensors(files: list[GGUFFile]) -> dict[str, EncodedTensor]:
    stored: dict[str, EncodedTensor] = {}
    for file in files:
        for name, entry in file.entries.items():
            if name in stored:
                raise LoadError(f"{file.path}: tensor {name!r} also lies in another file of the set; it is corrupt")
            stored[name] = file.tensor(entry)
    return stored


def _canonical(path: Path, config: ModelConfig, stored: Mapping[str, EncodedTensor]) -> dict[str, EncodedTensor]:
    """Tensors with Hugging Face names and values, checked against the config."""
    tensors: dict[str, EncodedTensor] = {}
    for name, tensor in stored.items():
        if is_redundant(name):
            continue
        canonical = hugging_face_name(name, config.model_type) or name
        if len(tensor.shape) == 1 and not tensor.encoding.is_float:
            raise LoadError(f"{path}: tensor {name!r} is a vector in {tensor.format}; vectors must be F32, F16 or BF16")
        tensors[canonical] = replace(tensor, name=canonical)
    check_tensors(path, config, {name: tensor.shape for name, tensor in tensors.items()})
    return {name: with_canonical_values(tensor, config) for name, tensor in tensors.items()}
