"""Runs one `StepBatch` through the model: plain data in, logits of the sampled rows out."""

from __future__ import annotations

from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
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
        if token_ids is None:
            positions, token_ids = self.cache.plan(batch, (_positions(batch), _token_ids(batch)))
        else:
            (positions,) = self.cache.plan(batch, (_positions(batch),))
        inputs = ForwardInputs(token_ids, positions, limit=max(row.rope_stop for row in batch.rows))
        return self._model.forward(inputs, self.cache)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [R, V] float32 of hidden states [R, H]. A row's do not depend on the others."""
        return self._model.logits(hidden)

    def execute(self, batch: StepBatch) -> Tensor:
        """Logits [R, V] float32 of the rows that ask for a sample, in batch order. Stores the K/V of every token."""
        hidden = self.forward(batch)
        return self.logits(sampled_rows(hidden, batch))


def _token_ids(batch: StepBatch) -> NDArray[np.int64]:
    """[T], of every token in batch order."""
    return np.fromiter(chain.from_iterable([row.token_ids for row in batch.rows]), np.int64, batch.num_tokens)


def _positions(batch: StepBatch) -> NDArray[np.int64]:
    """Rotary positions [T] of every token in batch order."""
    counts = np.array([row.num_tokens for row in batch.rows])
    begins = np.array([row.rope_start for row in batch.rows]) - np.cumsum(counts) + counts
    positions: NDArray[np.int64] = np.arange(batch.num_tokens) + np.repeat(begins, counts)
    return positions


def sampled_rows(hidden: Tensor, batch: StepBatch) -> Tensor:
    """Of `hidden` [T, H], the last token's row of each request that asks for a sample."""
    ends, end = [], 0
    for row in batch.rows:
        end += row.num_tokens
        if row.sample:
            ends.append(end - 1)
    return hidden if len(ends) == len(hidden) else hidden[ends]
