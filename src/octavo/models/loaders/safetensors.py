"""Hugging Face and MLX directories: config.json with single or sharded safetensors, under canonical names."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import LoadError
from octavo.layers.quant_tensor import QuantTensor
from octavo.models.loaders.checkpoint_base import TensorTable
from octavo.models.loaders.encoded_tensor import EncodedTensor
from octavo.models.loaders.encodings import SAFETENSORS_ENCODINGS
from octavo.models.loaders.expected import check_tensors
from octavo.models.loaders.hf_config import is_multimodal, model_config, read_json
from octavo.models.loaders.mlx import MLXQuantization, affine_tensor
from octavo.models.loaders.safetensors_file import StoredArray, read_safetensors
from octavo.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# Compared at a time: the first difference ends it, and no workspace is as large as a head.
COMPARE_BYTES = 1 << 20
INDEX = "model.safetensors.index.json"
# Stored prefixes of a multimodal model's language part, longest first, and what they are canonically.
_LANGUAGE_PREFIXES = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
_OTHER_TOWERS = (
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
)


class DirectoryCheckpoint(TensorTable):
    """An opened Hugging Face or MLX directory."""

    @classmethod
    def open(cls, path: Path) -> DirectoryCheckpoint:
        """Raises `LoadError`; maps every shard and checks every tensor.

        Reads no weights, but for a head that is stored although the config calls it tied.
        """
        settings = read_json(path / "config.json")
        generation_path = path / "generation_config.json"
        generation = read_json(generation_path) if generation_path.exists() else {}
        stored = _language_part(path, settings, _read_shards(path))
        config = model_config(
            path / "config.json", settings, generation, len(stored), has_lm_head="lm_head.weight" in stored
        )
        if config.tie_word_embeddings:
            if _same_parts(_parts(stored, "lm_head."), _parts(stored, "model.embed_tokens.")):
                # A copy of the embedding that some writers leave in.
                stored = {name: array for name, array in stored.items() if not name.startswith("lm_head.")}
            else:
                # Trained apart from the embedding, whatever the config says; transformers uses it too.
                logger.info("%s: the stored head differs from the embedding and is used, though called tied", path)
                config = replace(config, tie_word_embeddings=False)
        tensors = _tensors(path, stored, _quantization(path, settings))
        check_tensors(path, config, {name: tensor.shape for name, tensor in tensors.items()})
        return cls(path, config, tensors)

    def tokenizer(self, *, force: bool = False) -> Tokenizer:
        """Reads tokenizer.json and its companions. (`force` concerns GGUF's pre-tokeniser names only.)"""
        return Tokenizer.from_directory(self.path, extra_eos_ids=self.config.eos_token_ids)


def shard_paths(path: Path) -> list[Path]:
    """The safetensors files of a directory. Raises `LoadError` for a missing shard or none at all."""
    index = path / INDEX
    if index.exists():
        names = sorted(set(_weight_map(index).values()))
        missing = [name for name in names if not (path / name).exists()]
        if missing:
            raise LoadError(
                f"{path / missing[0]}: missing ({len(missing)} of {len(names)} shards named by {INDEX} are)"
            )
        return [path / name for name in names]
    if (path / "model.safetensors").exists():
        return [path / "model.safetensors"]
    found = sorted(path.glob("*.safetensors"))
    if len(found) == 1 and "-of-" not in found[0].name:
        return found
    if found:
        raise LoadError(f"{path}: has {len(found)} safetensors files but no {INDEX} to say what belongs; download it")
    raise LoadError(f"{path}: has no .safetensors file; other weight files (such as .bin) are not supported")


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise LoadError(f"{index}: has no 'weight_map' of tensor names to files; download it again")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise LoadError(f"{index}: {name!r} lies in {file!r}, which is no safetensors file of this directory")
    return weight_map


def _read_shards(path: Path) -> dict[str, StoredArray]:
    stored: dict[str, StoredArray] = {}
    for shard in shard_paths(path):
        for name, array in read_safetensors(shard).items():
            if name in stored:
                raise LoadError(f"{shard}: tensor {name!r} also lies in another shard; the directory is corrupt")
            stored[name] = array
    if (path / INDEX).exists():
        for name, file in _weight_map(path / INDEX).items():
            if name not in stored:
                raise LoadError(f"{path / file}: has no tensor {name!r}, which {INDEX} promises; download it again")
    return stored


def _language_part(
    path: Path, settings: Mapping[str, Any], stored: Mapping[str, StoredArray]
) -> dict[str, StoredArray]:
    """Arrays under canonical names, without buffers that the config implies and without a vision tower."""
    multimodal = is_multimodal(settings)
    part: dict[str, StoredArray] = {}
    num_ignored = 0
    for name, array in stored.items():
        canonical = name
        if multimodal:
            if name.startswith(_OTHER_TOWERS):
                num_ignored += 1
                continue
            canonical = canonical_name(name)
        if canonical.endswith("rotary_emb.inv_freq"):
            continue
        if canonical in part:
            raise LoadError(f"{path}: tensors {part[canonical].name!r} and {name!r} are both {canonical!r}")
        part[canonical] = array
    if num_ignored:
        logger.info("%s: %d tensors of the vision part are ignored; only text is supported", path, num_ignored)
    return part


def canonical_name(name: str) -> str:
    """A multimodal model's stored name without its language prefix."""
    for prefix, replacement in _LANGUAGE_PREFIXES:
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def _parts(stored: Mapping[str, StoredArray], module: str) -> dict[str, StoredArray]:
    """A module's arrays: its weight, and in MLX files its scales and biases."""
    return {name.removeprefix(module): array for name, array in stored.items() if name.startswith(module)}


def _same_parts(head: Mapping[str, StoredArray], embedding: Mapping[str, StoredArray]) -> bool:
    """Whether every array of `head` (there may be none) is byte for byte that of `embedding`."""
    return all(name in embedding and _same_array(array, embedding[name]) for name, array in head.items())


def _same_array(left: StoredArray, right: StoredArray) -> bool:
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    starts = range(0, len(left.data), COMPARE_BYTES)
    return all(
        np.array_equal(left.data[start : start + COMPARE_BYTES], right.data[start : start + COMPARE_BYTES])
        for start in starts
    )


def _quantization(path: Path, settings: Mapping[str, Any]) -> MLXQuantization | None:
    config = path / "config.json"
    other = settings.get("quantization_config")
    affine = settings.get("quantization")
    # MLX writes its settings under both names; every other method names itself.
    if isinstance(other, dict) and (affine is None or "quant_method" in other):
        method = other.get("quant_method", "unnamed")
        raise LoadError(f"{config}: quantisation {method!r} is not supported; use a GGUF file or the original weights")
    if affine is None:
        return None
    if not isinstance(affine, dict):
        raise LoadError(f"{config}: 'quantization' is {affine!r}; it must be an object with bits and group_size")
    return MLXQuantization(config, {canonical_name(key): value for key, value in affine.items()})


def _tensors(
    path: Path, stored: Mapping[str, StoredArray], quantization: MLXQuantization | None
) -> dict[str, QuantTensor]:
    if quantization is None:
        return {name: _float_tensor(path, name, array) for name, array in stored.items()}
    tensors: dict[str, QuantTensor] = {}
    for name, array in stored.items():
        module, _, kind = name.rpartition(".")
        scales, biases = stored.get(f"{module}.scales"), stored.get(f"{module}.biases")
        if kind in ("scales", "biases") and f"{module}.weight" in stored:
            continue
        if kind != "weight" or scales is None:
            tensors[name] = _float_tensor(path, name, array)
            continue
        tensors[name] = affine_tensor(
            path,
            name,
            array,
            _float_tensor(path, f"{module}.scales", scales),
            None if biases is None else _float_tensor(path, f"{module}.biases", biases),
            quantization.scheme(module),
        )
    return tensors


def _float_tensor(path: Path, name: str, array: StoredArray) -> EncodedTensor:
    encoding = SAFETENSORS_ENCODINGS.get(array.dtype)
    if encoding is None:
        supported = ", ".join(SAFETENSORS_ENCODINGS)
        raise LoadError(f"{path}: tensor {name!r} has dtype {array.dtype}, which is not supported; {supported} are")
    if not array.shape or 0 in array.shape:
        raise LoadError(f"{path}: tensor {name!r} has shape {list(array.shape)}, which no part of a model has")
    return EncodedTensor.from_bytes(name, array.shape, encoding, array.data)
