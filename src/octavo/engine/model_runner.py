"""Runs one `StepBatch` through the model: plain data in, logits of the sampled rows out."""

from __future__ import annotations

from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.engine.graph_runner import Following, GraphRunner
from octavo.engine.loaded_model import LoadedModel
from octavo.models.inputs import ForwardInputs
from octavo.step_batch import StepBatch
from octavo.storage import KVCache


class ModelRunner:
    """A model and its K/V storage on one device."""

    def __init__(self, loaded: LoadedModel, cache: KVCache, graphs: GraphRunner | None = None) -> None:
        """`graphs` runs the decode steps that it does not refuse, for who asks for that."""
        self._model = loaded.model
        self._sampled: Tensor | None = None  # which rows of the latest hidden states are; None for all
        self.every_state = True  # whether `forward` has to give those of tokens that are not sampled after
        self.cache = cache
        self.graphs = graphs

    @property
    def counts(self) -> dict[str, int]:
        """How decode steps were run, see `GraphRunner.counts`; nothing where there are no graphs."""
        return {} if self.graphs is None else dict(self.graphs.counts)

    def forward(self, batch: StepBatch, following: Following | None = None) -> Tensor:
        """Hidden states [T, H] after the last norm, of every token in batch order. Stores the K/V of each.

        Without `every_state` they are [R, H], of the tokens that are sampled after.
        With `following`, tokens that the host does not know yet come from there. Waits for nothing. In inference mode.
        """
        beside = _one_each(batch) if all(row.sample and len(row.token_ids) == 1 for row in batch.rows) else _any(batch)
        if following is not None:
            sources = np.full(batch.num_tokens, -1)
            sources[np.cumsum([0, *[row.num_tokens for row in batch.rows[:-1]]])] = following.rows
            beside.append(sources)
        token_ids, positions, *more = self.cache.plan(batch, beside)
        if following is not None:
            token_ids = _picked(token_ids, more.pop(), following.drawn)
        sampled = more[0] if more else None
        self._sampled = sampled if self.every_state else None
        limit = max([row.rope_stop for row in batch.rows])
        inputs = ForwardInputs(token_ids, positions, limit, None if self.every_state else sampled)
        return self._model.forward(inputs, self.cache)

    def sampled(self, hidden: Tensor) -> Tensor:
        """Of `hidden`, which the latest `forward` gave, the last token's row of each request that asks for a sample."""
        return hidden if self._sampled is None else hidden[self._sampled]

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [R, V] float32 of hidden states [R, H]. A row's do not depend on the others. In inference mode."""
        return self._model.logits(hidden)

    def greedy(self, hidden: Tensor) -> Tensor | None:
        """What `greedy_tokens` gives of `logits`, [R] int64; None where these have to be written for it."""
        return self._model.greedy(hidden)

    @torch.inference_mode()
    def execute(self, batch: StepBatch) -> Tensor:
        """Logits [R, V] float32 of the rows that ask for a sample, in batch order. Stores the K/V of every token."""
        return self.logits(self.sampled(self.forward(batch)))


def _one_each(batch: StepBatch) -> list[NDArray[np.int64]]:
    """Token ids and rotary positions [T] of a batch that samples after its every token, as most steps do."""
    return [
        np.array([row.token_ids[0] for row in batch.rows], dtype=np.int64),
        np.array([row.rope_start for row in batch.rows], dtype=np.int64),
    ]


def _any(batch: StepBatch) -> list[NDArray[np.int64]]:
    """Token ids and rotary positions [T] of every token in batch order, and which tokens are sampled after."""
    counts = np.array([row.num_tokens for row in batch.rows])
    ends = np.cumsum(counts)
    token_ids = np.fromiter(chain.from_iterable([row.token_ids for row in batch.rows]), np.int64, batch.num_tokens)
    first = np.array([row.rope_start for row in batch.rows])
    positions = np.arange(batch.num_tokens) + np.repeat(first - (ends - counts), counts)
    return [token_ids, positions, ends[np.array([row.sample for row in batch.rows])] - 1]


def _picked(known: Tensor, sources: Tensor, drawn: Tensor) -> Tensor:
    """`known` [T], or what was `drawn` [R] where there is a source. One that was drawn in error is any token."""
    return torch.where(sources < 0, known, drawn[sources.clamp_min(0)].clamp_min(0))
