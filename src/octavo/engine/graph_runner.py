"""Decode steps as a device runs them best: padded, all inputs in place, and replayed from a graph the second time on.

Knows when a step can be run so, and what must be equal for a graph to serve it; not how graphs are recorded.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.config import EngineConfig
from octavo.engine.decode_sizes import padded_rows
from octavo.engine.graph_capture import CudaGraphs, Recorder
from octavo.engine.loaded_model import LoadedModel
from octavo.engine.sampling_device import DrawnRow, draw_words, settings_of
from octavo.kernels.draws import draw_tokens
from octavo.kernels.greedy import greedy_tokens_by_parts
from octavo.models.causal_lm import CausalLM
from octavo.models.inputs import ForwardInputs
from octavo.step_batch import StepBatch
from octavo.storage import KVCache

logger = logging.getLogger(__name__)

REPLAYED, RECORDED, FIRST_USE = "replayed", "recorded", "first use"


class _Ending(Enum):
    """What the last kernels of a step give: the best tokens; tokens drawn, with filters that rank tokens or without;
    logits.
    """

    BEST = "best"
    DRAWN = "drawn"
    RANKED = "ranked"
    LOGITS = "logits"


@dataclass(frozen=True, slots=True)
class Following:
    """Row i of a step goes on with `drawn[rows[i]]`, tokens int64 [R] on the device that the host does not know yet.

    Where `rows[i]` is -1 the host does, and the batch says which.
    """

    drawn: Tensor
    rows: Sequence[int]


@dataclass(frozen=True, slots=True)
class DecodedStep:
    """Of a step's R rows either `token_ids` int64 [R] (-1 for an error), or `logits` [R, V] float32.

    Both are on the device and valid until the next step is run, in stream order.
    """

    token_ids: Tensor | None
    logits: Tensor | None


class GraphRunner:
    """Runs decode steps of one model. Owned by one thread.

    A step is padded to few sizes, so rows beside a sequence's do not change what is launched for it; a graph is
    recorded when a kind of step comes the second time, and serves all of that kind, whoever is in them. Without a
    recorder steps are run the same way, but launched one by one: a graph changes no bit.
    """

    def __init__(
        self,
        model: CausalLM,
        cache: KVCache,
        *,
        vocab_size: int,
        max_num_seqs: int,
        max_context: int,
        device: torch.device,
        recorder: Recorder | None,
        hashes: Tensor | None = None,
    ) -> None:
        """`hashes` [V] int64 are the tokens' own, for noise; None where no kernel draws with them."""
        self.counts: Counter[str] = Counter()  # steps that were replayed, others by the reason; and graphs recorded
        self._model = model
        self._cache = cache
        self._vocab_size = vocab_size
        self._max_rows = max_num_seqs
        self._max_context = max_context
        self._device = device
        self._recorder = recorder
        self._hashes = hashes
        self._drawn = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self._token_ids = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self._logits: Tensor | None = None
        self._replays: dict[object, Callable[[], None]] = {}
        self._used: set[object] = set()

    def refusal(self, batch: StepBatch) -> str | None:
        """Why a step has to be run by another way; None if `run` serves it."""
        refusal = self._cache.padding_refusal(batch)
        if refusal is None and not all(row.sample for row in batch.rows):
            return "a row without a sample"
        return refusal

    def run(self, batch: StepBatch, following: Following | None, draws: Sequence[DrawnRow] | None) -> DecodedStep:
        """Run a step that is not refused, and store the K/V of every token.

        `draws`, one per row, are of tokens that depend on nothing else than logits as the model gives them. Without
        these the step ends with its logits, and where there is no kernel for them.
        """
        num_rows = len(batch.rows)
        size = padded_rows(num_rows, self._max_rows)
        given, sources, positions = np.zeros((3, size), dtype=np.int64)
        sources[:] = -1
        positions[:num_rows] = [row.rope_start for row in batch.rows]
        if following is None or -1 in following.rows:
            given[:num_rows] = [row.token_ids[0] for row in batch.rows]
        if following is not None:
            sources[:num_rows] = following.rows
            if following.drawn.data_ptr() != self._drawn.data_ptr():
                self._drawn[: len(following.drawn)].copy_(following.drawn)
        ending, words = self._ending(draws, size)
        if ending is _Ending.LOGITS and self._logits is None:
            self._logits = torch.empty(self._max_rows, self._vocab_size, device=self._device)
        plan = self._cache.plan_padded(batch, size, (given, sources, positions, *words))

        def work() -> None:
            self._step(size, ending, *plan.values)

        self._launch(work, None if plan.fixture is None else (ending, plan.fixture))
        if ending is not _Ending.LOGITS:
            return DecodedStep(self._drawn[:num_rows], None)
        assert self._logits is not None
        return DecodedStep(None, self._logits[:num_rows])

    def _ending(self, draws: Sequence[DrawnRow] | None, size: int) -> tuple[_Ending, list[NDArray[np.int64]]]:
        """How a step of `size` rows ends, and what its draws take to the device."""
        if draws is None:
            return _Ending.LOGITS, []
        if all(row.params.greedy for row in draws):
            return _Ending.BEST, []
        if self._hashes is None:
            return _Ending.LOGITS, []
        words, ranked = draw_words(draws, self._vocab_size, size)
        return _Ending.RANKED if ranked else _Ending.DRAWN, [words]

    def _launch(self, work: Callable[[], None], kind: object | None) -> None:
        """Run `work`: from a graph, if one of its `kind` was recorded or is to be. None is never of a kind."""
        replay = self._replays.get(kind) or self._record(work, kind)
        if replay is not None:
            self.counts[REPLAYED] += 1
            replay()
            return
        work()

    def _record(self, work: Callable[[], None], kind: object | None) -> Callable[[], None] | None:
        """What replays `work` from now on; None, with the reason counted, if it has to be launched itself."""
        if self._recorder is None:
            self.counts["graphs are off"] += 1
            return None
        if kind is None:
            self.counts["values that had no room"] += 1
            return None
        if kind not in self._used:
            # Kernels are compiled, tables computed and libraries started by the first one of a kind.
            self._used.add(kind)
            self.counts[FIRST_USE] += 1
            return None
        try:
            replay = self._replays[kind] = self._recorder.record(work)
        except RuntimeError as error:
            logger.warning("decode steps cannot be recorded as graphs (%s); they are launched one by one", error)
            self._recorder = None
            self.counts["recording failed"] += 1
            return None
        self.counts[RECORDED] += 1
        return replay

    def _step(
        self, size: int, ending: _Ending, given: Tensor, sources: Tensor, positions: Tensor, *words: Tensor
    ) -> None:
        """All of a step on the device. Allocates from the graph's own memory, and leaves its results in ours."""
        from octavo.kernels.triton.step_tokens import pick_tokens

        token_ids = self._token_ids[:size]
        block = 1 << (size - 1).bit_length()
        pick_tokens[(1,)](token_ids, given, sources, self._drawn, size, BLOCK=block)
        inputs = ForwardInputs(token_ids=token_ids, positions=positions, limit=self._max_context)
        logits = self._model.logits(self._model.forward(inputs, self._cache))
        if ending is _Ending.BEST:
            greedy_tokens_by_parts(logits, self._drawn[:size])
        elif ending is _Ending.LOGITS:
            assert self._logits is not None
            self._logits[:size].copy_(logits)
        else:
            assert self._hashes is not None
            settings = settings_of(*words, ranked=ending is _Ending.RANKED)
            draw_tokens(logits, self._hashes, settings, out=self._drawn[:size])


def graph_runner(loaded: LoadedModel, cache: KVCache, config: EngineConfig, hashes: Tensor | None) -> GraphRunner:
    """Of a model on a CUDA device. `hashes` are the sampler's."""
    plan = loaded.plan
    return GraphRunner(
        loaded.model,
        cache,
        vocab_size=plan.config.vocab_size,
        max_num_seqs=config.max_num_seqs,
        max_context=plan.ledger.max_context,
        device=plan.device,
        recorder=None if config.cuda_graphs is False else CudaGraphs(plan.device),
        hashes=hashes,
    )
