"""Drivers whose engines hold answers to grammars, and keep what each token was sampled from. For tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from octavo.engine.grammar_queue import GrammarQueue
from octavo.engine.loaded_model import LoadedModel
from octavo.grammar.check_process import check
from octavo.grammar.compiler import GrammarCompiler
from octavo.grammar_spec import GrammarSpec
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.engine.tiny_engines import Driver, prompt_of


def held_to(grammar: GrammarSpec, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 150, "temperature": 1.0, "grammar": grammar, **fields})


class GrammarDriver(Driver):
    """`sampled[id][i]` are the logits that output token i was sampled from; `num_steps` counts forward passes.

    Grammars are checked in this process, which is as good and much faster.
    """

    def __init__(
        self, loaded: LoadedModel, storage: StorageKind = StorageKind.PAGED, *, fast_forward: bool, **settings: Any
    ) -> None:
        super().__init__(loaded, storage, fast_forward=fast_forward, **settings)
        self.core.grammars = GrammarQueue(GrammarCompiler(loaded.tokenizer, loaded.plan.config.vocab_size, check))
        self.sampled: dict[str, dict[int, Tensor]] = {}
        self.num_steps = 0
        forward = self.core.runner.forward

        def counted(*args: Any) -> Tensor:
            self.num_steps += 1
            return forward(*args)

        self.core.runner.forward = counted  # type: ignore[method-assign]

    def _observe(self, request_id: str, logits: Tensor) -> None:
        place = len(self.outcomes[request_id].token_ids)
        self.sampled.setdefault(request_id, {})[place] = logits.clone()

    @property
    def num_forced(self) -> int:
        """Tokens that no step was run for."""
        return self.core.forced_tokens


def pair(loaded, storage=StorageKind.PAGED, **settings) -> tuple[GrammarDriver, GrammarDriver]:
    """One engine that takes forced tokens without a step for each, and one that does not."""
    fast, slow = (GrammarDriver(loaded, storage, fast_forward=on, **settings) for on in (True, False))
    return fast, slow


def assert_same(fast: GrammarDriver, slow: GrammarDriver) -> None:
    """All that a client gets, and the logits of what was sampled, to the bit."""
    assert fast.outcomes.keys() == slow.outcomes.keys()
    for name, expected in slow.outcomes.items():
        got = fast.outcomes[name]
        assert (got.token_ids, got.text) == (expected.token_ids, expected.text), name
        assert (got.finish_reason, got.error) == (expected.finish_reason, expected.error), name
        for place, logits in fast.sampled.get(name, {}).items():
            assert torch.equal(logits, slow.sampled[name][place]), (name, place)


def run_both(loaded, params: SamplingParams, storage=StorageKind.PAGED, length=7, seed=1, **settings):
    """The same request alone in both engines, which agree."""
    fast, slow = pair(loaded, storage, **{"max_num_seqs": 1, **settings})
    for driver in (fast, slow):
        driver.add("a", prompt_of(length), params, seed)
        driver.run()
        driver.assert_idle()
    assert_same(fast, slow)
    return fast, slow


def run_fast(loaded, params: SamplingParams, storage=StorageKind.PAGED, length=7, seed=1, **settings) -> GrammarDriver:
    """The same request as `run_both` has, in the engine that takes forced tokens without a step for each."""
    fast = GrammarDriver(loaded, storage, fast_forward=True, max_num_seqs=1, **settings)
    fast.add("a", prompt_of(length), params, seed)
    fast.run()
    fast.assert_idle()
    return fast
