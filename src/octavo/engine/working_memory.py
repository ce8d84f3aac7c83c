"""Memory that a step needs beside weights and K/V: what stays allocated (workspace) and what comes and goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo.cache.spec import CacheGroup
from octavo.config import EngineConfig
from octavo.kernels.chunked_attention import KEY_CHUNK, MAX_SCORES
from octavo.models.config import ModelConfig
from octavo.step_batch import StorageKind
from octavo.storage.codecs import Codec
from octavo.storage.compiled_attention import CompiledAttention

_ROTARY_BLOCK = 4096  # positions that the rotary table grows by
_ENCODED_SPAN = (32, 80)  # columns, and bytes that the compiled products take for them once encoded
_TILE_ROWS, _TILE_KEYS, _LANES = 32, 64, 16  # of the compiled attention
_VOCABULARY_ROWS = 24  # bytes per vocabulary entry of the sampler's scratch, and the temporaries beside it
_FRAGMENTATION = 1.5  # what the allocator takes of the system for temporaries, against their own size


@dataclass(frozen=True, slots=True)
class Serving:
    """What decides which kernels serve, and so which copies they need. `gather`: a switch has paged rows gathered."""

    storage: StorageKind
    codecs: tuple[Codec, Codec]
    device: torch.device
    threads: int = 1
    gather: bool = False


def step_tokens(config: EngineConfig, max_context: int) -> int:
    """Most tokens of one step."""
    return min(config.max_batch_tokens, config.max_num_seqs * min(config.prefill_chunk, max_context))


def append_tokens(config: EngineConfig) -> int:
    """Most tokens of one sequence in one step."""
    return min(config.prefill_chunk, config.max_batch_tokens)


def workspace_bytes(
    model: ModelConfig, groups: Sequence[CacheGroup], config: EngineConfig, serving: Serving, max_context: int
) -> int:
    """Rotary tables, the sampler's scratch, encoded activations, and attention's own, for sequences this long."""
    tokens = step_tokens(config, max_context)
    positions = -(-max_context // _ROTARY_BLOCK) * _ROTARY_BLOCK
    # A table is copied when it grows. Gemma has one for each kind of layer, others one in all.
    tables = min(len(groups), len(set(model.layer_types))) * 2 * positions * model.head_dim * 2 * 4
    sampling = model.vocab_size * (2 * 4 * config.max_num_seqs + _VOCABULARY_ROWS)
    columns, encoded = _ENCODED_SPAN
    widest = max(model.hidden_size, model.intermediate_size, model.num_attention_heads * model.head_dim)
    activations = -(-tokens // 16) * 16 * -(-widest // columns) * encoded if serving.device.type == "cpu" else 0
    attention = [_attention_bytes(group, config, serving, max_context) for group in groups]
    eager = [group for group in groups if not _compiled(group, serving)]
    scores = 4 * MAX_SCORES * 4 if eager else 0
    return tables + sampling + activations + scores + sum(attention)


def activation_bytes(model: ModelConfig, config: EngineConfig, max_context: int) -> int:
    """Float32 temporaries of the largest step: residual and norm, and either q/k/v and output or the MLP's parts."""
    heads = model.num_attention_heads + model.num_key_value_heads
    attention = 2 * heads * model.head_dim + model.num_attention_heads * model.head_dim
    per_token = 2 * model.hidden_size + max(attention, 3 * model.intermediate_size)
    return int(step_tokens(config, max_context) * per_token * 4 * _FRAGMENTATION)


def _compiled(group: CacheGroup, serving: Serving) -> bool:
    return CompiledAttention.refusal_for(group.spec, serving.codecs, serving.device) is None


def _attention_bytes(group: CacheGroup, config: EngineConfig, serving: Serving, max_context: int) -> int:
    """Decoded copies of K and V, masks, and the threads' tiles, for one group."""
    spec, append = group.spec, min(append_tokens(config), max_context)
    in_ring = spec.window is not None and serving.storage is StorageKind.DENSE
    reach = max_context if spec.window is None else min(max_context, spec.window - 1 + append)
    span = -(-reach // KEY_CHUNK) * KEY_CHUNK + (0 if spec.window is None else KEY_CHUNK)
    staged = span * spec.num_kv_heads * (spec.k_dim + spec.v_dim) * 4
    if in_ring:  # the step's own tokens pass through the codec
        staged += 2 * append * spec.num_kv_heads * max(spec.k_dim, spec.v_dim) * 4
    elif serving.storage is StorageKind.PAGED:  # blocks are collected before they are decoded
        staged += span * spec.num_kv_heads * max(spec.k_dim, spec.v_dim) * 4
    if _compiled(group, serving):
        tiles = serving.threads * _tile_bytes(spec.k_dim, spec.v_dim)
        needs_copy = in_ring or (serving.gather and serving.storage is StorageKind.PAGED)
        return tiles + (staged if needs_copy else 0)
    return staged + span * step_tokens(config, max_context)


def _tile_bytes(k_dim: int, v_dim: int) -> int:
    """One thread's workspace of the compiled attention: a tile of query rows, and a chunk of keys and values."""
    rows = _TILE_ROWS * (k_dim + v_dim + _TILE_KEYS + 2 + _LANES)
    return 4 * (rows + _TILE_KEYS * (k_dim + v_dim) + _LANES * k_dim)
