"""Whether the context of a model can be shifted, told before anything of it is loaded."""

from __future__ import annotations

from octavo.errors import InvalidRequest
from octavo.models.config import ModelConfig
from octavo.models.registry import model_class
from octavo.storage.codecs import Codec
from octavo.storage.shift import check_codec

_SHIFTED = frozenset({"full", "sliding"})  # layers whose keys lie in blocks, each rotated to a position of its own


def check_shift(model: ModelConfig, k_codec: Codec) -> None:
    """Raises `InvalidRequest` if contexts cannot be shifted: for the model's family, a layer, or the codec of K."""
    cls, name = model_class(model.model_type), model.model_type
    if not cls.supports_paged:
        raise InvalidRequest(
            f"model type {name} has no paged storage, which a context shift needs; take context limit policy stop"
        )
    for layer, spec in enumerate(cls.kv_layout(model)):
        if spec.kind not in _SHIFTED:
            raise InvalidRequest(
                f"layer {layer} of model type {name} is {spec.kind}, whose context cannot be shifted; "
                "take context limit policy stop"
            )
    check_codec(k_codec)
