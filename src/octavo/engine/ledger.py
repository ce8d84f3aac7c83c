"""The memory ledger: what a model, its workspace and its K/V take, worked out before anything is loaded.

The engine admits by it, `octavo inspect` prints it. Owns every refusal for want of memory at start-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from octavo.cache.spec import CacheGroup, LayerSpec, group_layers
from octavo.config import EngineConfig
from octavo.engine.kv_demand import KVDemand, windowed
from octavo.engine.resident import Resident
from octavo.engine.working_memory import (
    Serving,
    activation_bytes,
    are_compiled,
    graph_bytes,
    workspace_bytes,
)
from octavo.errors import CapacityError, InvalidRequest
from octavo.models.config import ModelConfig

_KV_SHARE = 0.8  # of what weights and workspace leave; the rest stays for the system and fragmentation


@dataclass(frozen=True, slots=True)
class GroupBudget:
    """K/V of one group of layers. `ring_bytes` are the rings of dense sequences, `snapshot_bytes` what may be kept of
    such rings for cached prefixes, and `block_bytes` all its blocks.
    """

    kind: str
    num_layers: int
    window: int | None
    bytes_per_token: int
    num_blocks: int
    block_bytes: int
    ring_bytes: int
    snapshot_bytes: int

    def as_object(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "layers": self.num_layers,
            "window": self.window,
            "bytes_per_token": self.bytes_per_token,
            "num_blocks": self.num_blocks,
            "block_bytes": self.block_bytes,
            "ring_bytes": self.ring_bytes,
            "snapshot_bytes": self.snapshot_bytes,
        }


@dataclass(frozen=True, slots=True)
class Ledger:
    """Bytes; and lengths in tokens: `context_limit`, what settings and model allow, and `max_context`.

    `max_context` is the longest sequence that fits alone: no request may be longer. `max_num_seqs` is how many may
    run at once. `fits_context` is the longest context that so many can have at the same time, and `fits_parallel` how
    many sequences of `context_limit` tokens can run at the same time; 0 if not one.
    """

    available_bytes: int
    resident: Resident
    workspace_bytes: int
    activation_bytes: int
    groups: tuple[GroupBudget, ...]
    context_limit: int
    max_context: int
    max_num_seqs: int
    fits_context: int
    fits_parallel: int
    graph_bytes: int = 0  # captured graphs of a GPU

    @property
    def weight_bytes(self) -> int:
        return self.resident.weights

    @property
    def kv_bytes(self) -> int:
        return sum(group.block_bytes + group.ring_bytes for group in self.groups) + self.snapshot_bytes

    @property
    def snapshot_bytes(self) -> int:
        """Of `kv_bytes`, what snapshots of rings may take; they are made as prompts are computed."""
        return sum(group.snapshot_bytes for group in self.groups)

    @property
    def total_bytes(self) -> int:
        """All that is there while it runs; what loading took is gone by then."""
        return self.resident.weights + self.resident.runtime + self.overhead_bytes + self.kv_bytes

    @property
    def overhead_bytes(self) -> int:
        return self.workspace_bytes + self.activation_bytes + self.graph_bytes

    @property
    def num_blocks(self) -> tuple[int, ...]:
        return tuple(group.num_blocks for group in self.groups)

    def as_object(self) -> dict[str, Any]:
        """Sizes by names that do not change, for `inspect --json` and metrics. Parts add up to `total_bytes`."""
        return {
            "available_bytes": self.available_bytes,
            "weight_bytes": self.weight_bytes,
            "runtime_bytes": self.resident.runtime,
            "workspace_bytes": self.workspace_bytes,
            "activation_bytes": self.activation_bytes,
            "graph_bytes": self.graph_bytes,
            "kv_bytes": self.kv_bytes,
            "total_bytes": self.total_bytes,
            "loading_bytes": self.resident.loading,
            "groups": [group.as_object() for group in self.groups],
        }


def plan_memory(
    model: ModelConfig,
    layout: Sequence[LayerSpec],
    config: EngineConfig,
    *,
    serving: Serving,
    resident: Resident,
    available: int,
) -> Ledger:
    """Divide `available` bytes: weights, workspace and activations first, K/V from what is left.

    Windowed groups get what `max_num_seqs` sequences can ever hold and a cache share; the rest goes to the others: four
    fifths of what is left, up to `max_num_seqs` sequences of `max_context` tokens; or exactly `num_kv_blocks`; or all
    of `kv_budget` (of which a dense cache takes no more than its sequences can use).

    Raises `CapacityError` with both numbers if the model does not fit, not even with one block of K/V, or if what was
    asked for explicitly does not. Raises `InvalidRequest` for `num_kv_blocks` of a model without an unbounded layer.
    """
    groups, config = group_layers(layout), config.on(serving.device.type)
    return _Planner(model, groups, config, serving, are_compiled(groups, serving), resident, available).plan()


def gib(num_bytes: int) -> str:
    """In GiB, or in MiB if it is less than one."""
    return f"{num_bytes / (1 << 30):.2f} GiB" if num_bytes >= 1 << 30 else f"{num_bytes / (1 << 20):.1f} MiB"


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest n in [1, most] that `fits`, 0 if 1 does not; `fits` must not become true again as n grows."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


@dataclass(frozen=True)
class _Planner:
    """The arithmetic, for one number of sequences. Lengths are tokens; all that grows with a length is monotone."""

    model: ModelConfig
    groups: tuple[CacheGroup, ...]
    config: EngineConfig
    serving: Serving
    compiled: tuple[bool, ...]
    resident: Resident
    available: int

    @property
    def demand(self) -> KVDemand:
        config, serving = self.config, self.serving
        return KVDemand(
            self.groups,
            serving.codecs,
            serving.storage,
            config.block_size,
            config.chunk_tokens,
            snapshots=config.prefix_cache,
            keep=config.keep,
        )

    # -- what there is for sequences of up to `length` tokens ------------------------------------------------------

    def overhead(self, length: int) -> tuple[int, int]:
        """Workspace and activations."""
        workspace = workspace_bytes(self.model, self.groups, self.config, self.serving, length, compiled=self.compiled)
        return workspace, activation_bytes(self.model, self.config, length)

    def left(self, length: int) -> int:
        """Bytes for K/V; negative if not even the rest fits."""
        held = self.resident.weights + self.resident.runtime + self.graph_bytes
        return self.available - held - sum(self.overhead(length))

    @cached_property
    def graph_bytes(self) -> int:
        """What decode steps are recorded in, and the block of each group that their padding is stored in."""
        if self.serving.device.type != "cuda":
            return 0
        spare = sum(self.demand.bytes_per_token(group) for group in self.groups) * self.config.block_size
        return spare + (0 if self.config.cuda_graphs is False else graph_bytes(self.model, self.config))

    def windows(self, length: int) -> int:
        return self.demand.windowed_bytes(self.config.max_num_seqs, length)

    def num_blocks(self, length: int) -> int:
        """Blocks of the unbounded groups that there is memory for, however many are of use; negative if none is."""
        per_block, rest = self.demand.bytes_per_block, self.left(length) - self.windows(length)
        budget, exact = self.config.kv_budget, self.config.num_kv_blocks
        if budget is not None:
            rest = min(rest, budget - self.windows(length)) if budget <= self.left(length) else -1
        if not per_block:
            return -1 if rest < 0 else self.useful_blocks(length)
        if exact is not None:
            return exact if exact * per_block <= rest else -1
        if budget is None and rest >= per_block:
            rest = max(per_block, int(rest * _KV_SHARE))
        return rest // per_block

    def useful_blocks(self, length: int) -> int:
        return self.config.max_num_seqs * self.blocks_of(length)

    def blocks_of(self, length: int) -> int:
        return -(-length // self.config.block_size)

    def fits(self, length: int) -> bool:
        """Whether one sequence of `length` tokens does, beside what is set aside for the others."""
        return self.loads() and self.num_blocks(length) >= self.blocks_of(length)

    def fits_all(self, length: int) -> bool:
        """Whether all sequences can have `length` tokens at the same time."""
        return self.loads() and self.num_blocks(length) >= self.useful_blocks(length)

    def loads(self) -> bool:
        return self.resident.weights + self.resident.runtime + self.resident.loading <= self.available

    # -- the plan --------------------------------------------------------------------------------------------------

    def plan(self) -> Ledger:
        asked, most = self.config.max_context, self.model.max_position_embeddings
        limit = min(asked or most, most)
        if self.config.num_kv_blocks is not None and not self.demand.bytes_per_block:
            raise InvalidRequest(
                f"num kv blocks is {self.config.num_kv_blocks}, but every layer of this model has a window, whose "
                "memory is fixed; leave it out"
            )
        length = self.length(limit)
        if length == 0 or (asked is not None and self.config.num_kv_blocks is None and length < limit):
            raise self.refusal(limit, length)
        workspace, activations = self.overhead(length)
        return Ledger(
            available_bytes=self.available,
            resident=self.resident,
            workspace_bytes=workspace,
            activation_bytes=activations,
            graph_bytes=self.graph_bytes,
            groups=self.budgets(length),
            context_limit=limit,
            max_context=length,
            max_num_seqs=self.config.max_num_seqs,
            fits_context=largest(self.fits_all, limit),
            fits_parallel=largest(lambda seqs: self.with_seqs(seqs).fits_all(limit), 1 << 20),
        )

    def length(self, limit: int) -> int:
        """The longest context, at most `limit`; 0 if what was asked for cannot be had."""
        budget, exact = self.config.kv_budget, self.config.num_kv_blocks
        if budget is not None:
            length = largest(self.within_budget, limit)
            return length if length and self.loads() and budget <= self.left(length) else 0
        if exact is not None:  # a pool that is to have few blocks may well hold less than the context
            length = self.pool_length(exact, limit)
            return length if self.fits(length) else 0
        return limit if self.fits(limit) else largest(self.fits, limit)

    def within_budget(self, length: int) -> bool:
        """Whether the K/V budget, and what is free, hold one sequence of `length` tokens."""
        budget, needed = self.config.kv_budget, self.kv_of(length)
        return needed <= self.left(length) and (budget is None or needed <= budget)

    def kv_of(self, length: int) -> int:
        """K/V that there must be for one sequence of `length` tokens, and the windows of all others."""
        return self.windows(length) + self.blocks_of(length) * self.demand.bytes_per_block

    def with_seqs(self, num_seqs: int) -> _Planner:
        return replace(self, config=replace(self.config, max_num_seqs=num_seqs))

    def budgets(self, length: int) -> tuple[GroupBudget, ...]:
        config, demand = self.config, self.demand
        num_blocks = self.num_blocks(length)
        capped = config.num_kv_blocks is None and (config.kv_budget is None or self.serving.storage.value == "dense")
        if capped:
            num_blocks = min(num_blocks, self.useful_blocks(length))
        return tuple(
            _budget(
                group,
                demand,
                demand.windowed_blocks(group, config.max_num_seqs, length) if windowed(group) else num_blocks,
                config.max_num_seqs,
            )
            for group in self.groups
        )

    # -- refusals --------------------------------------------------------------------------------------------------

    def refusal(self, limit: int, length: int) -> CapacityError:
        """Why a sequence of `limit` tokens does not fit, where at most `length` do (0: not one token)."""
        budget, exact = self.config.kv_budget, self.config.num_kv_blocks
        least = 1 if exact is None else self.pool_length(1, limit)
        if not self.loads() or not self.has_room(least):
            return self.model_refusal(least)
        if budget is not None:
            return self.budget_refusal(budget, limit)
        if exact is None:
            return self.context_refusal(limit, length)
        left = self.left(self.pool_length(exact, limit)) - self.windows(limit)
        most = largest(lambda n: self.with_blocks(n).length(limit) > 0, exact)
        return CapacityError(
            f"{exact} K/V blocks take {gib(exact * self.demand.bytes_per_block)} but {gib(max(0, left))} are left "
            f"after the weights; ask for at most {most}"
        )

    def budget_refusal(self, budget: int, limit: int) -> CapacityError:
        length, said = largest(self.within_budget, limit), f"the kv budget is {budget} bytes ({gib(budget)})"
        if length == 0:
            needed = self.kv_of(1)
            return CapacityError(
                f"{said}, too small for one block of every group of layers; give at least {needed} ({gib(needed)})"
            )
        if budget > self.left(length):
            most = largest(lambda n: self.with_budget(n).affordable(limit), budget)
            return CapacityError(
                f"{said} but {most} ({gib(most)}) are left after weights and workspace; give at most {most}"
            )
        return self.context_refusal(limit, length)

    def affordable(self, limit: int) -> bool:
        """Whether the budget is there, beside the workspace for the context that it allows."""
        budget = self.config.kv_budget
        return budget is None or budget <= self.left(max(1, largest(self.within_budget, limit)))

    def pool_length(self, num_blocks: int, limit: int) -> int:
        """The longest sequence in a pool of so many blocks."""
        return min(limit, num_blocks * self.config.block_size)

    def with_blocks(self, num_blocks: int) -> _Planner:
        return replace(self, config=replace(self.config, num_kv_blocks=num_blocks))

    def with_budget(self, budget: int) -> _Planner:
        return replace(self, config=replace(self.config, kv_budget=budget))

    def context_refusal(self, limit: int, length: int) -> CapacityError:
        taken = self.kv_of(limit)
        budget, left = self.config.kv_budget, self.left(limit)
        held = int(left * _KV_SHARE) if budget is None else min(budget, left)
        raised = f", or --kv-budget {taken} or more" if budget is not None and taken <= left else ""
        return CapacityError(
            f"a context of {limit} tokens takes {gib(taken)} of K/V but {gib(max(0, held))} are left for it; "
            f"give --max-context {length} or less{raised}"
        )

    def model_refusal(self, least: int) -> CapacityError:
        resident, kv = self.resident, self.kv_of(least)
        needed = resident.weights + resident.runtime + max(resident.loading, sum(self.overhead(least)) + kv)
        return CapacityError(
            f"the model needs {gib(needed)} (weights {gib(resident.weights)}, the rest workspace and K/V) "
            f"but {gib(self.available)} are free; {self.fewer_sequences(least)}"
            "take a smaller model, --weights int4, or a smaller --max-context"
        )

    def fewer_sequences(self, least: int) -> str:
        """What to give for --parallel and an `or` behind it, where its sequences alone are too many."""
        asked = self.config.max_num_seqs
        if not self.loads() or not self.with_seqs(1).has_room(least):
            return ""
        most = largest(lambda n: self.with_seqs(n).has_room(least), asked)
        return f"give --parallel {most} or less (it is {asked}), or "

    def has_room(self, least: int) -> bool:
        return self.left(least) >= self.kv_of(least)


def _budget(group: CacheGroup, demand: KVDemand, num_blocks: int, num_seqs: int) -> GroupBudget:
    per_token = demand.bytes_per_token(group)
    return GroupBudget(
        kind=group.spec.kind,
        num_layers=len(group.layers),
        window=group.spec.window,
        bytes_per_token=per_token,
        num_blocks=num_blocks,
        block_bytes=num_blocks * demand.block_size * per_token,
        ring_bytes=demand.ring_rows(group, num_seqs) * per_token,
        snapshot_bytes=demand.snapshot_rows(group, num_seqs) * per_token,
    )
