"""Log-probabilities of one prompt's tokens, gathered as its chunks are computed. Owns what is known so far."""

from __future__ import annotations

from torch import Tensor

from octavo.engine.model_runner import ModelRunner
from octavo.engine.sampler import Sampler
from octavo.outputs import TokenLogprobs

SCORED_ROWS = 16  # whose logits exist at a time
UNSOUND_PROMPT = (
    "the logits of the prompt hold NaN or +inf, or are all -inf; the model's weights or the compute dtype are at "
    "fault: try --dtype float32"
)


class PromptScores:
    """One entry per prompt token; the first has none, for nothing comes before it.

    What was scored before a preemption is not scored again.
    """

    def __init__(self, prompt_token_ids: tuple[int, ...], num_top: int) -> None:
        self._tokens = prompt_token_ids
        self._num_top = num_top
        self._entries: list[TokenLogprobs | None] = [None]
        self.failed = False

    def add(self, hidden: Tensor, start: int, runner: ModelRunner, sampler: Sampler) -> None:
        """Take the hidden states [T, H] of the tokens at positions `start` and on; each tells of the token after it."""
        stop = min(start + len(hidden), len(self._tokens) - 1)
        while not self.failed and (first := max(start, len(self._entries) - 1)) < stop:
            last = min(first + SCORED_ROWS, stop)
            logits = runner.logits(hidden[first - start : last - start])
            found = sampler.score(logits, self._tokens[first + 1 : last + 1], self._num_top)
            self.failed = found is None
            self._entries += found or []

    @property
    def entries(self) -> tuple[TokenLogprobs | None, ...]:
        """Raises `AssertionError` while a part of the prompt is not computed."""
        assert len(self._entries) == len(self._tokens), "the prompt is not scored to its end"
        return tuple(self._entries)
