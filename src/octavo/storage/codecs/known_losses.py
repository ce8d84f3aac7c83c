"""What is known of codecs that change the tokens of a model family. Measured; docs/kv-codecs.md has the figures."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from octavo.storage.codecs.codec import Codec

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnownLoss:
    """`narrow_k` are codecs that keys of the family do not survive, for `reason`; `survives` is a choice that does."""

    narrow_k: frozenset[str]
    reason: str
    survives: str


KNOWN_LOSSES: dict[str, KnownLoss] = {
    "qwen2": KnownLoss(
        narrow_k=frozenset({"q8_0", "q4_0", "turbo4"}),
        reason="a few elements of its keys are many times the others, which lose their last bits beside them",
        survives="k=f16,v=q8_0",
    ),
}


def warn_of_losses(codecs: tuple[Codec, Codec], model_type: str) -> None:
    """Log a warning, once per call, if tokens are known to change with these (K, V) codecs."""
    known = KNOWN_LOSSES.get(model_type)
    if known is not None and codecs[0].name in known.narrow_k:
        _LOG.warning(
            "kv dtype %s for k is known to change tokens of %s models: %s; --kv-dtype %s keeps them",
            codecs[0].name,
            model_type,
            known.reason,
            known.survives,
        )
