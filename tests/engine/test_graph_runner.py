"""Decode steps in place: padded, recorded and replayed while a batch evolves, under Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.config import EngineConfig
from octavo.engine.graph_runner import GraphRunner
from octavo.errors import InvalidRequest
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from octavo.storage import kv_cache
from octavo.storage.fused_attention import FusedAttention
from tests.engine.tiny_engines import Driver, open_model, prompt_of
from tests.tiny_models import save_hf, save_tokenizer

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted only where there is no GPU")


class Tape:
    """A recorder that runs the work again."""

    def __init__(self):
        self.recorded = 0

    def record(self, work):
        self.recorded += 1
        return work


class Broken:
    def record(self, work):
        raise RuntimeError("operation not permitted")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    save_hf(
        path, "llama", num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512
    )
    save_tokenizer(path)
    return open_model(path, "float32")


@pytest.fixture(scope="module")
def fused():
    """Caches attend as on a GPU."""

    def attention(spec, store, block_size, device, switches, staging):
        return FusedAttention(spec, store, block_size, device, staging)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_cache, "_group_attention", attention)
        patch.setattr(kv_cache, "spare_blocks", lambda device: 1)
        yield


@pytest.fixture(scope="module")
def greedy(loaded, fused):
    """The tokens of greedy requests without graphs."""
    return without(loaded)


def driver(loaded, recorder, storage=StorageKind.PAGED, draws=False, **settings) -> Driver:
    settings = {"max_num_seqs": 3, "kv_dtype": "f16", "prefill_chunk": 32, "decode_lookahead": True, **settings}
    made = Driver(loaded, storage, max_context=96, **settings)
    core = made.core
    core.runner.graphs = GraphRunner(
        loaded.model,
        core.runner.cache,
        vocab_size=loaded.plan.config.vocab_size,
        max_num_seqs=core.pool.max_seqs,
        max_context=core.max_context,
        device=torch.device("cpu"),
        recorder=recorder,
        hashes=core._steps._sampler._noise.hashes if draws else None,
    )
    return made


def params(count, **settings):
    return SamplingParams(max_tokens=count, ignore_eos=True, **settings)


def evolve(made: Driver, aborted="d", **settings) -> dict[str, list[int]]:
    """Requests that come, grow over blocks' ends, are aborted and end at different times."""
    made.add("a", prompt_of(14), params(10, **settings))
    made.add("b", prompt_of(3), params(4, **settings))
    for _ in range(4):
        made.step()
    made.add("c", prompt_of(15), params(5, **settings), seed=3)
    made.add("d", prompt_of(4), params(20, **settings), seed=4)
    for _ in range(3):
        made.step()
    made.core.abort(aborted)
    made.run()
    return {name: outcome.token_ids for name, outcome in made.outcomes.items() if name != aborted}


def without(loaded, **settings) -> dict[str, list[int]]:
    made = driver(loaded, None)
    made.core.runner.graphs = None
    return evolve(made, **settings)


def test_an_evolving_batch_gets_the_tokens_it_gets_step_by_step(loaded, greedy):
    tape = Tape()
    made = driver(loaded, tape)
    assert evolve(made) == greedy
    counts = made.core.runner.graphs.counts
    assert counts["replayed"] > counts["recorded"] == tape.recorded > 0
    assert counts["a row of several tokens"] > 0
    made.assert_idle()


def test_a_dense_sequence_without_windows_is_run_so_too(loaded, fused):
    tokens = []
    for recorder in (Tape(), None):
        made = driver(loaded, recorder, StorageKind.DENSE, max_num_seqs=1)
        if recorder is None:
            made.core.runner.graphs = None
        made.add("a", prompt_of(12), params(10))
        tokens.append(made.run()["a"].token_ids)
        if recorder is not None:
            assert made.core.runner.graphs.counts["replayed"] > 4
    assert tokens[0] == tokens[1]


