"""Memory that a step needs beside weights and K/V: what stays allocated (workspace) and what comes and goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo.cache.spec import CacheGroup
from octavo.config import EngineConfig
from octavo.kernels.attention_parts import (
    EXACT_PART,
    MOST_GATHERED_BYTES,
    MOST_PARTIAL_BYTES,
    MOST_PROGRAMS,
    MOST_SCORES,
    MOST_TILE_TOKENS,
    PREFILL_PART,
    RAGGED_CUTS,
)
from octavo.kernels.chunked_attention import KEY_CHUNK, MAX_SCORES
from octavo.kernels.cpu.attention import workspace_bytes as attention_bytes
from octavo.kernels.draws import scratch_bytes
from octavo.models.config import ModelConfig
from octavo.step_batch import StorageKind
from octavo.storage.codecs import Codec
from octavo.storage.compiled_attention import CompiledAttention
from octavo.storage.fused_attention import VERIFY_TOKENS, FusedAttention
from octavo.storage.undo import DEPTH

_ROTARY_BLOCK = 4096  # positions that the rotary table grows by
# Columns, and bytes that the compiled products take for them once encoded: for one matrix at most, and for several
# whose codes are of 4, of 5 and of more bits.
_ENCODED_SPAN = (32, 113, 306)
_VOCABULARY_ROWS = 24  # bytes per vocabulary entry of the sampler's scratch, and the temporaries beside it
_ROTATED = 3  # float32 copies of a layer's keys that are there while a context shift rotates them
_EXACT_SCRATCH = 64 << 20  # of exact products on a GPU, whose columns are cut into parts
_GRAPHS = 64 << 20  # of the driver's, for some dozens of graphs of some hundred launches
_FRAGMENTATION = 1.5  # what the allocator takes of the system for temporaries, against their own size


@dataclass(frozen=True, slots=True)
class Serving:
    """What decides which kernels serve, and so which copies they need. `gather`: a switch has paged rows gathered.

    `exports`: K/V of a sequence may be copied into a snapshot for the caller. `exact`: as `EngineConfig.exact` says.
    """

    storage: StorageKind
    codecs: tuple[Codec, Codec]
    device: torch.device
    threads: int = 1
    gather: bool = False
    exports: bool = False
    exact: bool = False


def step_tokens(config: EngineConfig, max_context: int) -> int:
    """Most tokens of one step."""
    return min(config.batch_tokens, config.max_num_seqs * min(config.chunk_tokens, max_context))


def workspace_bytes(
    model: ModelConfig,
    groups: Sequence[CacheGroup],
    config: EngineConfig,
    serving: Serving,
    max_context: int,
    *,
    compiled: Sequence[bool],
) -> int:
    """Rotary tables, the sampler's scratch, encoded activations, attention's own, and copies of K/V that come and go
    between steps, for sequences this long.
    """
    tokens = step_tokens(config, max_context)
    positions = -(-max_context // _ROTARY_BLOCK) * _ROTARY_BLOCK
    # A table is copied when it grows. Gemma has one for each kind of layer, others one in all.
    tables = min(len(groups), len(set(model.layer_types))) * 2 * positions * model.head_dim * 2 * 4
    sampling = model.vocab_size * (2 * 4 * config.max_num_seqs + _VOCABULARY_ROWS)
    activations = encoded_bytes(model, tokens) if serving.device.type == "cpu" else 0
    attention = sum(
        _compiled_bytes(group, config, serving, max_context)
        if fast
        else _copied_bytes(group, config, serving, max_context) + _mask_bytes(group, config, max_context)
        for group, fast in zip(groups, compiled, strict=True)
    )
    on_device = any(_by_torch_on_device(group, config, serving) for group in groups)
    scores = 0 if all(compiled) else 4 * (MOST_SCORES if on_device else MAX_SCORES) * 4
    copies = undo_bytes(groups, config, serving) + shift_bytes(groups, config, max_context)
    copies += export_bytes(groups, serving, max_context) if serving.exports else 0
    if serving.device.type == "cuda":
        if serving.exact:
            attention += _EXACT_SCRATCH + sum(_partial_bytes(group, tokens, max_context) for group in groups)
        elif not serving.gather:
            attention += sum(_split_bytes(group, config, tokens, max_context) for group in groups)
    return tables + sampling + activations + scores + attention + copies


def encoded_bytes(model: ModelConfig, tokens: int) -> int:
    """Activations of a step as the compiled products of a CPU take them: q/k/v, or gate and up, may each have codes of
    several widths.
    """
    columns, of_one, of_several = _ENCODED_SPAN
    widest = max(model.hidden_size, model.intermediate_size, model.num_attention_heads * model.head_dim)
    of_row = max(-(-widest // columns) * of_one, -(-model.hidden_size // columns) * of_several)
    return -(-tokens // 16) * 16 * of_row


def activation_bytes(model: ModelConfig, config: EngineConfig, max_context: int) -> int:
    """Temporaries of the largest step."""
    return int(step_tokens(config, max_context) * _activations_of_token(model) * _FRAGMENTATION)


def graph_bytes(model: ModelConfig, config: EngineConfig) -> int:
    """Decode steps recorded on a GPU: temporaries of the largest, its logits, a copy of them and what draws from them
    take, and the records.
    """
    per_row = _activations_of_token(model) + 2 * model.vocab_size * 4 + scratch_bytes()
    return int(config.max_num_seqs * per_row * _FRAGMENTATION) + _GRAPHS


def _activations_of_token(model: ModelConfig) -> int:
    """In float32: residual and norm, and either q/k/v and output or the MLP's parts."""
    heads = model.num_attention_heads + model.num_key_value_heads
    attention = 2 * heads * model.head_dim + model.num_attention_heads * model.head_dim
    return 4 * (2 * model.hidden_size + max(attention, 3 * model.intermediate_size))


