"""Logit bias and penalties: collected on the host, applied to a batch in one gather and one scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.engine.sampling_workspace import to_device
from octavo.sampling_params import SamplingParams

Ids = npt.NDArray[np.int64]
Effects = npt.NDArray[np.float32]

_FEW = 32  # one in so many: sorting a row's tokens is then less work than a pass over the vocabulary


class HistoryRow(Protocol):
    """What adjustments need to know of a row."""

    @property
    def params(self) -> SamplingParams: ...
    @property
    def prompt_token_ids(self) -> Sequence[int]: ...
    @property
    def output_token_ids(self) -> Sequence[int]: ...


def needs_adjustment(params: SamplingParams) -> bool:
    return bool(params.logit_bias) or penalises(params)


def adjust(logits: Tensor, rows: Sequence[HistoryRow]) -> Tensor:
    """Logits `[R, V]` float32 with bias, then penalties; a new tensor, or `logits` itself if no row wants any.

    For a token id that a row names or has seen, in this order:

    * `+ logit_bias[id]`;
    * repetition (seen in prompt or output): divided by the penalty if positive, else multiplied;
    * `- presence_penalty - frequency_penalty * count`, over the output only.

    The cost on the host is linear in the row's tokens, for rows with penalties only.
    """
    chosen = [index for index, row in enumerate(rows) if needs_adjustment(row.params)]
    if not chosen:
        return logits
    ids, effects = zip(*(_row_effects(rows[index], logits.shape[1]) for index in chosen), strict=True)
    row_index = to_device(torch.from_numpy(np.repeat(chosen, [len(row_ids) for row_ids in ids])), logits.device)
    token_index = to_device(torch.from_numpy(np.concatenate(ids)), logits.device)
    bias, repetition, deduction = to_device(torch.from_numpy(np.concatenate(effects, axis=1)), logits.device)

    values = logits[row_index, token_index] + bias
    values = torch.where(values > 0, values / repetition, values * repetition) - deduction
    return logits.index_put((row_index, token_index), values)


def _row_effects(row: HistoryRow, vocab_size: int) -> tuple[Ids, Effects]:
    """Distinct token ids `[N]` of one row and, as float32 `[3, N]`, their bias, repetition penalty and deduction."""
    params = row.params
    biased = np.array(sorted(params.logit_bias), dtype=np.int64)
    bias = np.array([params.logit_bias[token_id] for token_id in sorted(params.logit_bias)], dtype=np.float32)
    if not penalises(params):
        return biased, np.stack([bias, np.ones_like(bias), np.zeros_like(bias)])

    output = np.array(row.output_token_ids, dtype=np.int64)
    prompt = np.array(row.prompt_token_ids if params.repetition_penalty != 1.0 else [], dtype=np.int64)
    if len(output) + len(prompt) < vocab_size // _FEW:
        ids = np.unique(np.concatenate((biased, output, prompt)))
        counts = np.bincount(np.searchsorted(ids, output), minlength=len(ids))
        seen = counts > 0
        seen[np.searchsorted(ids, prompt)] = True
    else:
        counts = np.bincount(output, minlength=vocab_size)
        seen = counts > 0
        seen[prompt] = True
        touched = seen.copy()
        touched[biased] = True
        ids = np.flatnonzero(touched)
        counts, seen = counts[ids], seen[ids]
    assert not len(ids) or ids[-1] < vocab_size, f"token id {ids[-1]} is outside the vocabulary of {vocab_size}"
    effects = np.zeros((3, len(ids)), dtype=np.float32)
    effects[0, np.searchsorted(ids, biased)] = bias
    effects[1] = np.where(seen, params.repetition_penalty, 1.0)
    effects[2] = params.presence_penalty * (counts > 0) + params.frequency_penalty * counts
    return ids, effects


def penalises(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
