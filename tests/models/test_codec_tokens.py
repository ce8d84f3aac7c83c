"""Real checkpoints keep their tokens under `q8_0`, where the default codec is not in doubt."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch import Tensor

from octavo.storage.codecs.known_losses import KNOWN_LOSSES
from tests.models.codec_losses import open_model, trace

pytestmark = pytest.mark.weights

ORACLE = Path(__file__).parent.parent / "oracle"
# Keys of this Qwen do not survive q8_0: docs/kv-codecs.md has the figures.
KEEPS = {"smollm2": "q8_0", "gemma3": "q8_0", "qwen05": "v=q8_0"}
NUM_TOKENS = 32
MARGIN = 0.1


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of all forced tokens: which were clear under the default codec, and which differ under another choice."""

    clear: Tensor
    differs: Tensor
    figures: dict[str, float | int | str]


def force(alias, choice, num_prompts=None):
    """Teacher-forced: each step continues the default codec's answer, so one near-tie does not hide the rest.

    `num_prompts`: so many of those whose answers are recorded; all of them unless given.
    """
    loaded = open_model(alias)
    prompts = [case["prompt_token_ids"] for case in json.loads((ORACLE / f"{alias}.f32.json").read_text())["cases"]][
        :num_prompts
    ]
    default, _ = trace(loaded, prompts, "auto", NUM_TOKENS)
    narrow, _ = trace(loaded, prompts, choice, NUM_TOKENS, default.token_ids)
    clear, differs = default.margins > MARGIN, narrow.token_ids != default.token_ids
    figures = {
        "choice": choice,
        "clear": f"{int(clear.sum())} of {clear.numel()}",
        "differ": int(differs.sum()),
        "largest_margin_lost": float(default.margins[differs].max()) if differs.any() else 0.0,
        "largest_logit_difference": float((narrow.logits - default.logits).abs().max()),
    }
    print(alias, figures)
    return Outcome(clear, differs, figures)


@pytest.mark.parametrize(
    ("alias", "num_prompts"),
    [
        pytest.param("smollm2", 2, id="smollm2-two"),
        *(pytest.param(alias, None, id=alias, marks=pytest.mark.nightly) for alias in KEEPS),
    ],
)
def test_q8_0_keeps_every_greedy_token_whose_margin_is_clear(alias, num_prompts, record_property):
    outcome = force(alias, KEEPS[alias], num_prompts)
    for name, value in outcome.figures.items():
        record_property(name, value)
    assert not (outcome.clear & outcome.differs).any()
    assert outcome.clear.sum() > 0.8 * outcome.clear.numel()
    assert 0.0 < outcome.figures["largest_logit_difference"] < 2.0


@pytest.mark.nightly
def test_q8_0_keys_of_qwen_lose_clear_tokens_as_the_warning_says(record_property):
    outcome = force("qwen05", "k=q8_0,v=f16")
    for name, value in outcome.figures.items():
        record_property(name, value)
    assert "q8_0" in KNOWN_LOSSES["qwen2"].narrow_k
    assert (outcome.clear & outcome.differs).any()
