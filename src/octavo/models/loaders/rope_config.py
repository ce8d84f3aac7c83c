"""Rotary settings of a config.json, in the old form (`rope_theta`, `rope_scaling`) and the new (`rope_parameters`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.errors import LoadError
from octavo.models.config import RopeScaling
from octavo.models.loaders.fields import Fields

SCALING_KINDS = ("default", "linear", "llama3", "yarn")
_LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """`local_theta` and no scaling hold for sliding layers where `local_theta` is set."""

    theta: float
    scaling: RopeScaling
    local_theta: float | None = None


def rope_config(fields: Fields, *, theta: float, local_theta: float | None) -> RopeConfig:
    """`theta` and `local_theta` are the family's defaults; a `local_theta` says that sliding layers have their own.

    Raises `LoadError` for a scaling kind that is not supported.
    """
    parameters = fields.get("rope_parameters") or {}
    legacy = fields.get("rope_scaling") or {}
    for key, value in (("rope_parameters", parameters), ("rope_scaling", legacy)):
        if not isinstance(value, dict):
            raise fields.fail(key, "an object")
    if not any(isinstance(parameters.get(kind), dict) for kind in _LAYER_TYPES):
        flat = Fields(fields.path, legacy | parameters)
        base = flat.number("rope_theta", fields.number("rope_theta", theta))
        if local_theta is not None:
            local_theta = fields.number("rope_local_base_freq", local_theta)
        return RopeConfig(base, _scaling(fields, flat), local_theta)
    full = Fields(fields.path, (parameters.get("full_attention") or {}) | legacy)
    sliding = Fields(fields.path, parameters.get("sliding_attention") or {})
    base, scaling = full.number("rope_theta", fields.number("rope_theta", theta)), _scaling(fields, full)
    if local_theta is not None:
        if _scaling(fields, sliding) != RopeScaling():
            raise LoadError(f"{fields.path}: rope scaling of sliding layers is not supported")
        local_theta = fields.number("rope_local_base_freq", local_theta)
        return RopeConfig(base, scaling, sliding.number("rope_theta", local_theta))
    if sliding.values and sliding.values != full.values:
        raise LoadError(f"{fields.path}: rope_parameters that differ by layer type are supported for gemma3 only")
    return RopeConfig(base, scaling)


def _scaling(config: Fields, rope: Fields) -> RopeScaling:
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind not in SCALING_KINDS:
        raise LoadError(
            f"{config.path}: rope scaling {kind!r} is not supported; supported are {', '.join(SCALING_KINDS)}"
        )
    partial = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if partial != 1.0 or rope.get("mrope_section"):
        raise LoadError(f"{config.path}: partial or multi-axis rotary embeddings are not supported")
    if kind == "default":
        return RopeScaling()
    if kind == "linear":
        return RopeScaling(kind="linear", factor=rope.number("factor"))
    original = config.optional_integer("original_max_position_embeddings")
    if original is None:
        original = rope.integer("original_max_position_embeddings", config.integer("max_position_embeddings"))
    if kind == "llama3":
        return _llama3(rope, original)
    # Older files give no factor, and mean the ratio of the two lengths.
    factor = rope.number("factor", config.integer("max_position_embeddings") / original)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position_embeddings=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=rope.optional_number("attention_factor"),
        mscale=_optional_scale(rope, "mscale"),
        mscale_all_dim=_optional_scale(rope, "mscale_all_dim"),
        truncate=rope.flag("truncate", True),
    )


def _llama3(rope: Fields, original: int) -> RopeScaling:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.fail("high_freq_factor", f"above low_freq_factor, {low}")
    return RopeScaling(
        kind="llama3",
        factor=rope.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=original,
    )


def _optional_scale(rope: Fields, key: str) -> float | None:
    """YaRN files write 0 for "not used"."""
    value: Any = rope.get(key)
    return None if value in (None, 0) else rope.number(key)
