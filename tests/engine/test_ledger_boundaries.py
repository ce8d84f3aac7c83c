"""The ledger under random models, settings and memory: sums that never exceed, refusals that name the exact limit."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from octavo.cache.cache_pool import CachePool
from octavo.cache.spec import LayerSpec, group_layers
from octavo.config import EngineConfig
from octavo.engine.ledger import Ledger, plan_memory
from octavo.engine.resident import Resident
from octavo.engine.working_memory import Serving
from octavo.errors import CapacityError
from octavo.models.config import ModelConfig, RopeScaling
from octavo.step_batch import StorageKind
from octavo.storage.codecs import CODECS

MANY = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.filter_too_much])
LIMIT = 2048
FULL = LayerSpec("full", 4, 2, 16, 16, 0.25)
LAYOUTS = (
    (FULL, FULL),
    (FULL, LayerSpec("sliding", 4, 2, 16, 16, 0.25, 33), FULL),
    (FULL, LayerSpec("full", 4, 4, 32, 16, 0.25), LayerSpec("sliding", 4, 2, 16, 16, 0.25, 100)),
    (LayerSpec("sliding", 4, 2, 16, 16, 0.25, 64),),
)


@dataclass(frozen=True)
class Case:
    layout: tuple[LayerSpec, ...]
    config: EngineConfig
    storage: StorageKind
    codecs: tuple[str, str]
    resident: Resident
    available: int

    def plan(self, available: int | None = None, **changes: object) -> Ledger:
        k, v = self.codecs
        return plan_memory(
            model_of(self.layout),
            self.layout,
            replace(self.config, **changes),
            serving=Serving(self.storage, (CODECS[k], CODECS[v]), torch.device("cpu")),
            resident=self.resident,
            available=self.available if available is None else available,
        )

    def pool(self, ledger: Ledger) -> CachePool:
        groups, config = group_layers(self.layout), self.config
        append = config.on("cpu").chunk_tokens
        return CachePool(groups, config.block_size, ledger.num_blocks, config.max_num_seqs, max_append_tokens=append)


def model_of(layout: tuple[LayerSpec, ...]) -> ModelConfig:
    return ModelConfig(
        model_type="llama",
        vocab_size=100,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=len(layout),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=LIMIT,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        rope_scaling=RopeScaling(),
        layer_types=("full_attention",) * len(layout),
        tie_word_embeddings=True,
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shift = draw(st.booleans())
    config = EngineConfig(
        context_limit_policy="shift" if shift else "stop",
        keep=draw(st.sampled_from((0, 64, 512))) if shift else 0,
        block_size=draw(st.sampled_from((16, 32, 64))),
        max_num_seqs=draw(st.integers(1, 9)),
        prefill_chunk=draw(st.sampled_from((1, 16, 100, 2048))),
        max_batch_tokens=draw(st.sampled_from((16, 300, 2048))),
    )
    case = Case(
        layout=draw(st.sampled_from(LAYOUTS)),
        config=config,
        storage=draw(st.sampled_from(tuple(StorageKind))),
        codecs=draw(st.sampled_from((("f16", "f16"), ("f32", "bf16")))),
        resident=Resident(draw(st.integers(0, 1 << 20)), draw(st.integers(0, 1 << 16)), draw(st.integers(0, 1 << 20))),
        available=0,
    )
    roomy = case.plan(available=1 << 40)
    # From a little below what everything takes to well above it.
    share = draw(st.floats(0.05, 1.5))
    fixed_bytes = roomy.total_bytes - roomy.kv_bytes
    return replace(case, available=int(fixed_bytes * draw(st.floats(0.7, 1.0)) + roomy.kv_bytes * share))


@MANY
@given(cases(), st.none() | st.integers(1, 1 << 24), st.none() | st.integers(1, LIMIT))
def test_the_parts_never_exceed_what_is_free_nor_k_v_its_budget(case, budget, context):
    try:
        ledger = case.plan(kv_budget=budget, max_context=context)
    except CapacityError:
        assume(False)
    assert ledger.total_bytes <= case.available
    assert ledger.weight_bytes + ledger.resident.runtime + ledger.resident.loading <= case.available
    assert budget is None or ledger.kv_bytes <= budget
    assert 1 <= ledger.max_context <= ledger.context_limit == (context or LIMIT)
    assert context is None or ledger.max_context == context
    found = ledger.as_object()
    parts = ("weight_bytes", "runtime_bytes", "workspace_bytes", "activation_bytes", "graph_bytes", "kv_bytes")
    assert sum(found[part] for part in parts) == found["total_bytes"]
    parts = ("block_bytes", "ring_bytes", "snapshot_bytes")
    assert sum(g[part] for g in found["groups"] for part in parts) == found["kv_bytes"]


@MANY
@given(cases(), st.none() | st.integers(1 << 12, 1 << 22), st.integers(1, LIMIT))
def test_the_ledger_admits_exactly_what_the_pool_can_hold(case, budget, tokens):
    try:
        ledger = case.plan(kv_budget=budget)
    except CapacityError:
        assume(False)
    pool = case.pool(ledger)
    assert all(pool.fits_ever(length, case.storage) for length in (ledger.max_context, min(tokens, ledger.max_context)))
    blocks = -(-ledger.max_context // case.config.block_size)
    if ledger.max_context < LIMIT and ledger.num_blocks[0] == blocks and case.layout[0].window is None:
        assert not pool.fits_ever(blocks * case.config.block_size + 1, case.storage)


@MANY
@given(cases(), st.none() | st.integers(1 << 12, 1 << 22))
def test_windows_of_all_sequences_fit_at_the_same_time(case, budget):
    try:
        ledger = case.plan(kv_budget=budget)
    except CapacityError:
        assume(False)
    pool = case.pool(ledger)
    all_needed = pool.blocks_needed(ledger.max_context, case.storage, case.config.keep)
    for group, blocks, needed in zip(pool.groups, ledger.num_blocks, all_needed, strict=True):
        if group.bounded:
            assert blocks >= case.config.max_num_seqs * needed


@MANY
@given(cases(), st.none() | st.integers(1 << 12, 1 << 22))
def test_what_fits_together_fits_and_no_more_does(case, budget):
    """Both ways of the trade: the longest context of all sequences, and the most sequences of a full context."""
    try:
        ledger = case.plan(kv_budget=budget)
    except CapacityError:
        assume(False)

    def together(seqs: int, length: int) -> bool:
        try:
            found = case.plan(kv_budget=budget, max_num_seqs=seqs, max_context=length)
        except CapacityError:
            return False
        full = [blocks for spec, blocks in zip(found.groups, found.num_blocks, strict=True) if spec.window is None]
        return all(blocks >= seqs * -(-length // case.config.block_size) for blocks in full)

    seqs = case.config.max_num_seqs
    assert ledger.fits_context == 0 or together(seqs, ledger.fits_context)
    assert ledger.fits_context == LIMIT or not together(seqs, ledger.fits_context + 1)
    assert ledger.fits_parallel == 0 or together(ledger.fits_parallel, LIMIT)
    assert not together(ledger.fits_parallel + 1, LIMIT)


def refused(case: Case, **changes: object) -> str | None:
    """The refusal of such a plan, if it is refused."""
    try:
        case.plan(**changes)
    except CapacityError as error:
        return str(error)
    return None


def number(message: str, before: str) -> int:
    found = re.search(before + r" (\d+)", message)
    assert found is not None, message
    return int(found[1])


@MANY
@given(cases(), st.none() | st.integers(1, 1 << 24), st.integers(1, LIMIT))
def test_the_largest_context_that_a_refusal_names_is_the_largest(case, budget, context):
    message = refused(case, max_context=context, kv_budget=budget)
    assume(message is not None and "give --max-context" in message)
    most = number(message, "--max-context")
    assert refused(case, max_context=most, kv_budget=budget) is None
    assert refused(case, max_context=most + 1, kv_budget=budget) is not None
    if "or --kv-budget" in message:
        least = number(message, "or --kv-budget")
        assert refused(case, max_context=context, kv_budget=least) is None
        assert refused(case, max_context=context, kv_budget=least - 1) is not None


@MANY
@given(cases(), st.integers(1, 1 << 14), st.none() | st.integers(1, LIMIT))
def test_the_smallest_budget_that_a_refusal_names_is_the_smallest(case, budget, context):
    message = refused(case, kv_budget=budget, max_context=context)
    assume(message is not None and "too small for one block" in message)
    least = number(message, "give at least")
    assert refused(case, kv_budget=least) is None
    assert refused(case, kv_budget=least - 1) is not None


@MANY
@given(cases(), st.integers(1 << 20, 1 << 50), st.none() | st.integers(1, LIMIT))
def test_the_largest_budget_that_a_refusal_names_is_the_largest(case, budget, context):
    message = refused(case, kv_budget=budget, max_context=context)
    assume(message is not None and "are left after weights" in message)
    most = number(message, "give at most")
    assert number(message, "but") == most < budget
    further = refused(case, kv_budget=most, max_context=context)
    assert further is None or "give --max-context" in further
    assert refused(case, kv_budget=most + 1, max_context=context) is not None


@MANY
@given(cases(), st.integers(2, 20_000))
def test_the_most_blocks_that_a_refusal_names_are_the_most(case, blocks):
    assume(any(spec.window is None for spec in case.layout))
    message = refused(case, num_kv_blocks=blocks)
    assume(message is not None and "ask for at most" in message)
    most = number(message, "at most")
    assert refused(case, num_kv_blocks=most) is None
    assert refused(case, num_kv_blocks=most + 1) is not None


def test_more_memory_never_gives_a_shorter_context_or_fewer_sequences():
    case = Case(LAYOUTS[1], EngineConfig(max_num_seqs=3), StorageKind.PAGED, ("f16", "f16"), Resident(1000), 0)
    full = case.plan(available=1 << 40)
    before = (0, 0, 0)
    for available in range(full.total_bytes // 2, full.total_bytes + (1 << 20), 20_011):
        try:
            ledger = case.plan(available=available)
        except CapacityError:
            assert before == (0, 0, 0)
            continue
        now = (ledger.max_context, ledger.fits_context, ledger.fits_parallel)
        assert all(b <= n for b, n in zip(before, now, strict=True))
        before = now
    assert before[0] == LIMIT


def test_a_paged_budget_is_used_whole_and_a_dense_one_as_far_as_its_sequences_can():
    case = Case(LAYOUTS[0], EngineConfig(max_num_seqs=2), StorageKind.PAGED, ("f16", "f16"), Resident(1000), 1 << 40)
    per_block = 2 * 16 * 2 * (16 + 16) * 2
    assert case.plan(kv_budget=1000 * per_block + 1).num_blocks == (1000,)
    assert replace(case, storage=StorageKind.DENSE).plan(kv_budget=1000 * per_block).num_blocks == (2 * LIMIT // 16,)


@pytest.mark.parametrize("storage", tuple(StorageKind), ids=lambda s: s.value)
def test_a_switch_that_gathers_needs_memory_for_the_copy(storage):
    case = Case(LAYOUTS[0], EngineConfig(max_num_seqs=1), storage, ("f16", "f16"), Resident(0), 1 << 40)
    plain = case.plan().workspace_bytes
    serving = Serving(storage, (CODECS["f16"], CODECS["f16"]), torch.device("cpu"), gather=True)
    gathered = plan_memory(
        model_of(case.layout),
        case.layout,
        case.config,
        serving=serving,
        resident=case.resident,
        available=1 << 40,
    ).workspace_bytes
    assert (gathered - plain >= LIMIT * 2 * 32 * 4) == (storage is StorageKind.PAGED)