def test_seeded_requests_are_drawn_from_the_logits_of_a_replay(loaded, fused):
    made = driver(loaded, Tape())
    assert evolve(made, temperature=1.0, top_k=20) == without(loaded, temperature=1.0, top_k=20)
    assert made.core.runner.graphs.counts["replayed"] > 0


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 1.0}, {"temperature": 0.7, "min_p": 0.05}, {"temperature": 1.3, "top_k": 20, "top_p": 0.9}],
    ids=str,
)
def test_tokens_are_drawn_within_a_replay_as_they_are_from_logits(loaded, fused, settings):
    made = driver(loaded, Tape(), draws=True)
    assert evolve(made, **settings) == without(loaded, **settings)
    graphs = made.core.runner.graphs
    assert graphs.counts["replayed"] > 0 and graphs._logits is None


def test_rows_that_draw_and_rows_that_take_the_best_share_a_replay(loaded, fused):
    outcomes = []
    for recorder in (Tape(), None):
        made = driver(loaded, recorder, draws=True)
        if recorder is None:
            made.core.runner.graphs = None
        for i, temperature in enumerate((0.0, 1.0, 0.0)):
            made.add(f"{i}", prompt_of(5 + i), params(9, temperature=temperature), seed=i)
        made.run()
        outcomes.append({name: outcome.token_ids for name, outcome in made.outcomes.items()})
    assert outcomes[0] == outcomes[1]


def test_log_probabilities_are_those_of_the_step_they_are_told_with(loaded, fused):
    replayed, launched = driver(loaded, Tape()), driver(loaded, None)
    launched.core.runner.graphs = None
    assert evolve(replayed, logprobs=2) == evolve(launched, logprobs=2)
    assert replayed.core.runner.graphs.counts["replayed"] > 0
    for name, outcome in replayed.outcomes.items():
        expected = launched.outcomes[name].logprobs
        assert len(outcome.logprobs) == len(outcome.token_ids) == len(expected) > 0
        assert [found.top[0][0] for found in outcome.logprobs] == outcome.token_ids
        for found, launched_one in zip(outcome.logprobs, expected, strict=True):
            assert found.token_id == launched_one.token_id
            assert found.logprob == pytest.approx(launched_one.logprob, abs=1e-6)
            assert found.top == launched_one.top


def test_a_request_that_is_preempted_goes_on_with_the_same_tokens(loaded, fused):
    outcomes = []
    for preempted in ("b", None):
        made = driver(loaded, Tape())
        for name, length in (("a", 13), ("b", 15), ("c", 5)):
            made.add(name, prompt_of(length), params(7))
        for _ in range(4):
            made.step()
        if preempted:
            made.core.preempt(preempted)
        made.run()
        outcomes.append({name: outcome.token_ids for name, outcome in made.outcomes.items()})
    assert outcomes[0] == outcomes[1]


def test_a_wrong_word_about_graphs_is_refused():
    with pytest.raises(InvalidRequest, match="cuda graphs is 'on'; it must be true, false or"):
        EngineConfig(cuda_graphs="on")  # type: ignore[arg-type]


def test_where_nothing_can_be_recorded_steps_are_launched_one_by_one(loaded, greedy, caplog):
    made = driver(loaded, Broken())
    assert evolve(made) == greedy
    counts = made.core.runner.graphs.counts
    assert counts["replayed"] == counts["recorded"] == 0 < counts["graphs are off"]
    assert "operation not permitted" in caplog.text


def test_logits_that_break_in_a_replay_end_their_request_alone(loaded, fused, monkeypatch):
    made = driver(loaded, Tape(), max_num_seqs=2)
    made.add("bad", prompt_of(5), params(12))
    made.add("good", prompt_of(7), params(12))
    logits, calls = loaded.model.logits, iter(range(1000))

    def breaking(hidden):
        found = logits(hidden).clone()
        if next(calls) == 6:
            found[0] = float("nan")
        return found

    monkeypatch.setattr(made.core.runner.graphs._model, "logits", breaking, raising=False)
    made.run()
    assert made.outcomes["bad"].finish_reason == "error" and "NaN" in (made.outcomes["bad"].error or "")
    assert made.outcomes["good"].finish_reason == "length"
    made.assert_idle()
