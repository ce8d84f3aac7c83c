"""Turns a step's logits into one token id per row. Owns the order of the sampling steps, not their arithmetic
(`sampling_*.py`), and nothing about requests, text or stopping."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from octavo.engine.read_back import HostTokens, ReadBack
from octavo.engine.sampling_adjustments import adjust, needs_adjustment
from octavo.engine.sampling_device import divisor_of, draw_settings
from octavo.engine.sampling_filters import filters, keep_mask, shortlist
from octavo.engine.sampling_logprobs import ScoredTokens, scored_tokens
from octavo.engine.sampling_mask import MaskTable, TokenMasks
from octavo.engine.sampling_random import TokenNoise, row_key
from octavo.engine.sampling_workspace import Workspace, to_device
from octavo.kernels.draws import draw_tokens, served
from octavo.kernels.greedy import greedy_tokens
from octavo.kernels.rows import best as row_best
from octavo.outputs import TokenLogprobs
from octavo.sampling_params import SamplingParams


class SamplerRow(NamedTuple):
    """One row to sample. `position` is the index that the new token will have in prompt + output.

    The token ids are read only if `params` has penalties, and never changed or kept.
    """

    params: SamplingParams
    seed: int
    choice: int
    position: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class SampleResult:
    """Per row, in the order given: the token id, its log-probabilities if asked for, the error or None.

    A row with an error has token id -1 and no log-probabilities.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    errors: list[str | None]


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """A sampling that may still be under way on its device: `token_ids` int64 `[R]` there, -1 for a row with an error.

    `logits` are those that were given, which log-probabilities are told of; None where no row asks for any. `on_host`
    are the token ids on their way to the host, where they are not there already, and `scores` the log-probabilities of
    rows that ask for any (`ScoredTokens.words`).
    """

    token_ids: Tensor
    logits: Tensor | None
    rows: Sequence[SamplerRow]
    on_host: HostTokens | None = None
    scores: HostTokens | None = None


