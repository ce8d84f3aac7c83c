"""Which routes a checkpoint's weights will be packed for, told without packing any."""

from __future__ import annotations

from octavo.layers.linear import RouteChoice
from octavo.layers.quant_tensor import QuantTensor
from octavo.models.checkpoint import Checkpoint
from octavo.models.weights import PACKED_MODULES

_EMBED, _HEAD = "model.embed_tokens", "lm_head"


def route_names(checkpoint: Checkpoint, routes: RouteChoice) -> frozenset[str]:
    """The names that `WeightSource.route_counts` has once the model is loaded. Reads shapes and encodings alone."""
    tied = checkpoint.config.tie_word_embeddings
    names = set()
    for module, shards in _modules(checkpoint).items():
        route = routes.route(shards)
        if (module == _HEAD and tied) or (module == _EMBED and not tied and not route.serves_embedding):
            continue
        names.add(route.properties.name)
    return frozenset(names)


def _modules(checkpoint: Checkpoint) -> dict[str, list[QuantTensor]]:
    """Matrices by module, those that are fused into one in the order in which they are."""
    fused = {part: (module, parts.index(part)) for module, parts in PACKED_MODULES.items() for part in parts}
    found: dict[str, dict[int, QuantTensor]] = {}
    for name in checkpoint.names():
        tensor = checkpoint.tensor(name)
        if len(tensor.shape) == 2:
            prefix, _, part = name.removesuffix(".weight").rpartition(".")
            module, at = fused.get(part, (part, 0))
            found.setdefault(f"{prefix}.{module}".lstrip("."), {})[at] = tensor
    return {module: [shards[at] for at in sorted(shards)] for module, shards in found.items()}
