"""The context shift as a parity arm: an engine that runs past its context, against one masked forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from octavo.cache.storage_policy import StorageDecision
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import LoadedModel, share_weights
from octavo.llm import LLM
from octavo.parity.masked_forward import ShiftSchedule, masked_logits
from octavo.parity.trace import Trace
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind

_ROOM = 8  # tokens until the context is full for the first time


@dataclass(frozen=True)
class ShiftRun:
    """A prompt that all but fills the context, and as many tokens as it takes to shift that twice."""

    schedule: ShiftSchedule
    prompt: tuple[int, ...]
    num_tokens: int

    @classmethod
    def of(cls, prompt: Sequence[int], num_tokens: int, block_size: int, windows: Sequence[int]) -> ShiftRun:
        """At least `num_tokens`. The context is longer than any window, so that kept tokens leave windows and return.

        All but four blocks of it are kept.
        """
        widest = max(windows, default=0)
        context = max(5, -(-widest // block_size) + 2) * block_size
        schedule = ShiftSchedule(context, context - 4 * block_size, block_size)
        begun = tuple(prompt[: context - _ROOM])
        return cls(schedule, begun, max(num_tokens, context - len(begun) + schedule.drop + _ROOM))

    def answer(self, loaded: LoadedModel, config: EngineConfig, fault_above: float | None) -> Trace:
        """What an engine gives. `fault_above`: perturb the logits of the first step that leads by more than that."""
        schedule = self.schedule
        config = replace(
            config,
            max_num_seqs=1,
            max_context=schedule.context,
            context_limit_policy="shift",
            keep=schedule.keep,
        )
        trace = Trace()
        perturbed = fault_above is None

        def observe(request_id: str, logits: Tensor) -> None:
            nonlocal perturbed
            best = logits.topk(2).values
            if not perturbed and fault_above is not None and float(best[0] - best[1]) > 2 * fault_above:
                logits.copy_(logits.roll(1))
                perturbed = True
            trace.logits.append(logits.clone())

        shared = share_weights(loaded, config, StorageDecision(StorageKind.PAGED, "a parity arm"))
        llm = LLM.over(EngineCore(shared, config, observe))
        output = llm.generate([self.prompt], SamplingParams(max_tokens=self.num_tokens, ignore_eos=True))[0]
        trace.token_ids, trace.routes = list(output.outputs[0].token_ids), output.routes
        return trace

    def reference(self, loaded: LoadedModel, answer: Sequence[int]) -> Trace:
        """What the masked forward holds for likeliest after the prompt and each token of `answer` but its last."""
        token_ids = torch.tensor([*self.prompt, *answer[:-1]])
        offsets = self.schedule.offsets(len(self.prompt), len(token_ids))
        logits = masked_logits(loaded, token_ids, offsets, self.schedule.keep, len(self.prompt) - 1)
        return Trace(logits.argmax(-1).tolist(), list(logits))
