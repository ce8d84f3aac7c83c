"""How a request's K/V enters and leaves an engine: from a snapshot when it starts, into one when it ends."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.engine.loaded_model import LoadedModel
from octavo.models.fingerprint import fingerprint
from octavo.storage.snapshot import KVSnapshot, ModelIdentity


@dataclass(frozen=True, slots=True)
class HandOff:
    """`start` holds the K/V of the first tokens of the prompt, which are then not computed.

    `export` asks for a snapshot of all that storage holds, with the request's last event.
    """

    start: KVSnapshot | None = None
    export: bool = False


NO_HAND_OFF = HandOff()


def model_identity(loaded: LoadedModel) -> ModelIdentity:
    """Model, compute dtype and weight routes: K/V is the same, bit for bit, only where all are."""
    plan = loaded.plan
    dtype = str(plan.dtype).removeprefix("torch.")
    compute = f"{dtype} with {'+'.join(sorted(loaded.weight_routes))} weights"
    return ModelIdentity(plan.checkpoint.path.name, fingerprint(plan.checkpoint), compute)