class Sampler:
    """Samples rows independently: a row's result is bitwise the same in any batch, at any place in it.

    The steps, in order: the grammar's mask, logit bias, repetition penalty, presence and frequency penalties,
    temperature, min-p, top-k, top-p, and the draw: the largest of logit + Gumbel noise (Gumbel-max), which picks each
    token with its softmax probability. Temperature 0 takes the largest logit after the penalties, the lowest id among
    equals.
    """

    def __init__(self, vocab_size: int, device: torch.device | str) -> None:
        self._vocab_size = vocab_size
        self._device = torch.device(device)
        self._workspace = Workspace(self._device)
        self._noise = TokenNoise(vocab_size, self._workspace)
        self._masks = MaskTable(self._device, self._workspace)
        self._read_back, self._scores_back = ReadBack(), ReadBack()

    @property
    def hashes(self) -> Tensor | None:
        """int64 [V], with which kernels draw what `draw` does; None where none does."""
        return self._noise.hashes if served(self._device, self._vocab_size) else None

    def sample(self, logits: Tensor, rows: Sequence[SamplerRow], masks: TokenMasks | None = None) -> SampleResult:
        """`draw`, and `read` what came of it."""
        return self.read(self.draw(logits, rows, masks))

    @torch.no_grad()
    def draw(self, logits: Tensor, rows: Sequence[SamplerRow], masks: TokenMasks | None = None) -> DrawnTokens:
        """Sample one token for each row of `logits`, float32 `[len(rows), V]`, which are left unchanged.

        `masks` forbid tokens. A row that holds NaN or +inf, or nothing but -inf, gets an error; the others are not
        affected by it. The host does not wait for the device.
        """
        assert logits.shape == (len(rows), self._vocab_size), f"{tuple(logits.shape)} logits for {len(rows)} rows"
        assert logits.dtype == torch.float32, f"logits are {logits.dtype}"
        if not rows:
            return DrawnTokens(torch.empty(0, dtype=torch.int64, device=self._device), logits, rows)
        adjusted = adjust(self._masks.apply(logits, masks), rows)
        if all(row.params.greedy for row in rows):
            return self.drawn(greedy_tokens(adjusted), rows, logits)
        if served(self._device, self._vocab_size):
            settings = draw_settings(rows, self._vocab_size, self._device)
            return self.drawn(draw_tokens(adjusted, self._noise.hashes, settings), rows, logits)
        best, token_ids = row_best(adjusted)
        sound = best.isfinite()
        for part in self._parts([i for i, row in enumerate(rows) if not row.params.greedy]):
            few = masks.few(part[0], self._vocab_size) if masks is not None and self._device.type == "cpu" else None
            found = self._draw(_take(adjusted, part), _take(best, part), [rows[i] for i in part], few)
            if len(part) == len(rows):
                token_ids = found
            else:
                token_ids.index_copy_(0, to_device(torch.tensor(part), self._device), found)
        return self.drawn(token_ids.masked_fill_(~sound, -1), rows, logits)

    def drawn(self, token_ids: Tensor, rows: Sequence[SamplerRow], logits: Tensor | None) -> DrawnTokens:
        """Tokens int64 [R] that were drawn already, -1 for an error, on their way to the host from now on.

        Whoever drew them may use their memory again once this has returned, in stream order.
        """
        if self._device.type == "cpu":
            return DrawnTokens(token_ids.clone(), logits, rows)
        on_host = self._read_back.start(token_ids)
        if logits is None or not (asking := _asking(rows)):
            return DrawnTokens(token_ids, logits, rows, on_host)
        # A row with an error has no token to look up; nothing is told of it.
        wanted = _take(token_ids, asking).clamp_min(0)
        scored = scored_tokens(_take(logits, asking), wanted, _counts(rows, asking), self._workspace)
        return DrawnTokens(token_ids, logits, rows, on_host, self._scores_back.start(scored.words()))

    @torch.no_grad()
    def read(self, drawn: DrawnTokens) -> SampleResult:
        """Wait for the tokens and, if a row asks for any, for the log-probabilities of the logits as given."""
        host_ids: list[int] = drawn.token_ids.tolist() if drawn.on_host is None else drawn.on_host.wait()
        return SampleResult(
            host_ids,
            self._logprobs(drawn, host_ids),
            [None if token_id >= 0 else _fault(drawn.rows[i]) for i, token_id in enumerate(host_ids)],
        )

    @torch.no_grad()
    def score(self, logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs] | None:
        """Log-probabilities of tokens that are given, and of each row's `num_top` best: bitwise what `sample` reports
        for the same logits `[len(token_ids), V]`. None if a row holds NaN or +inf, or nothing but -inf.
        """
        assert logits.shape == (len(token_ids), self._vocab_size), f"{tuple(logits.shape)} for {len(token_ids)} ids"
        if not bool(logits.amax(dim=1).isfinite().all()):
            return None
        wanted = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)
        scored: list[TokenLogprobs] = []
        for part in self._parts(list(range(len(token_ids)))):
            counts = [num_top] * len(part)
            scored += scored_tokens(_take(logits, part), _take(wanted, part), counts, self._workspace).told()
        return scored

    def _draw(self, logits: Tensor, best: Tensor, rows: Sequence[SamplerRow], few: Tensor | None) -> Tensor:
        """Token ids `[R]` drawn from `logits` `[R, V]` whose row maxima are `best` `[R]`.

        `few`: the only ids that the one row may have.
        """
        z = self._scaled(logits, best[:, None], rows)
        token_ids, row_weight = None, None
        filtered = any(filters(row.params, self._vocab_size) for row in rows)
        if filtered and self._device.type == "cpu":
            listed = shortlist(z, rows[0].params, self._workspace)
            if listed is not None:
                token_ids, row_weight = listed
                z = z[:, token_ids]
        elif few is not None:
            token_ids, z = few, z[:, few]
        scores = self._noise.gumbel([row_key(row.seed, row.choice, row.position) for row in rows], token_ids).add_(z)
        if filtered:
            keep = keep_mask(z, [row.params for row in rows], self._workspace, row_weight)
            scores.masked_fill_(~keep, -torch.inf)
        winners = scores.max(dim=1).indices
        return winners if token_ids is None else token_ids[winners]

    def _scaled(self, logits: Tensor, best: Tensor, rows: Sequence[SamplerRow]) -> Tensor:
        """`(logits - best) / temperature`: float32 `[R, V]`, 0 for the best token, less for the others. Scratch.

        Shifting before dividing keeps the top finite at tiny temperatures. An unsound row becomes zeros: what it draws
        is thrown away, but it must not upset integer sums and indices.
        """
        temperatures = [divisor_of(row.params) for row in rows]
        divisor = to_device(torch.tensor(temperatures, dtype=torch.float32), logits.device)[:, None]
        z = self._workspace.take("z", len(rows), self._vocab_size, torch.float32)
        return torch.sub(logits, best, out=z).div_(divisor).masked_fill_(~best.isfinite(), 0.0)

    def _logprobs(self, drawn: DrawnTokens, host_ids: Sequence[int]) -> list[TokenLogprobs | None]:
        results: list[TokenLogprobs | None] = [None] * len(drawn.rows)
        asking = [] if drawn.logits is None else _asking(drawn.rows)
        if drawn.scores is not None:
            found = ScoredTokens.told_of(drawn.scores.wait(), _counts(drawn.rows, asking))
            for index, logprobs in zip(asking, found, strict=True):
                results[index] = logprobs if host_ids[index] >= 0 else None
            return results
        for part in self._parts([i for i in asking if host_ids[i] >= 0]):
            assert drawn.logits is not None
            logits, token_ids = _take(drawn.logits, part), _take(drawn.token_ids, part)
            found = scored_tokens(logits, token_ids, _counts(drawn.rows, part), self._workspace).told()
            for index, logprobs in zip(part, found, strict=True):
                results[index] = logprobs
        return results

    def _parts(self, indices: list[int]) -> Iterator[list[int]]:
        """Rows to work on together: all of them, but one by one on a CPU.

        A vectorised CPU loop may round differently in its last, partial vector, and where that lies depends on the
        number of rows. GPU kernels compute an element the same way wherever it lies.
        """
        if self._device.type != "cpu":
            if indices:
                yield indices
            return
        for index in indices:
            yield [index]


def is_drawn_plainly(params: SamplingParams) -> bool:
    """Whether a row's token is drawn from logits as the model gives them, and nothing more is told of it."""
    return params.logprobs is None and not needs_adjustment(params)


def _take(tensor: Tensor, rows: list[int]) -> Tensor:
    """The given rows, in ascending order; a view where it is one row or all."""
    if len(rows) == len(tensor):
        return tensor
    return tensor[rows[0] : rows[0] + 1] if len(rows) == 1 else tensor[to_device(torch.tensor(rows), tensor.device)]


def _asking(rows: Sequence[SamplerRow]) -> list[int]:
    """The rows that ask for log-probabilities."""
    return [i for i, row in enumerate(rows) if row.params.logprobs is not None]


def _counts(rows: Sequence[SamplerRow], indices: Sequence[int]) -> list[int]:
    """How many of the best tokens each of the given rows asks to be told of."""
    return [rows[i].params.logprobs or 0 for i in indices]


def _fault(row: SamplerRow) -> str:
    return (
        f"the logits at position {row.position} hold NaN or +inf, or are all -inf; "
        "the model's weights or the compute dtype are at fault: try --dtype float32"
    )
