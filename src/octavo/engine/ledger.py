"""The memory ledger: what a model, its workspace and its K/V take, worked out before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.cache.spec import CacheGroup, LayerSpec, group_layers
from octavo.config import EngineConfig
from octavo.errors import CapacityError, InvalidRequest
from octavo.kernels.chunked_attention import KEY_CHUNK, MAX_SCORES
from octavo.models.config import ModelConfig
from octavo.step_batch import StorageKind
from octavo.storage.codecs import Codec

_KV_SHARE = 0.8  # of what weights and workspace leave; the rest stays for the system and fragmentation


@dataclass(frozen=True, slots=True)
class GroupBudget:
    """K/V of one group of layers. `ring_bytes` are the rings of dense sequences, `block_bytes` all its blocks."""

    kind: str
    num_layers: int
    window: int | None
    bytes_per_token: int
    num_blocks: int
    block_bytes: int
    ring_bytes: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """Bytes, and two lengths in tokens: `context_limit`, what the settings and the model allow, and `max_context`.

    `max_context` is the longest sequence that fits alone; `max_num_seqs` is how many may run at once.
    """

    available_bytes: int
    weight_bytes: int
    workspace_bytes: int
    activation_bytes: int
    groups: tuple[GroupBudget, ...]
    context_limit: int
    max_context: int
    max_num_seqs: int

    @property
    def kv_bytes(self) -> int:
        return sum(group.block_bytes + group.ring_bytes for group in self.groups)

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.workspace_bytes + self.activation_bytes + self.kv_bytes

    @property
    def num_blocks(self) -> tuple[int, ...]:
        return tuple(group.num_blocks for group in self.groups)


def plan_memory(
    model: ModelConfig,
    layout: Sequence[LayerSpec],
    config: EngineConfig,
    *,
    storage: StorageKind,
    codecs: tuple[Codec, Codec],
    weights: int,
    available: int,
) -> Ledger:
    """Divide `available` bytes: `weights` (once packed), workspace and activations first, K/V from what is left.

    Windowed groups get what `max_num_seqs` sequences can ever hold; the rest goes to the others, up to
    `max_num_seqs` sequences of `max_context` tokens (or exactly `num_kv_blocks`). Raises `CapacityError` with both
    numbers if the model does not fit, not even with one block of K/V, or if what was asked for explicitly does not.
    Raises `InvalidRequest` for `num_kv_blocks` of a model that has no unbounded layer.
    """
    limit = min(config.max_context or model.max_position_embeddings, model.max_position_embeddings)
    groups = group_layers(layout)
    workspace = _workspace_bytes(model, groups, config, limit)
    activations = _activation_bytes(model, config)
    left = available - weights - workspace - activations
    bounded = [_bounded_budget(group, config, storage, codecs, limit) for group in groups]
    left -= sum(budget.block_bytes + budget.ring_bytes for budget in bounded if budget is not None)
    per_block = sum(
        group.bytes_per_block(config.block_size, *_row_bytes(group, codecs))
        for group, budget in zip(groups, bounded, strict=True)
        if budget is None
    )
    if left < per_block:
        raise CapacityError(
            f"the model needs {gib(available - left + per_block)} (weights {gib(weights)}, the rest workspace and K/V) "
            f"but {gib(available)} are free; take a smaller model, --weights int4, or a smaller --max-context"
        )
    if config.num_kv_blocks is not None and not per_block:
        raise InvalidRequest(
            f"num kv blocks is {config.num_kv_blocks}, but every layer of this model has a window, whose memory is "
            "fixed; leave it out"
        )
    num_blocks = config.max_num_seqs * -(-limit // config.block_size)
    if per_block:
        num_blocks = config.num_kv_blocks or min(num_blocks, int(left * _KV_SHARE) // per_block)
    if num_blocks * per_block > left:
        raise CapacityError(
            f"{num_blocks} K/V blocks take {gib(num_blocks * per_block)} but {gib(left)} are left after the weights; "
            f"ask for at most {left // per_block}"
        )
    budgets = tuple(
        budget or _budget(group, config, codecs, num_blocks=max(1, num_blocks), ring_rows=0)
        for group, budget in zip(groups, bounded, strict=True)
    )
    fits = max(1, num_blocks) * config.block_size
    if config.max_context is not None and config.num_kv_blocks is None and fits < limit:
        needed = -(-limit // config.block_size) * per_block
        raise CapacityError(
            f"a context of {limit} tokens takes {gib(needed)} of K/V but {gib(int(left * _KV_SHARE))} are left for it; "
            f"give --max-context {fits} or less"
        )
    return Ledger(
        available_bytes=available,
        weight_bytes=weights,
        workspace_bytes=workspace,
        activation_bytes=activations,
        groups=budgets,
        context_limit=limit,
        max_context=min(limit, fits),
        max_num_seqs=config.max_num_seqs,
    )


def gib(num_bytes: int) -> str:
    """In GiB, or in MiB if it is less than one."""
    return f"{num_bytes / (1 << 30):.2f} GiB" if num_bytes >= 1 << 30 else f"{num_bytes / (1 << 20):.1f} MiB"


def _bounded_budget(
    group: CacheGroup, config: EngineConfig, storage: StorageKind, codecs: tuple[Codec, Codec], max_context: int
) -> GroupBudget | None:
    """What `max_num_seqs` sequences can ever hold of a windowed group; None for one that grows without bound."""
    if not group.bounded or group.spec.window is None:
        return None
    if storage is StorageKind.DENSE:
        # The pool wants at least one block of each group; a ring never uses it.
        return _budget(group, config, codecs, num_blocks=1, ring_rows=config.max_num_seqs * group.spec.window)
    append = min(config.prefill_chunk, config.max_batch_tokens)
    blocks = group.max_blocks(storage, max_context, config.block_size, append)
    return _budget(group, config, codecs, num_blocks=config.max_num_seqs * blocks, ring_rows=0)


def _budget(
    group: CacheGroup, config: EngineConfig, codecs: tuple[Codec, Codec], *, num_blocks: int, ring_rows: int
) -> GroupBudget:
    k_bytes, v_bytes = _row_bytes(group, codecs)
    per_token = group.bytes_per_token(k_bytes, v_bytes)
    return GroupBudget(
        kind=group.spec.kind,
        num_layers=len(group.layers),
        window=group.spec.window,
        bytes_per_token=per_token,
        num_blocks=num_blocks,
        block_bytes=num_blocks * config.block_size * per_token,
        ring_bytes=ring_rows * per_token,
    )


def _row_bytes(group: CacheGroup, codecs: tuple[Codec, Codec]) -> tuple[int, int]:
    spec = group.spec
    return (
        spec.num_kv_heads * codecs[0].bytes_per_row(spec.k_dim),
        spec.num_kv_heads * codecs[1].bytes_per_row(spec.v_dim),
    )


def _workspace_bytes(model: ModelConfig, groups: Sequence[CacheGroup], config: EngineConfig, max_context: int) -> int:
    """Decoded K and V of one sequence, masks of the longest step, scores, and logits of every sequence."""
    span = -(-max_context // KEY_CHUNK) * KEY_CHUNK
    decoded = max(g.spec.num_kv_heads * span * (g.spec.k_dim + g.spec.v_dim) * 4 for g in groups)
    masks = len(groups) * span * min(config.prefill_chunk, config.max_batch_tokens)
    logits = 2 * config.max_num_seqs * model.vocab_size * 4
    return decoded + masks + 4 * MAX_SCORES * 4 + logits


def _activation_bytes(model: ModelConfig, config: EngineConfig) -> int:
    """Float32 residual and norms, q/k/v in both precisions, and the MLP's two halves, for the largest step."""
    qkv = (model.num_attention_heads + 2 * model.num_key_value_heads) * model.head_dim
    per_token = 4 * model.hidden_size * 4 + qkv * 12 + model.intermediate_size * 4 * 2
    return config.max_batch_tokens * per_token
