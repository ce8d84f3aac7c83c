"""Which codecs a `--kv-dtype` means, and whether a model's heads can be encoded with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from octavo.cache.spec import LayerSpec
from octavo.errors import InvalidRequest, shown
from octavo.storage.codecs.cast import CastCodec
from octavo.storage.codecs.codec import Codec
from octavo.storage.codecs.grouped import Q4Codec, Q8Codec
from octavo.storage.codecs.turbo4 import Turbo4Codec

CODECS: dict[str, Codec] = {
    "f32": CastCodec("f32", torch.float32),
    "f16": CastCodec("f16", torch.float16),
    "bf16": CastCodec("bf16", torch.bfloat16),
    "q8_0": Q8Codec(),
    "q4_0": Q4Codec(),
    "turbo4": Turbo4Codec(),
}


def resolve_kv_dtype(choice: str, compute_dtype: torch.dtype) -> tuple[Codec, Codec]:
    """The (K, V) codecs for `auto`, one name for both, or `k=NAME,v=NAME`.

    `auto` is f32 for float32 compute, else f16. Raises `InvalidRequest` naming what can be chosen.
    """
    auto = "f32" if compute_dtype == torch.float32 else "f16"
    names = {"k": auto, "v": auto}
    if "=" in choice:
        given = set()
        for part in choice.split(","):
            key, _, name = (word.strip() for word in part.partition("="))
            if key not in names or key in given:
                raise InvalidRequest(f"kv dtype has {shown(part)}; write one name for both, or k=NAME,v=NAME")
            given.add(key)
            names[key] = auto if name == "auto" else name
    elif choice != "auto":
        names = {"k": choice, "v": choice}
    for key, name in names.items():
        if name not in CODECS:
            raise InvalidRequest(
                f"kv dtype {shown(name)} for {key} is unknown; choose one of auto, {', '.join(CODECS)}"
            )
    return CODECS[names["k"]], CODECS[names["v"]]


def check_heads(codecs: tuple[Codec, Codec], layout: Sequence[LayerSpec]) -> None:
    """Raises `InvalidRequest` naming what can be chosen if a codec cannot encode the heads of a layer."""
    for layer, spec in enumerate(layout):
        for key, codec, dim in (("k", codecs[0], spec.k_dim), ("v", codecs[1], spec.v_dim)):
            refusal = codec.refusal(dim)
            if refusal is not None:
                able = [name for name, each in CODECS.items() if each.refusal(dim) is None]
                raise InvalidRequest(
                    f"kv dtype {codec.name} for {key} cannot be used: in layer {layer} {refusal}; "
                    f"choose one of auto, {', '.join(able)}"
                )
