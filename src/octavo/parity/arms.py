"""Which arms there are, and which of them cannot be run for a model on a device, and why."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cache.spec import LayerSpec
from octavo.engine.loaded_model import ModelPlan
from octavo.engine.shift_check import check_shift
from octavo.errors import InvalidRequest, shown
from octavo.storage.codecs import CODECS
from octavo.storage.fused_attention import FusedAttention

ROWS = 4
NARROW = ("q8_0", "q4_0", "turbo4")
ARMS = (
    "dense_b1",
    "paged_b1",
    "gather_b1",
    *(f"batch{ROWS}_{kind}_row{row}" for kind in ("dense", "paged") for row in range(ROWS)),
    "prefill_chunk_7",
    "prefill_chunk_64",
    "graph",
    "cached_prefix",
    "cached_prefix_dense",
    "preempted",
    "imported_snapshot",
    "context_shift",
    *(f"codec_{name}" for name in NARROW),
    "cli",
    *(f"server_{kind}" for kind in ("dense", "paged")),
)
_NEED_DENSE = {*(name for name in ARMS if "dense" in name), "imported_snapshot", "cli"}


def check_arm(name: str) -> None:
    """Raises `InvalidRequest` with the arms there are."""
    if name not in ARMS:
        raise InvalidRequest(f"arm {shown(name)} is unknown; choose one of {', '.join(ARMS)}")


def keeps_windows_paged(plan: ModelPlan, specs: Sequence[LayerSpec]) -> bool:
    """Whether dense sequences cannot be exact, and are to be: on a GPU they keep windows in rings."""
    return plan.exact.holds and plan.device.type == "cuda" and any(spec.window is not None for spec in specs)


def refused_arms(plan: ModelPlan, specs: Sequence[LayerSpec], block_size: int) -> dict[str, str]:
    """Why arms cannot be run with this model, by name."""
    refused = {}
    try:
        check_shift(plan.config, plan.codecs[0])
    except InvalidRequest as error:
        refused["context_shift"] = str(error)
    for codec in NARROW:
        refusals = [CODECS[codec].refusal(dim) for spec in specs for dim in (spec.k_dim, spec.v_dim)]
        if plan.exact.holds and plan.device.type == "cuda":
            both = (CODECS[codec], CODECS[codec])
            refusals += [FusedAttention.refusal(spec, both, block_size, plan.device) for spec in specs]
        refused |= {f"codec_{codec}": refusal for refusal in refusals if refusal is not None}
    unfused = [FusedAttention.refusal(spec, plan.codecs, block_size, plan.device) for spec in specs]
    if plan.device.type != "cuda":
        refused["graph"] = f"nothing is recorded on {plan.device.type}"
    elif any(unfused):
        refused["graph"] = next(f"nothing is recorded: {reason}" for reason in unfused if reason)
    if plan.device.type == "cuda" and plan.exact.holds:
        refused["gather_b1"] = "gathered keys go to torch's attention, which is not exact on a GPU"
    if keeps_windows_paged(plan, specs):
        reason = "dense sequences keep windowed layers in rings, which no exact kernel reads"
        refused |= dict.fromkeys((*_NEED_DENSE, *(f"codec_{codec}" for codec in NARROW)), reason)
    return refused
