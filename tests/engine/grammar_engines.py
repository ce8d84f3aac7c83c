"""Drivers whose engines hold answers to grammars, and keep what each token was sampled from. For tests."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from octavo.engine.grammar_queue import GrammarQueue
from octavo.engine.loaded_model import LoadedModel
from octavo.grammar.check_process import check
from octavo.grammar.compiler import GrammarCompiler
from octavo.grammar_spec import GrammarSpec
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.engine.tiny_engines import Driver


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
        forced = self.core._forced
        return 0 if forced is None else forced.num_given
