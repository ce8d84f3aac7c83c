"""What a model with some route of its weights makes of a real text: the GNU GPL 3, of Debian's package base-files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from octavo.config import EngineConfig, WeightsChoice
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import load_model, plan_model
from octavo.step_batch import StepBatch, StepRow, StorageKind
from tests.conftest import weights_path

TEXT = Path("/usr/share/common-licenses/GPL-3")
TOKENS = 1024
MOST_ROWS = 256  # of a step


@dataclass(frozen=True, slots=True)
class Reading:
    """Logits [TOKENS, V] of every token, and perplexity."""

    logits: torch.Tensor
    perplexity: float

    @classmethod
    def of(cls, core: EngineCore, rows: int = MOST_ROWS) -> Reading:
        """By steps of the engine, of `rows` tokens each."""
        ids = core.loaded.tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:TOKENS]
        logits, targets = torch.cat(_steps(core, ids, rows)), torch.tensor(ids[1:])
        told = logits[:-1].gather(1, targets[:, None])[:, 0] - logits[:-1].logsumexp(1)
        return cls(logits, float(told.mean().neg().exp()))

    def compared(self, reference: Reading) -> Comparison:
        difference = (self.logits - reference.logits).abs_()
        equal = self.logits.argmax(1) == reference.logits.argmax(1)
        return Comparison(
            float(difference.mean()), float(difference.max()), float(equal.float().mean()), self, reference
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """`mean` and `largest` difference of a logit, and the share of equal best tokens."""

    mean: float
    largest: float
    equal: float
    found: Reading
    reference: Reading

    @property
    def change(self) -> float:
        """Of perplexity, as a share."""
        return self.found.perplexity / self.reference.perplexity - 1

    def __str__(self) -> str:
        return (
            f"logits off by {self.mean:.4f} on average and {self.largest:.3f} at most, {self.equal:.1%} equal best "
            f"tokens, perplexity {self.found.perplexity:.3f} of {self.reference.perplexity:.3f} ({self.change:+.2%})"
        )


def open_core(
    alias: str, weights: WeightsChoice, dtype: str, exact: bool | None = None, device: str = "cpu"
) -> EngineCore:
    config = EngineConfig(
        weights=weights,
        dtype=dtype,  # type: ignore[arg-type]
        device=device,  # type: ignore[arg-type]
        threads=1,
        storage="paged",
        max_num_seqs=1,
        max_context=TOKENS + 16,
        max_batch_tokens=MOST_ROWS,
        exact=exact,
    )
    return EngineCore(load_model(plan_model(weights_path(alias), config), config), config)


def _steps(core: EngineCore, ids: list[int], rows: int) -> list[torch.Tensor]:
    pool, parts = core.pool, []
    slot, generation = handle = pool.allocate("text", StorageKind.PAGED, len(ids))
    for start in range(0, len(ids), rows):
        live_start, fresh = pool.live_start(handle), pool.append(handle, rows)
        chunk = tuple(ids[start : start + rows])
        row = StepRow(slot, generation, StorageKind.PAGED, chunk, start, fresh, live_start, sample=True)
        with torch.inference_mode():
            hidden = core.runner.forward(StepBatch((row,)))
            parts.append(core.runner.logits(hidden).float().cpu())
        for g, group in enumerate(pool.groups):
            if group.spec.window is not None:
                pool.trim_front(handle, g, group.spec.first_visible(start + rows))
    pool.release(handle)
    return parts