def are_compiled(groups: Sequence[CacheGroup], serving: Serving) -> tuple[bool, ...]:
    """Which groups the compiled attention serves."""
    return tuple(CompiledAttention.refusal_for(g.spec, serving.codecs, serving.device) is None for g in groups)


def undo_bytes(groups: Sequence[CacheGroup], config: EngineConfig, serving: Serving) -> int:
    """What decode steps overwrote in rings, and one layer's rows on their way there."""
    if serving.storage is not StorageKind.DENSE:
        return 0
    windowed = [group for group in groups if group.spec.window is not None]
    rows = sum((DEPTH * len(group.layers) + 1) * _encoded_bytes(group, serving) for group in windowed)
    return config.max_num_seqs * rows


def shift_bytes(groups: Sequence[CacheGroup], config: EngineConfig, max_context: int) -> int:
    """Keys of one layer that are rotated in float32: what a shift leaves, after the kept tokens, of a full context."""
    if config.context_limit_policy != "shift":
        return 0
    left = -(-max(0, max_context - config.keep) // 2) + config.block_size
    widest = 0
    for group in groups:
        spec = group.spec
        rows = left if spec.window is None else min(left, spec.window - 1 + config.chunk_tokens)
        widest = max(widest, rows * spec.num_kv_heads * spec.k_dim * 4)
    return int(widest * _ROTATED * _FRAGMENTATION)


def export_bytes(groups: Sequence[CacheGroup], serving: Serving, max_context: int) -> int:
    """All that one sequence holds, encoded, outside of the cache."""
    return sum(
        min(max_context, group.spec.window or max_context) * len(group.layers) * _encoded_bytes(group, serving)
        for group in groups
    )


def _encoded_bytes(group: CacheGroup, serving: Serving) -> int:
    """K and V of one token in one layer."""
    spec, (k_codec, v_codec) = group.spec, serving.codecs
    return spec.num_kv_heads * (k_codec.bytes_per_row(spec.k_dim) + v_codec.bytes_per_row(spec.v_dim))


def _compiled_bytes(group: CacheGroup, config: EngineConfig, serving: Serving, max_context: int) -> int:
    """The kernel's own; and a copy only where a chunk goes to a ring, or a switch has blocks gathered."""
    in_ring = group.spec.window is not None and serving.storage is StorageKind.DENSE
    gathered = serving.gather and serving.storage is StorageKind.PAGED
    spec = group.spec
    tiles = attention_bytes(spec.k_dim, spec.v_dim, _span(group, config, max_context), serving.threads)
    return tiles + (_copied_bytes(group, config, serving, max_context) if in_ring or gathered else 0)


def _partial_bytes(group: CacheGroup, tokens: int, max_context: int) -> int:
    """What exact attention on a GPU leaves of each part of a row's columns, before it is merged."""
    spec, parts = group.spec, -(-max_context // EXACT_PART)
    rows = tokens * parts if parts > 1 else 0
    return min(rows * spec.num_q_heads * (spec.v_dim + 1) * 4, MOST_PARTIAL_BYTES)


def _split_bytes(group: CacheGroup, config: EngineConfig, tokens: int, max_context: int) -> int:
    """What attention on a GPU leaves of parts of a row's columns before they are merged: of chunks, and of rows of one
    token and of a few, which have memory of their own.
    """
    spec, rows = group.spec, config.max_num_seqs
    reach = max_context if spec.window is None else min(max_context, spec.window - 1 + config.chunk_tokens)
    parts = -(-reach // PREFILL_PART) + (0 if spec.window is None else 1)
    chunks = parts * (tokens + rows * MOST_TILE_TOKENS) if parts > 1 else 0
    cuts = max(MOST_PROGRAMS // spec.num_kv_heads, rows * RAGGED_CUTS) + rows
    return (chunks + cuts * (1 + VERIFY_TOKENS)) * spec.num_q_heads * (spec.v_dim + 1) * 4


def _span(group: CacheGroup, config: EngineConfig, max_context: int) -> int:
    """Most keys that one sequence's step attends to, in whole chunks."""
    window = group.spec.window
    if window is None:
        return -(-max_context // KEY_CHUNK) * KEY_CHUNK
    reach = min(max_context, window - 1 + config.chunk_tokens)
    return (-(-reach // KEY_CHUNK) + 1) * KEY_CHUNK


def _copied_bytes(group: CacheGroup, config: EngineConfig, serving: Serving, max_context: int) -> int:
    """Keys and values that torch attends to at a time, in float32, and what is held while they are decoded."""
    spec, span = group.spec, _span(group, config, max_context)
    wider = spec.num_kv_heads * max(spec.k_dim, spec.v_dim) * 4
    in_ring = spec.window is not None and serving.storage is StorageKind.DENSE
    side_by_side = not in_ring and _by_torch_on_device(group, config, serving)  # several sequences
    if side_by_side:
        token = spec.num_kv_heads * (spec.k_dim + spec.v_dim) * 4
        span = max(span, min(config.max_num_seqs * span, MOST_GATHERED_BYTES // token))
    if in_ring:  # the tokens of a chunk pass through the codec before they go to a ring
        beside = 2 * min(config.chunk_tokens, max_context) * wider
    else:  # rows are collected before they are decoded, unless they are one run
        beside = span * wider if serving.storage is StorageKind.PAGED or side_by_side else 0
    return span * spec.num_kv_heads * (spec.k_dim + spec.v_dim) * 4 + beside


def _by_torch_on_device(group: CacheGroup, config: EngineConfig, serving: Serving) -> bool:
    """Whether torch attends for some rows of the group, on a device where it takes much at a time."""
    if serving.device.type == "cpu":
        return False
    in_ring = group.spec.window is not None and serving.storage is StorageKind.DENSE
    if in_ring or serving.gather:
        return True
    return FusedAttention.refusal(group.spec, serving.codecs, config.block_size, serving.device) is not None


def _mask_bytes(group: CacheGroup, config: EngineConfig, max_context: int) -> int:
    return _span(group, config, max_context) * step_tokens(config, max_context)
