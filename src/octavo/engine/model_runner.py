"""Runs one `StepBatch` through the model: plain data in, logits of the sampled rows out."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.engine.loaded_model import LoadedModel
from octavo.models.inputs import ForwardInputs
from octavo.step_batch import Phase, StepBatch
from octavo.storage import KVCache


class ModelRunner:
    """A model and its K/V storage on one device."""

    def __init__(self, loaded: LoadedModel, cache: KVCache) -> None:
        self._model = loaded.model
        self._device = loaded.plan.device
        self._by_phase = loaded.plan.routes.by_phase
        self.cache = cache

    @torch.inference_mode()
    def execute(self, batch: StepBatch) -> Tensor:
        """Logits [R, V] float32 of the rows that ask for a sample, in batch order. Stores the K/V of every token."""
        if not self._by_phase:
            return self._model.logits(self._forward(batch, Phase.PROMPT))
        parts, order = [], []
        for phase in Phase:
            indices = [i for i, row in enumerate(batch.rows) if row.phase is phase]
            if indices:
                parts.append(self._forward(StepBatch(tuple(batch.rows[i] for i in indices)), phase))
                order += [i for i in indices if batch.rows[i].sample]
        hidden = parts[0] if len(parts) == 1 else torch.cat(parts)[_sorting(order)]
        return self._model.logits(hidden)

    def _forward(self, batch: StepBatch, phase: Phase) -> Tensor:
        """Hidden states [R, H] after the last token of each row that asks for a sample."""
        self.cache.plan(batch)
        token_ids = [token for row in batch.rows for token in row.token_ids]
        positions = [position for row in batch.rows for position in range(row.start, row.stop)]
        inputs = ForwardInputs(
            token_ids=torch.tensor(token_ids, device=self._device),
            positions=torch.tensor(positions, device=self._device),
            limit=max(row.stop for row in batch.rows),
            phase=phase,
        )
        hidden = self._model.forward(inputs, self.cache)
        ends, end = [], 0
        for row in batch.rows:
            end += row.num_tokens
            if row.sample:
                ends.append(end - 1)
        return hidden if len(ends) == len(hidden) else hidden[ends]


def _sorting(order: list[int]) -> list[int]:
    """Indices that put `order` into ascending order."""
    return sorted(range(len(order)), key=order.__getitem__)
