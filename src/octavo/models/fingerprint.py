"""A short name for what a model computes, so that K/V of one model is never taken for another's."""

from __future__ import annotations

import hashlib
from dataclasses import fields

from octavo.models.checkpoint import Checkpoint


def fingerprint(checkpoint: Checkpoint) -> str:
    """BLAKE2b, in hex, over the config and, of each tensor, name, shape, encoding, and the values of two rows.

    Reads some pages of the weights' files and not all of them: it tells apart models that differ in every tensor,
    as trained ones do, or in any size; not two files of which somebody edited a few values.
    """
    digest = hashlib.blake2b(digest_size=32)
    config = checkpoint.config
    for field in fields(config):
        digest.update(f"{field.name}={getattr(config, field.name)!r}\n".encode())
    for name in sorted(checkpoint.names()):
        tensor = checkpoint.tensor(name)
        digest.update(f"{name} {tensor.shape} {tensor.format} {tensor.num_bytes}\n".encode())
        last = tensor.shape[0] - 1
        parts = [tensor] if len(tensor.shape) == 1 else [tensor.rows(0, 1), tensor.rows(last, last + 1)]
        for part in parts:
            digest.update(part.dequantize().numpy().tobytes())
    return digest.hexdigest()
