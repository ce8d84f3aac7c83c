"""How a request's K/V enters and leaves an engine: from a snapshot when it starts, into one when it ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from octavo.engine.loaded_model import LoadedModel, ModelPlan
from octavo.models.fingerprint import fingerprint
from octavo.models.route_names import route_names
from octavo.storage.hand_off import check_codecs
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
    return _identity(loaded.plan, loaded.weight_routes)


def check_start(plan: ModelPlan, snapshot: KVSnapshot, prompt: Sequence[int]) -> None:
    """Raises `InvalidRequest` for a snapshot that an engine of `plan` would refuse to start `prompt` from.

    Needs no weights in memory: it reads a part of each from the file. The engine checks again.
    """
    snapshot.check_model(_identity(plan, route_names(plan.checkpoint, plan.routes)))
    k_codec, v_codec = plan.codecs
    check_codecs(snapshot, (k_codec.name, v_codec.name))
    snapshot.check_prefix_of(prompt)


def _identity(plan: ModelPlan, weight_routes: Collection[str]) -> ModelIdentity:
    dtype = str(plan.dtype).removeprefix("torch.")
    compute = f"{dtype} with {'+'.join(sorted(weight_routes))} weights"
    return ModelIdentity(plan.checkpoint.path.name, fingerprint(plan.checkpoint), compute)
