"""`run_parity` and its comparisons: arms agree on a healthy engine, and whatever is wrong with one is noticed."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import load_model, plan_model, share_weights
from octavo.errors import InvalidRequest
from octavo.parity import ARMS, run_parity
from octavo.parity import runner as runner_module
from octavo.parity.prompts import parity_prompts
from octavo.parity.server_arm import ServedAnswers
from octavo.parity.trace import Trace, compare
from octavo.step_batch import StorageKind
from octavo.storage import kv_cache
from octavo.storage.route import Route, RouteCounts
from tests.paged_routes import PAGED_ROUTES
from tests.tiny_models import save_hf

CONFIG = EngineConfig(dtype="bfloat16", device="cpu", threads=1)
NUM_TOKENS, FEW_TOKENS = 24, 8
LAYERS = ["sliding_attention", "full_attention"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """One windowed and one full layer of a tiny Gemma."""
    path = tmp_path_factory.mktemp("models") / "gemma"
    save_hf(path, "gemma3", num_hidden_layers=2, max_position_embeddings=512, layer_types=LAYERS, sliding_window=32)
    return load_model(plan_model(path, CONFIG), CONFIG)


@pytest.fixture
def no_processes(monkeypatch):
    """The arms that are processes without these: they repeat what the reference says."""
    reference: list[int] = []
    original = runner_module.ParityRun._alone

    def remember(self, kind, prompt, name, **keywords):
        found = original(self, kind, prompt, name, **keywords)
        if name == "" and prompt == 0:
            reference[:] = found.token_ids
        return found

    def repeat(plan, config, prompt, prompt_token_ids, num_tokens):
        return Trace(list(reference), [], {"dense": 1, "ring": 1})

    def repeat_served(plan, config, kind, questions, noise):
        routes = {"dense": 1, "ring": 1} if kind is StorageKind.DENSE else dict.fromkeys(PAGED_ROUTES, 1)
        return ServedAnswers([deepcopy(question.expected) for question in questions], routes)

    monkeypatch.setattr(runner_module.ParityRun, "_alone", remember)
    monkeypatch.setattr(runner_module, "trace_cli", repeat)
    monkeypatch.setattr(runner_module, "ask_server", repeat_served)


# Of a CPU, where nothing is recorded.
HERE = [arm for arm in ARMS if arm != "graph"]


def runs_paged(arm: str) -> bool:
    if arm in ("cached_prefix_dense", "server_dense"):
        return False
    return any(
        part in arm for part in ("paged", "chunk", "gather", "cached", "preempted", "imported", "shift", "codec")
    )


def runs_paged_here(arm: str) -> bool:
    """Paged, and in this process."""
    return runs_paged(arm) and "server" not in arm


def test_a_healthy_engine_is_equal_in_every_arm(loaded, no_processes):
    told = []
    report = run_parity(loaded, CONFIG, num_tokens=NUM_TOKENS, on_arm=told.append)
    assert report.equal and report.contract == "bitwise"
    assert [arm.name for arm in report.arms] == HERE
    assert told == list(report.arms)
    for arm in report.arms:
        assert (arm.equal, arm.first_divergence, arm.problem) == (True, None, None)
        assert arm.margin == (0.25 if arm.name == "context_shift" else None)
        if arm.name == "context_shift":  # rounded once more with every shift
            assert 0.0 < arm.max_logit_diff < 0.05
            assert arm.line().endswith("; held to leads of more than 0.25")
        else:
            assert arm.max_logit_diff == (None if arm.name == "cli" else 0.0)
        if arm.name == "gather_b1" or "codec" in arm.name:
            assert set(arm.routes) == {"gather"}
        elif runs_paged(arm.name):
            assert set(arm.routes) == PAGED_ROUTES
        else:
            assert set(arm.routes) == {"dense", "ring"}


FAULTS = (
    "dense_b1",
    "batch4_dense_row0",
    "batch4_paged_row3",
    "prefill_chunk_64",
    "cached_prefix",
    "cached_prefix_dense",
    "preempted",
    "imported_snapshot",
    "context_shift",
    "cli",
    "server_dense",
    "server_paged",
)
# By day each has another arm beside it, and some have all.
AMONG_ALL_BY_DAY = ("batch4_paged_row3", "cli")


@pytest.mark.parametrize(
    ("arm", "others"),
    [
        *((arm, ("paged_b1",)) for arm in FAULTS if arm not in AMONG_ALL_BY_DAY),
        *((arm, ()) for arm in AMONG_ALL_BY_DAY),
        *(pytest.param(arm, (), marks=pytest.mark.nightly) for arm in FAULTS if arm not in AMONG_ALL_BY_DAY),
    ],
    ids=lambda value: value if isinstance(value, str) else "beside one" if value else "among all",
)
def test_a_fault_in_one_arm_is_noticed_there_and_nowhere_else(loaded, no_processes, arm, others):
    report = run_parity(loaded, CONFIG, num_tokens=NUM_TOKENS, fault=arm, arms=(arm, *others) if others else ())
    assert not report.equal
    assert [found.name for found in report.arms if not found.equal] == [arm]
    (found,) = [found for found in report.arms if found.name == arm]
    assert found.first_divergence is not None
    assert arm == "cli" or "server" in arm or found.max_logit_diff > 0.25


def test_an_unknown_arm_is_refused_with_those_there_are(loaded):
    with pytest.raises(InvalidRequest, match=r"'nope' is unknown.*dense_b1.*cli"):
        run_parity(loaded, CONFIG, fault="nope")


def test_a_context_too_short_for_the_run_is_refused_not_cut_short(loaded):
    with pytest.raises(InvalidRequest, match=r"400 tokens needs a context of \d+ here, and the model's is 512"):
        run_parity(loaded, CONFIG, num_tokens=400)


@pytest.mark.parametrize("lie", [pytest.param("none", marks=pytest.mark.nightly), "dense"])
def test_a_paged_arm_without_paged_routes_fails_although_its_tokens_agree(loaded, no_processes, monkeypatch, lie):
    original = RouteCounts.add

    def add(self, route, reason, count=1):
        if route.value not in PAGED_ROUTES | {"gather"}:
            original(self, route, reason, count)
        elif lie == "dense":
            original(self, Route.DENSE, reason, count)

    monkeypatch.setattr(RouteCounts, "add", add)
    report = run_parity(loaded, CONFIG, num_tokens=NUM_TOKENS)
    failed = [arm for arm in report.arms if not arm.equal]
    assert [arm.name for arm in failed] == [a for a in HERE if runs_paged_here(a)]
    for arm in failed:
        assert arm.first_divergence is None
        expected = {"gather"} if "gather" in arm.name or "codec" in arm.name else PAGED_ROUTES
        assert arm.problem is not None and f"not {sorted(expected)}" in arm.problem
        assert arm.problem in arm.line()


@pytest.mark.skipif({"gather"} == PAGED_ROUTES, reason="no compiled kernels, so paged rows are gathered")
def test_a_paged_arm_that_gathers_where_the_fused_kernel_serves_fails(loaded, no_processes, monkeypatch):
    original = RouteCounts.add

    def add(self, route, reason, count=1):
        original(self, Route.GATHER if route.value in PAGED_ROUTES else route, reason, count)

    monkeypatch.setattr(RouteCounts, "add", add)
    failed = {arm.name for arm in run_parity(loaded, CONFIG, num_tokens=FEW_TOKENS).arms if not arm.equal}
    assert failed == {a for a in HERE if runs_paged_here(a) and "gather" not in a and "codec" not in a}


def test_an_engine_whose_paged_storage_errs_is_noticed(loaded, no_processes, monkeypatch):
    """A small error in the logits of whatever ran paged, not injected by the run itself."""
    original = EngineCore.__init__

    def init(self, loaded, config, on_logits=None, switches=None):
        original(self, loaded, config, on_logits, switches)
        logits = self.runner.logits
        if self.storage.value == "paged":
            self.runner.logits = lambda hidden: logits(hidden) * (1 + 2**-7)

    monkeypatch.setattr(EngineCore, "__init__", init)
    report = run_parity(loaded, CONFIG, num_tokens=FEW_TOKENS)
    failed = {arm.name for arm in report.arms if not arm.equal}
    assert failed == {a for a in HERE if runs_paged_here(a) and a != "context_shift"}  # too small for its margin


def test_the_longest_prompt_is_longer_than_the_window_and_hardly_longer_than_asked(loaded):
    for longest in (50, 132, 700):
        *others, last = parity_prompts(loaded.tokenizer, longest)
        assert longest <= len(loaded.tokenizer.encode(last)) <= longest + 10
        assert len(others) == 3


def test_chosen_arms_are_run_and_no_others(loaded):
    told = []
    report = run_parity(loaded, CONFIG, arms=["paged_b1", "dense_b1"], on_arm=told.append)
    assert [arm.name for arm in report.arms] == ["dense_b1", "paged_b1"] == [arm.name for arm in told]
    assert report.contract == "bitwise"
    report = run_parity(loaded, CONFIG, arms=["context_shift"])
    assert report.contract == "tokens wherever the reference leads by more than 0.25"
    with pytest.raises(InvalidRequest, match=r"'nope' is unknown"):
        run_parity(loaded, CONFIG, arms=["paged_b1", "nope"])


# -- past the context ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["none rotated", "frequencies", "some not rotated"])
def test_a_shift_that_goes_wrong_is_noticed_by_its_arm(loaded, monkeypatch, wrong):
    original = kv_cache.rotate_back

    def rotate_back(layers, mapping, delta, frequencies):
        if wrong == "frequencies":
            original(layers, mapping, delta, {layer: 0.9 * given for layer, given in frequencies.items()})
        elif wrong == "some not rotated":
            original(layers, mapping[16:], delta, frequencies)

    monkeypatch.setattr(kv_cache, "rotate_back", rotate_back)
    (arm,) = run_parity(loaded, CONFIG, arms=["context_shift"]).arms
    assert not arm.equal
    assert arm.max_logit_diff > 0.25


def test_a_codec_whose_keys_cannot_be_shifted_has_the_arm_skipped_with_the_reason(loaded):
    config = replace(CONFIG, kv_dtype="k=q8_0,v=f16")
    narrow = share_weights(loaded, config, loaded.plan.storage)
    skipped = {}
    report = run_parity(narrow, config, arms=["paged_b1", "context_shift"], on_skip=skipped.__setitem__)
    assert report.equal and [arm.name for arm in report.arms] == ["paged_b1"]
    assert "q8_0 for k cannot be shifted" in skipped["context_shift"]
    with pytest.raises(InvalidRequest, match=r"none of the chosen arms .*context_shift: kv dtype q8_0"):
        run_parity(narrow, config, arms=["context_shift"])


# -- comparisons ------------------------------------------------------------------------------------------------


def trace(tokens, leads) -> Trace:
    """A trace whose token i leads the second best by `leads[i]`."""
    logits = []
    for token, lead in zip(tokens, leads, strict=True):
        row = torch.zeros(10)
        row[token], row[(token + 1) % 10] = 5.0 + lead, 5.0
        logits.append(row)
    return Trace(list(tokens), logits)


REFERENCE = trace([1, 2, 3, 4], [2.0, 1.0, 0.1, 1.0])


@pytest.mark.parametrize(
    ("tokens", "bitwise", "agrees", "divergence"),
    [
        ([1, 2, 3, 4], False, True, None),
        ([1, 2, 4, 9], False, True, 2),  # a tie; what follows has another context
        ([1, 3, 3, 4], False, False, 1),
        ([1, 2, 4, 9], True, False, 2),
        ([1, 2, 3], False, False, 3),
        ([1, 2, 3, 4, 5], False, False, 4),
    ],
)
def test_tokens_must_agree_wherever_the_reference_leads_by_more_than_the_margin(tokens, bitwise, agrees, divergence):
    found = compare(trace(tokens, [1.0] * len(tokens)), REFERENCE, bitwise=bitwise, margin=0.25)
    assert (found.agrees, found.first_divergence) == (agrees, divergence)


@pytest.mark.parametrize(("tokens", "agrees"), [([1, 2, 4, 4], True), ([1, 2, 4, 9], False), ([1, 2, 4], False)])
def test_where_the_reference_was_given_the_arms_own_tokens_all_steps_are_compared(tokens, agrees):
    found = compare(trace(tokens, [1.0] * len(tokens)), REFERENCE, bitwise=False, margin=0.25, forced=True)
    assert (found.agrees, found.first_divergence) == (agrees, 2)


def test_bitwise_arms_must_have_equal_logits_to_the_last_bit():
    close = trace([1, 2, 3, 4], [2.0, 1.0, 0.1, 1.0])
    assert compare(close, REFERENCE, bitwise=True, margin=0.25).agrees
    close.logits[3][0] = 1e-30
    found = compare(close, REFERENCE, bitwise=True, margin=0.25)
    assert (found.agrees, found.first_divergence) == (False, None)
    assert found.max_logit_diff == pytest.approx(1e-30)


def test_without_logits_only_tokens_are_compared():
    found = compare(Trace([1, 2, 3, 4]), REFERENCE, bitwise=True, margin=0.25)
    assert (found.agrees, found.max_logit_diff) == (True, None)
