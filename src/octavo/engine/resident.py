"""Memory that is there whatever is served: packed weights and the tokenizer; and what packing takes for a while."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from octavo.engine.hardware import large_page_bytes
from octavo.kernels.cpu.arena import CHUNK
from octavo.layers.linear import RouteChoice
from octavo.layers.linear.affine_route import AffineRoute
from octavo.layers.quant_tensor import QuantTensor
from octavo.models.checkpoint import Checkpoint
from octavo.models.loaders.gguf import GGUFCheckpoint

_MODULES = 24 << 20  # Octavo's own modules and what they import, beside torch
_VOCABULARY, _WITHOUT_MERGES = 20, 12  # bytes of a tokenizer in memory for one of its description in the file
_TABLES = ("model.embed_tokens.weight", "lm_head.weight")  # packed before all others


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes. `runtime`: the tokenizer, Octavo's own modules, and what rounding to large pages adds to the weights.

    `loading` is what packing takes for a while beyond weights and runtime.
    """

    weights: int
    runtime: int = 0
    loading: int = 0


def resident_bytes(checkpoint: Checkpoint, routes: RouteChoice, dtype: torch.dtype) -> Resident:
    """Worked out from shapes and encodings alone; reads no weights."""
    weights = _weight_bytes(checkpoint, routes, dtype)
    shards = {name: checkpoint.tensor(name) for name in checkpoint.names()}
    matrices = {name: shard for name, shard in shards.items() if len(shard.shape) == 2}
    tables = [shard for name, shard in matrices.items() if name in _TABLES]
    others = [_packing_bytes(shard, routes) for name, shard in matrices.items() if name not in _TABLES]
    first = sum(routes.route([shard]).packed_bytes(shard) for shard in tables)
    # Shards of one product (q, k and v; gate and up) are packed together: at most three of them.
    at_first = min(first, weights) + max((_packing_bytes(shard, routes) for shard in tables), default=0)
    later = weights + 3 * max(others, default=0)
    return Resident(weights, _runtime_bytes(checkpoint, weights), max(0, at_first - weights, later - weights))


def _runtime_bytes(checkpoint: Checkpoint, weights: int) -> int:
    """The vocabulary's description is what a GGUF file has beside its tensors, and a file of a directory."""
    path = checkpoint.path
    if path.is_dir():
        files = [path / name for name in ("tokenizer.json", "tokenizer.model")]
        description = sum(file.stat().st_size for file in files if file.is_file())
    else:
        description = max(0, path.stat().st_size - checkpoint.num_bytes)
    rounding = -(-weights // CHUNK) * large_page_bytes()
    return _MODULES + _tokenizer_factor(checkpoint) * description + rounding


def _tokenizer_factor(checkpoint: Checkpoint) -> int:
    if isinstance(checkpoint, GGUFCheckpoint) and "tokenizer.ggml.merges" not in checkpoint.metadata:
        return _WITHOUT_MERGES
    return _VOCABULARY


def _packing_bytes(shard: QuantTensor, routes: RouteChoice) -> int:
    """Codes of a byte and float32 scales, or all in float32, on the way from the file to the packed form."""
    route = routes.route([shard])
    if isinstance(route, AffineRoute) and route.is_packed_from_file(shard):
        return 0
    form, elements = shard.affine_shape(), math.prod(shard.shape)
    if form is None:
        return 4 * elements
    return elements + elements // form.group * 4 * (2 if form.has_minimum else 1)


def _weight_bytes(checkpoint: Checkpoint, routes: RouteChoice, dtype: torch.dtype) -> int:
    """Bytes of all weights once packed; the embedding table is kept beside the head unless that can be looked up."""
    config, embed = checkpoint.config, _TABLES[0]
    total = 0
    for name in checkpoint.names():
        shard = checkpoint.tensor(name)
        if len(shard.shape) == 1:
            total += shard.shape[0] * 4
            continue
        route = routes.route([shard])
        if name != embed or config.tie_word_embeddings or route.serves_embedding:
            total += route.packed_bytes(shard)
        if name == embed and not route.serves_embedding:
            total += math.prod(shard.shape) * dtype.itemsize
    return total
