"""Opens a model's files, checks that it fits, and packs its weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from octavo.cache.storage_policy import StorageDecision, resolve_storage
from octavo.config import EngineConfig
from octavo.engine.attention_check import attention_is_row_invariant
from octavo.engine.exactness import Exactness, resolve_exact
from octavo.engine.hardware import available_memory, choose_device, choose_dtype, choose_threads
from octavo.engine.ledger import Ledger, plan_memory
from octavo.engine.resident import Resident, resident_bytes
from octavo.engine.route_check import checked_routes
from octavo.engine.shift_check import check_shift
from octavo.engine.working_memory import Serving
from octavo.errors import InvalidRequest
from octavo.kernels.cpu import library
from octavo.layers.linear import RouteChoice, choose_route
from octavo.layers.linear.affine_route import AffineRoute
from octavo.models.causal_lm import CausalLM
from octavo.models.checkpoint import Checkpoint
from octavo.models.config import ModelConfig
from octavo.models.loaders import open_checkpoint
from octavo.models.registry import model_class
from octavo.models.weights import WeightSource
from octavo.step_batch import StorageKind
from octavo.storage.codecs import Codec, check_heads, resolve_kv_dtype, warn_of_losses
from octavo.storage.route import RouteSwitches
from octavo.tokenizer import Tokenizer

Progress = Callable[[int, int], None]  # bytes packed so far, bytes in all


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """Everything decided before loading: what `octavo inspect` prints."""

    checkpoint: Checkpoint
    device: torch.device
    dtype: torch.dtype
    threads: int
    routes: RouteChoice
    codecs: tuple[Codec, Codec]
    storage: StorageDecision
    ledger: Ledger
    exact: Exactness

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    @property
    def is_row_invariant(self) -> bool:
        """Whether a token's K/V and logits are the same to the bit in any batch and any chunk of a prompt."""
        return self.exact.holds


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run. Engines may share it; nothing in it changes."""

    plan: ModelPlan
    model: CausalLM
    tokenizer: Tokenizer
    weight_routes: dict[str, int]
    load_s: float


def plan_model(path: Path, config: EngineConfig, *, may_run_several: bool = True, exports: bool = False) -> ModelPlan:
    """Open and check the files, choose device, dtype, routes and storage, and work out the ledger.

    `exports`: K/V of a sequence will be asked for, so there has to be memory for a copy.
    Raises `LoadError`, `CapacityError` or `InvalidRequest`; reads no weights.
    """
    return plan_checkpoint(open_checkpoint(path), config, may_run_several=may_run_several, exports=exports)


def plan_checkpoint(
    checkpoint: Checkpoint, config: EngineConfig, *, may_run_several: bool = True, exports: bool = False
) -> ModelPlan:
    """`plan_model` of files that are open."""
    model = checkpoint.config
    cls = model_class(model.model_type)
    if config.max_context is not None and config.max_context > model.max_position_embeddings:
        raise InvalidRequest(
            f"max context is {config.max_context}; this model was made for {model.max_position_embeddings} tokens, "
            "give at most that"
        )
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device, narrow_weights=_mostly_affine(checkpoint))
    routes = choose_route(config.weights, dtype, device, exact=config.exact)
    codecs = resolve_kv_dtype(config.kv_dtype, dtype)
    check_heads(codecs, cls.kv_layout(model))
    warn_of_losses(codecs, model.model_type)
    if config.context_limit_policy == "shift":
        check_shift(model, codecs[0])
    several = may_run_several and config.max_num_seqs > 1
    # What is forgotten leaves in blocks.
    choice = "paged" if config.context_limit_policy == "shift" else config.storage
    storage = resolve_storage(choice, model.model_type, device.type, cls.supports_paged, several)
    layout = cls.kv_layout(model)
    if config.exact and choice == "auto" and device.type == "cuda" and any(spec.window for spec in layout):
        storage = resolve_storage("paged", model.model_type, device.type, cls.supports_paged, several)
    exact = resolve_exact(
        config.exact,
        device=device,
        routes=routes,
        layout=layout,
        codecs=codecs,
        block_size=config.block_size,
        storage=storage.kind,
    )
    threads = choose_threads(config.threads)
    serving = replace(_serving(storage.kind, codecs, device, threads), exports=exports, exact=exact.holds)
    ledger = _ledger(checkpoint, config, serving, resident_bytes(checkpoint, routes, dtype), available_memory(device))
    config.check_keep(ledger.max_context)
    return ModelPlan(checkpoint, device, dtype, threads, routes, codecs, storage, ledger, exact)


def _mostly_affine(checkpoint: Checkpoint) -> bool:
    """Whether compiled kernels take more than half of the model's weights as the file has them."""
    if library.load().functions is None:
        return False
    shards = [checkpoint.tensor(name) for name in checkpoint.names()]
    taken = sum(math.prod(shard.shape) for shard in shards if AffineRoute().refusal([shard]) is None)
    return 2 * taken > sum(math.prod(shard.shape) for shard in shards)


