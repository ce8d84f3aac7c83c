"""What K/V codecs cost a real model: errors of K and V, of logits, and the greedy tokens that change.

    python -m tests.models.codec_losses TEXT_FILE

prints the tables of docs/kv-codecs.md for the real checkpoints (tests/conftest.py says where they lie).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.cache.spec import LayerSpec
from octavo.config import EngineConfig
from octavo.engine.loaded_model import LoadedModel, load_model, plan_model
from octavo.engine.model_runner import ModelRunner
from octavo.kernels.rows import HeadWeights, Rotation, split_heads
from octavo.step_batch import StepBatch, StorageKind
from octavo.storage import KVCache, resolve_kv_dtype
from octavo.storage.codecs import CODECS
from tests.conftest import MODEL_FILES, weights_path
from tests.schedules import HandScheduler

CONTEXT = 2048
NUM_TOKENS = 64
CHOICES = ("f16", "bf16", "k=f16,v=q8_0", "q8_0", "k=q8_0,v=q4_0", "q4_0", "turbo4")


def open_model(alias: str, threads: int | None = None) -> LoadedModel:
    config = EngineConfig(device="cpu", max_context=CONTEXT + NUM_TOKENS, max_num_seqs=1, threads=threads)
    return load_model(plan_model(weights_path(alias), config), config)


class RowErrors:
    """A cache that also adds up what each codec would lose of the rows that pass through it."""

    def __init__(self, cache: KVCache, layout: Sequence[LayerSpec]) -> None:
        self._cache = cache
        self._specs = layout
        self.lost = {name: torch.zeros(2, dtype=torch.float64) for name in CODECS}
        self.total = torch.zeros(2, dtype=torch.float64)

    def plan(self, batch: StepBatch, beside: Sequence[NDArray[np.int64]] = ()) -> tuple[Tensor, ...]:
        return self._cache.plan(batch, beside)

    def attend_qkv(
        self, layer: int, qkv: Tensor, rotation: Rotation, weights: HeadWeights, dtype: torch.dtype
    ) -> Tensor:
        spec = self._specs[layer]
        q, k, v = split_heads(qkv, spec.num_q_heads, spec.num_kv_heads, spec.k_dim, rotation, weights)
        return self.attend(layer, q, k, v).to(dtype)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for i, rows in enumerate((k.float(), v.float())):
            self.total[i] += rows.double().square().sum()
            for name, codec in CODECS.items():
                self.lost[name][i] += (codec.round_trip(rows) - rows).double().square().sum()
        return self._cache.attend(layer, q, k, v)

    def relative(self, name: str) -> tuple[float, float]:
        """‖decoded - x‖ / ‖x‖ over all K, and over all V."""
        k, v = (self.lost[name] / self.total).sqrt().tolist()
        return k, v


@dataclass(frozen=True, slots=True)
class Trace:
    """Logits [steps, prompts, V] of the tokens after each prompt."""

    logits: Tensor

    @property
    def token_ids(self) -> Tensor:
        return self.logits.argmax(-1)

    @property
    def margins(self) -> Tensor:
        """How far each greedy token leads the next best."""
        best = self.logits.topk(2, dim=-1).values
        return best[..., 0] - best[..., 1]


def trace(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    choice: str,
    num_tokens: int,
    forced: Tensor | None = None,
) -> tuple[Trace, RowErrors | None]:
    """Logits under the codecs of `choice`; tokens [steps, prompts] are `forced`, or greedy where there are none.

    A greedy run tells what each codec would lose of its rows, too.
    """
    k, v = resolve_kv_dtype(choice, loaded.plan.dtype)
    longest = max(map(len, prompts)) + num_tokens
    layout = loaded.model.kv_layout(loaded.plan.config)
    scheduler = HandScheduler(
        layout, StorageKind.DENSE, max_seqs=len(prompts), max_context=longest, codecs=(k.name, v.name)
    )
    errors = RowErrors(scheduler.cache, layout) if forced is None else None
    runner = ModelRunner(loaded, scheduler.cache if errors is None else errors)
    logits = runner.execute(StepBatch(tuple(scheduler.row(slot, prompt) for slot, prompt in enumerate(prompts))))
    steps = [logits]
    for step in range(num_tokens - 1):
        tokens = (logits.argmax(-1) if forced is None else forced[step]).tolist()
        rows = [scheduler.row(slot, [token]) for slot, token in enumerate(tokens)]
        logits = runner.execute(StepBatch(tuple(rows)))
        steps.append(logits)
    return Trace(torch.stack(steps)), errors


def first_divergence(reference: Trace, other: Trace) -> int | None:
    """The first step, of one prompt, at which the greedy tokens differ."""
    steps = (reference.token_ids != other.token_ids).any(-1).nonzero()
    return int(steps[0]) if len(steps) else None


def table(alias: str, text: str) -> list[str]:
    """A table in Markdown: `CONTEXT` tokens of `text`, then the greedy tokens of f32 K/V, forced upon each choice."""
    loaded = open_model(alias, threads=1)
    prompt = loaded.tokenizer.encode(text)[:CONTEXT]
    assert len(prompt) == CONTEXT
    reference, errors = trace(loaded, [prompt], "f32", NUM_TOKENS)
    lines = [
        "| K/V | error of K | error of V | mean logit error | largest | tokens that differ | the first | its margin |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for choice in CHOICES:
        other, _ = trace(loaded, [prompt], choice, NUM_TOKENS, reference.token_ids)
        k, v = (codec.name for codec in resolve_kv_dtype(choice, loaded.plan.dtype))
        difference = (other.logits - reference.logits).abs()
        first = first_divergence(reference, other)
        margin = "" if first is None else f"{reference.margins[first, 0]:.3f}"
        count = int((other.token_ids != reference.token_ids).sum())
        lines.append(
            f"| `{choice}` | {errors.relative(k)[0]:.2g} | {errors.relative(v)[1]:.2g} | {difference.mean():.4f} "
            f"| {difference.max():.3f} | {count} of {NUM_TOKENS} | {'none' if first is None else first} | {margin} |"
        )
    return lines


def main() -> None:
    text = Path(sys.argv[1]).read_text()
    for alias, file in MODEL_FILES.items():
        started = time.perf_counter()
        print(f"\n{file}\n", *table(alias, text), sep="\n", flush=True)
        print(f"({time.perf_counter() - started:.0f} s)", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
