"""Which arms cannot be run where, and why; and that a graph is held to every bit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from octavo.cache.spec import LayerSpec
from octavo.engine.exactness import Exactness
from octavo.parity.arms import ARMS, keeps_windows_paged, refused_arms
from octavo.parity.graph_arm import trace_replayed
from octavo.parity.trace import Trace
from octavo.sampling_params import SamplingParams
from octavo.storage.codecs import CODECS

FULL = LayerSpec("full", 4, 2, 64, 64, 0.1, None)
SLIDING = LayerSpec("sliding", 4, 2, 64, 64, 0.1, 32)


@pytest.fixture(autouse=True)
def any_model_can_be_shifted(monkeypatch):
    monkeypatch.setattr("octavo.parity.arms.check_shift", lambda config, codec: None)


def plan(device="cuda", exact=True, codec="f16"):
    codecs = (CODECS[codec], CODECS[codec])
    return SimpleNamespace(exact=Exactness(exact, ""), device=torch.device(device), codecs=codecs, config=None)


def refused(*specs, **given):
    pytest.importorskip("triton", reason="triton is not installed")
    return refused_arms(plan(**given), specs, 16)


def test_graphs_are_only_recorded_on_a_gpu():
    assert refused(FULL, device="cpu") == {"graph": "nothing is recorded on cpu"}
    assert refused(FULL, exact=False) == {}
    unfused = refused(FULL, exact=False, codec="f32")
    assert unfused == {"graph": "nothing is recorded: no fused kernel for float32 keys or values"}


def test_gathering_and_codecs_without_a_kernel_are_not_exact_on_a_gpu():
    found = refused(FULL)
    assert set(found) == {"gather_b1", "codec_turbo4"}
    assert "not exact on a GPU" in found["gather_b1"]
    assert "turbo4" in found["codec_turbo4"]


def test_windows_leave_only_paged_arms_where_rings_are_not_exact():
    found = refused(FULL, SLIDING)
    left = [arm for arm in ARMS if arm not in found]
    assert left == [
        *("paged_b1", "batch4_paged_row0", "batch4_paged_row1", "batch4_paged_row2", "batch4_paged_row3"),
        *("prefill_chunk_7", "prefill_chunk_64", "graph", "cached_prefix", "preempted", "context_shift"),
        "server_paged",
    ]
    assert "rings" in found["dense_b1"]
    assert keeps_windows_paged(plan(), [SLIDING])
    assert not keeps_windows_paged(plan(device="cpu"), [SLIDING])
    assert not keeps_windows_paged(plan(exact=False), [SLIDING])


@pytest.mark.parametrize(("replayed", "problem"), [(9, None), (3, "replayed 3 of 10 steps")])
def test_an_arm_that_replayed_few_steps_proves_nothing(monkeypatch, replayed, problem):
    output = SimpleNamespace(outputs=[SimpleNamespace(token_ids=range(10))], routes={"varlen_prefill": 1})
    llm = SimpleNamespace(generate=lambda prompts, params: [output])
    monkeypatch.setattr("octavo.parity.graph_arm.LLM", SimpleNamespace(over=lambda core: llm))
    core = SimpleNamespace(runner=SimpleNamespace(counts={"replayed": replayed}))
    trace = trace_replayed(core, [1, 2], SamplingParams(max_tokens=10), Trace())
    assert trace.token_ids == list(range(10))
    assert trace.problem == problem or trace.problem.startswith(problem)
