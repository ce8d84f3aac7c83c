"""Where model files get their parts: a checkpoint's tensors, packed for the chosen routes as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from octavo.layers.embedding import Embedding
from octavo.layers.linear import Head, Linear, PackedWeight, RouteChoice, Table
from octavo.layers.linear.dense_route import DenseRoute
from octavo.layers.norm import RMSNorm
from octavo.layers.quant_tensor import QuantTensor
from octavo.models.checkpoint import Checkpoint

PackedModules = Mapping[str, Sequence[str]]

# Linears that every family here fuses: one product, its shards stacked in this order.
PACKED_MODULES: PackedModules = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


class WeightSource:
    """Packs tensors one module at a time, so that no more than one is held twice."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        routes: RouteChoice,
        dtype: torch.dtype,
        device: torch.device,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._checkpoint = checkpoint
        self._routes = routes
        self.dtype = dtype
        self.device = device
        self._on_bytes = on_bytes
        self.num_bytes = 0
        self.route_counts: dict[str, int] = {}

    def linear(self, name: str, packed_modules: PackedModules = PACKED_MODULES) -> Linear:
        """The linear `name`, e.g. `model.layers.0.self_attn.qkv_proj`, of one shard or several."""
        prefix, _, module = name.rpartition(".")
        parts = [f"{prefix}.{part}" for part in packed_modules.get(module, (module,))]
        shards = [self._checkpoint.tensor(f"{part}.weight") for part in parts]
        weight = self._pack(shards)
        self._on_bytes(sum(shard.num_bytes for shard in shards))
        biases = [f"{part}.bias" for part in parts]
        if biases[0] not in self._checkpoint:
            return Linear(weight)
        return Linear(weight, torch.cat([self._tensor(bias, torch.float32) for bias in biases]))

    @property
    def activation_dtype(self) -> torch.dtype:
        """What linears round their inputs to on a GPU; on a CPU their routes differ in that, so float32."""
        return torch.float32 if self.device.type == "cpu" else self.dtype

    def norm(self, name: str, eps: float, *, offset: float = 0.0, dtype: torch.dtype = torch.float32) -> RMSNorm:
        return RMSNorm(self._tensor(f"{name}.weight", torch.float32), eps, offset=offset, dtype=dtype)

    def embedding_and_head(self, *, tied: bool, scale: float = 1.0) -> tuple[Embedding, Head]:
        """Input embedding and output head; if they are tied and rows can be looked up in the head, they share it."""
        embed = [self._checkpoint.tensor("model.embed_tokens.weight")]
        head_shards = embed if tied else [self._checkpoint.tensor("lm_head.weight")]
        head = self._pack(head_shards)
        self._on_bytes(head_shards[0].num_bytes)
        if tied and isinstance(head, Table):
            return Embedding(head, scale=scale), Head(head)
        table = self._pack(embed) if self._routes.route(embed).serves_embedding else None
        if not isinstance(table, Table):
            table = DenseRoute(self.dtype, self.device).pack(embed)
            self.num_bytes += table.num_bytes
        if not tied:
            self._on_bytes(embed[0].num_bytes)
        return Embedding(table, scale=scale), Head(head)

    def _pack(self, shards: Sequence[QuantTensor]) -> PackedWeight:
        route = self._routes.route(shards)
        weight = route.pack(shards)
        self.num_bytes += weight.num_bytes
        name = route.properties.name
        self.route_counts[name] = self.route_counts.get(name, 0) + 1
        return weight

    def _tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        shard = self._checkpoint.tensor(name)
        tensor = shard.dequantize(dtype).to(self.device)
        self.num_bytes += tensor.numel() * tensor.itemsize
        self._on_bytes(shard.num_bytes)
        return tensor
