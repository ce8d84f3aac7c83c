"""Runs one `StepBatch` through the model: plain data in, logits of the sampled rows out."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.engine.graph_runner import GraphRunner
from octavo.engine.loaded_model import LoadedModel
from octavo.models.inputs import ForwardInputs
from octavo.step_batch import StepBatch
from octavo.storage import KVCache


class ModelRunner:
    """A model and its K/V storage on one device."""

    def __init__(self, loaded: LoadedModel, cache: KVCache, graphs: GraphRunner | None = None) -> None:
        """`graphs` runs the decode steps that it does not refuse, for who asks for that."""
        self._model = loaded.model
        self._device = loaded.plan.device
        self.cache = cache
        self.graphs = graphs

    @property
    def counts(self) -> dict[str, int]:
        """How decode steps were run, see `GraphRunner.counts`; nothing where there are no graphs."""
        return {} if self.graphs is None else dict(self.graphs.counts)

    @torch.inference_mode()
    def forward(self, batch: StepBatch, token_ids: Tensor | None = None) -> Tensor:
        """Hidden states [T, H] after the last norm, of every token in batch order. Stores the K/V of each.

        `token_ids` int64 [T] on the device stand in for those of the batch, where these are not known yet.
        """
        self.cache.plan(batch)
        if token_ids is None:
            known = [token for row in batch.rows for token in row.token_ids]
            token_ids = torch.tensor(known, device=self._device)
        positions = [position for row in batch.rows for position in range(row.rope_start, row.rope_stop)]
        inputs = ForwardInputs(
            token_ids=token_ids,
            positions=torch.tensor(positions, device=self._device),
            limit=max(row.rope_stop for row in batch.rows),
        )
        return self._model.forward(inputs, self.cache)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [R, V] float32 of hidden states [R, H]. A row's do not depend on the others."""
        return self._model.logits(hidden)

    def execute(self, batch: StepBatch) -> Tensor:
        """Logits [R, V] float32 of the rows that ask for a sample, in batch order. Stores the K/V of every token."""
        hidden = self.forward(batch)
        return self.logits(sampled_rows(hidden, batch))


def sampled_rows(hidden: Tensor, batch: StepBatch) -> Tensor:
    """Of `hidden` [T, H], the last token's row of each request that asks for a sample."""
    ends, end = [], 0
    for row in batch.rows:
        end += row.num_tokens
        if row.sample:
            ends.append(end - 1)
    return hidden if len(ends) == len(hidden) else hidden[ends]
