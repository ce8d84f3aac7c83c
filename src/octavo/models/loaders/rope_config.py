"""Rotary settings of a config.json, in the old form (`rope_theta`, `rope_scaling`) and the new (`rope_parameters`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
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

    Raises `LoadError` for a scaling kind that is not supported, and where the old form and the new contradict each
    other: which of them a program follows depends on its release.
    """
    parameters, legacy = _block(fields, "rope_parameters"), _block(fields, "rope_scaling")
    full, sliding = parameters, Fields(fields.path, {})
    nested = any(kind in parameters for kind in _LAYER_TYPES)
    if nested:
        full, sliding = (_block(parameters, kind) for kind in _LAYER_TYPES)
    for block in (parameters, legacy, full, sliding):
        _kind(block)
    if full.values and legacy.values and _scaling(fields, full) != _scaling(fields, legacy):
        raise LoadError(
            f"{fields.path}: 'rope_parameters' and 'rope_scaling' are both given and differ; "
            "remove the one that does not hold"
        )
    base = _theta(
        fields.path,
        {
            "rope_parameters.rope_theta": full.optional_number("rope_theta"),
            "rope_scaling.rope_theta": legacy.optional_number("rope_theta"),
            "rope_theta": fields.optional_number("rope_theta"),
        },
        theta,
    )
    scaling = _scaling(fields, full if full.values else legacy)
    if local_theta is not None:
        if _scaling(fields, sliding) != RopeScaling():
            raise LoadError(f"{fields.path}: rope scaling of sliding layers is not supported")
        stated = {
            "rope_parameters.sliding_attention.rope_theta": sliding.optional_number("rope_theta"),
            "rope_local_base_freq": fields.optional_number("rope_local_base_freq"),
        }
        return RopeConfig(base, scaling, _theta(fields.path, stated, local_theta))
    if nested and sliding.values and sliding.values != full.values:
        raise LoadError(f"{fields.path}: rope_parameters that differ by layer type are supported for gemma3 only")
    return RopeConfig(base, scaling)


def _block(fields: Fields, key: str) -> Fields:
    """The object under `key`; empty where there is none."""
    value = fields.get(key)
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise fields.fail(key, "an object")
    return Fields(fields.path, value)


def _theta(path: Path, stated: Mapping[str, float | None], default: float) -> float:
    """The one base frequency that the keys of `stated` agree on."""
    given = {key: value for key, value in stated.items() if value is not None}
    if len(set(given.values())) > 1:
        listing = " and ".join(f"{key!r} is {value}" for key, value in given.items())
        raise LoadError(f"{path}: {listing}; they must agree, remove the one that does not hold")
    return next(iter(given.values()), default)


def _kind(rope: Fields) -> str:
    """The scaling kind, under its old key or its new one."""
    kinds = [rope.text(key) for key in ("rope_type", "type") if key in rope]
    for kind in kinds:
        if kind not in SCALING_KINDS:
            raise LoadError(
                f"{rope.path}: rope scaling {kind!r} is not supported; supported are {', '.join(SCALING_KINDS)}"
            )
    if len(set(kinds)) > 1:
        raise LoadError(f"{rope.path}: 'rope_type' is {kinds[0]!r} and 'type' is {kinds[1]!r}; they must agree")
    return kinds[0] if kinds else "default"


def _scaling(config: Fields, rope: Fields) -> RopeScaling:
    kind = _kind(rope)
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
