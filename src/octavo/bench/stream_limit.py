"""What a decode step has to read at least: the weights once, and the K/V that its rows see. Measures nothing."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.engine.loaded_model import LoadedModel

_EMBEDDING = "model.embed_tokens.weight"


def weight_bytes(loaded: LoadedModel) -> int:
    """Of a checkpoint's weights, those that every step reads: all but an embedding that is not the output's too."""
    plan = loaded.plan
    total = plan.checkpoint.num_bytes
    return total if plan.config.tie_word_embeddings else total - plan.checkpoint.tensor(_EMBEDDING).num_bytes


def kv_bytes(loaded: LoadedModel, lengths: Sequence[float]) -> int:
    """Stored bytes of the K/V that one step over contexts of `lengths` tokens reads, in all layers."""
    k, v = loaded.plan.codecs
    total = 0.0
    for layer in loaded.model.kv_layout(loaded.plan.config):
        row = layer.num_kv_heads * (k.bytes_per_row(layer.k_dim) + v.bytes_per_row(layer.v_dim))
        total += row * sum(length if layer.window is None else min(length, layer.window) for length in lengths)
    return int(total)
