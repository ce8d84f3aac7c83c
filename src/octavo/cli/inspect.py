"""`octavo inspect`: the memory ledger of a model before it is loaded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cache.storage_policy import resolve_storage
from octavo.cli import engine_options as flags
from octavo.cli.options import option
from octavo.errors import InvalidRequest
from octavo.step_batch import StorageKind

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.engine.loaded_model import ModelPlan

_MIB = 1 << 20
_LAST = ("memory", "fits_context", "fits_parallel", "context_limit")


@flags.with_engine_flags()
def inspect(
    *,
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", envvar="OCTAVO_MODEL", help="As for generate (default smollm2).")
    ] = None,
    parallel: Annotated[int, option("--parallel", help="Sequences that may run at once.")] = 1,
    engine: flags.EngineFlags,
    as_json: flags.AsJson = False,
) -> None:
    """Print what a model is and what it takes in memory, without loading it (it is fetched if it is not here).

    Python and torch themselves take about 0.3 GB more.
    """
    if parallel < 1:
        raise InvalidRequest(f"--parallel is {parallel}; it must be at least 1")
    from octavo.engine.loaded_model import plan_model
    from octavo.kernels.cpu import library
    from octavo.store import TerminalProgress, resolve_model

    config = engine.config(parallel)
    plan = plan_model(resolve_model(model, progress=TerminalProgress()), config)
    found = as_object(plan, library.load().description)
    print(json.dumps(found, ensure_ascii=False) if as_json else _as_text({**found, "storage": _storage(plan, config)}))


def _storage(plan: ModelPlan, config: EngineConfig) -> str:
    """The storage, and for which commands where `auto` takes another for others."""
    kind = plan.storage.kind
    if config.storage == "auto" and config.max_num_seqs == 1 and kind is not StorageKind.PAGED:
        from octavo.models.registry import model_class

        family = plan.checkpoint.config.model_type
        others, _ = resolve_storage("auto", family, plan.device.type, model_class(family).supports_paged, True)
        if others is not kind:
            return f"{kind.value} for generate; {others.value} for chat, serve and batch"
    return kind.value


def _as_text(found: dict[str, Any]) -> str:
    """One line per fact; sizes in MiB."""
    facts = [(name.replace("_", " "), _fact(value)) for name, value in found.items() if name not in _LAST]
    # What the two numbers asked for would let each other be.
    facts.append(("fits together", _sequences(found["parallel"], found["fits_context"])))
    facts.append(("fits at full length", _sequences(found["fits_parallel"], found["context_limit"])))
    for name, value in found["memory"].items():
        if name != "groups":
            facts.append((f"{name.removesuffix('_bytes')} memory", f"{value / _MIB:,.1f} MiB"))
    for group in found["memory"]["groups"]:
        held = f"{group['num_blocks']:,} blocks"
        if group["ring_bytes"]:
            held = f"a ring of {group['window']:,} tokens per sequence"
        elif group["window"]:
            held += f", window {group['window']:,}"
        layers = f"{group['layers']} {group['kind']} layer{'s'[: group['layers'] > 1]}"
        facts.append((layers, f"{group['bytes_per_token']:,} bytes per token, {held}"))
    width = max(len(name) for name, _ in facts)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in facts)


def _sequences(count: int, tokens: int) -> str:
    return (
        f"{count:,} sequence of {tokens:,} tokens" if count == 1 else f"{count:,} sequences of {tokens:,} tokens each"
    )


def _fact(value: object) -> str:
    return ", ".join(f"{key}={each}" for key, each in value.items()) if isinstance(value, dict) else str(value)


def as_object(plan: ModelPlan, cpu_kernels: str) -> dict[str, Any]:
    """What `--json` prints; sizes in bytes. `cpu_kernels` says what they were compiled for, or why there are none."""
    from octavo.engine.hardware import instruction_set

    ledger, config = plan.ledger, plan.config
    k, v = plan.codecs
    return {
        "model": plan.checkpoint.path.name,
        "architecture": config.model_type,
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "trained_context": config.max_position_embeddings,
        "tensor_bytes": plan.checkpoint.num_bytes,
        "device": plan.device.type,
        "instructions": instruction_set(plan.device),
        "threads": plan.threads,
        "dtype": str(plan.dtype).removeprefix("torch."),
        "weights": plan.routes.description,
        "exact": plan.exact.holds,
        "exact_reason": plan.exact.reason,
        "cpu_kernels": cpu_kernels,
        "kv_dtype": {"k": k.name, "v": v.name},
        "storage": plan.storage.kind.value,
        "storage_reason": plan.storage.reason,
        "context_limit": ledger.context_limit,
        "max_context": ledger.max_context,
        "parallel": ledger.max_num_seqs,
        "fits_context": ledger.fits_context,
        "fits_parallel": ledger.fits_parallel,
        "memory": ledger.as_object(),
    }
