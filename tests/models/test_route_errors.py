"""How far each route of the weights is from the dequantised model on a real text: what docs/exactness.md states.

The text is the GNU GPL 3, as Debian's package base-files has it. Run with -s to read the figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from octavo.config import EngineConfig, WeightsChoice
from octavo.engine.loaded_model import LoadedModel, load_model, plan_model
from octavo.kernels.cpu import library
from octavo.layers.linear.prompt_route import PromptRoute
from octavo.parity.masked_forward import masked_logits
from tests.conftest import weights_path

TEXT = Path("/usr/share/common-licenses/GPL-3")
TOKENS = 1024
# route: largest mean difference of a logit, least share of equal best tokens, largest change of perplexity
BOUNDS: dict[str, tuple[WeightsChoice, float, float, float]] = {
    "affine": ("auto", 0.02, 0.99, 0.002),
    "affine (bfloat16 from 128 rows)": ("auto", 0.12, 0.97, 0.01),
    "tiled": ("full", 0.12, 0.97, 0.01),
    "int4": ("int4", 0.13, 0.97, 0.01),
    "int8": ("int8", 0.27, 0.93, 0.01),
}

pytestmark = [
    pytest.mark.weights,
    pytest.mark.skipif(not TEXT.exists(), reason=f"{TEXT} is absent; Debian's base-files has it"),
]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a route makes of the text: logits [T, V] of every token, and perplexity."""

    logits: torch.Tensor
    perplexity: float


def open_route(alias: str, weights: WeightsChoice, dtype: str, exact: bool | None = None) -> LoadedModel:
    config = EngineConfig(weights=weights, dtype=dtype, device="cpu", threads=1, exact=exact)  # type: ignore[arg-type]
    return load_model(plan_model(weights_path(alias), config), config)


def read(loaded: LoadedModel) -> Reading:
    ids = torch.tensor(loaded.tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:TOKENS])
    logits = masked_logits(loaded, ids, torch.zeros(TOKENS, dtype=torch.int64), 0, 0)
    told = logits[:-1].log_softmax(-1).gather(1, ids[1:, None])
    return Reading(logits, float(told.mean().neg().exp()))


@pytest.fixture(scope="module")
def dequantised() -> Reading:
    return read(open_route("smollm2", "full", "float32"))


@pytest.mark.parametrize("route", BOUNDS)
def test_a_route_keeps_to_the_dequantised_model_within_what_is_said_of_it(route, dequantised):
    weights, mean_bound, equal_bound, perplexity_bound = BOUNDS[route]
    if "affine" in route and library.load().functions is None:
        pytest.skip("no compiled kernels here")
    of_prompts = "bfloat16" in route
    if of_prompts and not PromptRoute.is_faster():
        pytest.skip("this CPU has no tiles of bfloat16")
    loaded = open_route("smollm2", weights, "bfloat16", exact=False if of_prompts else None)
    assert any(name.startswith(route) and ("bfloat16 from" in name) == of_prompts for name in loaded.weight_routes)
    found = read(loaded)
    difference = (found.logits - dequantised.logits).abs()
    mean, largest = float(difference.mean()), float(difference.max())
    equal = float((found.logits.argmax(1) == dequantised.logits.argmax(1)).float().mean())
    change = found.perplexity / dequantised.perplexity - 1
    print(
        f"{route}: logits off by {mean:.4f} on average and {largest:.3f} at most, {equal:.1%} equal best tokens, "
        f"perplexity {found.perplexity:.3f} of {dequantised.perplexity:.3f} ({change:+.2%})"
    )
    assert 0 < mean <= mean_bound
    assert equal >= equal_bound
    assert abs(change) <= perplexity_bound