def share_weights(loaded: LoadedModel, config: EngineConfig, storage: StorageDecision) -> LoadedModel:
    """The same weights under another configuration, with a ledger of its own.

    Raises `InvalidRequest` where an exact model would not be under that one.
    """
    plan = loaded.plan
    resident = replace(plan.ledger.resident, loading=0)
    available = available_memory(plan.device) + resident.weights + resident.runtime
    codecs = resolve_kv_dtype(config.kv_dtype, plan.dtype)
    layout = loaded.model.kv_layout(plan.config)
    check_heads(codecs, layout)
    if plan.exact.holds:
        resolve_exact(
            True,
            device=plan.device,
            routes=plan.routes,
            layout=layout,
            codecs=codecs,
            block_size=config.block_size,
            storage=storage.kind,
        )
    serving = replace(_serving(storage.kind, codecs, plan.device, plan.threads), exact=plan.exact.holds)
    ledger = _ledger(plan.checkpoint, config, serving, resident, available)
    return replace(loaded, plan=replace(plan, codecs=codecs, storage=storage, ledger=ledger))


def _serving(storage: StorageKind, codecs: tuple[Codec, Codec], device: torch.device, threads: int) -> Serving:
    gather = RouteSwitches.from_environment().native is False
    return Serving(storage, codecs, device, threads, gather)


def _ledger(
    checkpoint: Checkpoint, config: EngineConfig, serving: Serving, resident: Resident, available: int
) -> Ledger:
    model = checkpoint.config
    layout = model_class(model.model_type).kv_layout(model)
    return plan_memory(model, layout, config, serving=serving, resident=resident, available=available)


def _checked(plan: ModelPlan, config: EngineConfig) -> ModelPlan:
    """The plan with routes that give a row its own bits on this machine, if it is to be exact."""
    if not plan.exact.holds:
        return plan
    layout = model_class(plan.config.model_type).kv_layout(plan.config)
    with torch.inference_mode():
        routes = checked_routes(plan.routes, plan.checkpoint, plan.device)
        attends = plan.device.type != "cpu" or attention_is_row_invariant(layout, plan.codecs)
    if routes is None or not attends:
        reason = "on this machine a product's bits depend on its number of rows"
        if routes is not None:
            reason = "on this machine a token's attention depends on what is computed beside it"
        if config.exact:
            raise InvalidRequest(f"exact results were asked for, but {reason}; use --no-exact")
        return replace(plan, exact=Exactness(False, reason))
    if routes is plan.routes:
        return plan
    resident = resident_bytes(plan.checkpoint, routes, plan.dtype)
    serving = replace(_serving(plan.storage.kind, plan.codecs, plan.device, plan.threads), exports=True, exact=True)
    ledger = _ledger(plan.checkpoint, config, serving, resident, available_memory(plan.device))
    return replace(plan, routes=routes, ledger=ledger)


def load_model(
    plan: ModelPlan,
    config: EngineConfig,
    progress: Progress = lambda done, total: None,
    tokenizer: Tokenizer | None = None,
) -> LoadedModel:
    """Read and pack the weights. Sets the process's thread counts, the kernels' own and torch's.

    Where results are to be exact, routes are tried out first: the plan of what is returned tells what came of it.
    Raises `InvalidRequest` if none holds and exact results were asked for.

    `tokenizer` is the checkpoint's own, if it was read already.
    """
    started = time.perf_counter()
    torch.set_num_threads(plan.threads)
    library.set_threads(plan.threads)
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        progress(done, plan.checkpoint.num_bytes)

    plan = _checked(plan, config)
    tokenizer = tokenizer or plan.checkpoint.tokenizer(force=config.force)
    with torch.inference_mode():
        weights = WeightSource(plan.checkpoint, plan.routes, plan.dtype, plan.device, on_bytes)
        model = model_class(plan.config.model_type)(plan.config, weights)
    if set(weights.route_counts) == {"affine"}:
        # All that is left to torch is small: its threads would only wait, and wait spinning.
        torch.set_num_threads(1)
    return LoadedModel(plan, model, tokenizer, weights.route_counts, time.perf_counter() - started)
