"""How far each route of the weights is from the dequantised model on a real text: what docs/exactness.md states.

Run with -s to read the figures.
"""

from __future__ import annotations

import pytest

from octavo.config import WeightsChoice
from octavo.kernels.cpu import library
from octavo.layers.linear.prompt_route import PromptRoute
from tests.models.real_text import TEXT, Reading, open_core

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


@pytest.fixture(
    scope="module",
    params=["smollm2", *(pytest.param(each, marks=pytest.mark.nightly) for each in ("gemma3", "qwen05"))],
)
def dequantised(request: pytest.FixtureRequest) -> tuple[str, Reading]:
    return request.param, Reading.of(open_core(request.param, "full", "float32"))


@pytest.mark.parametrize("route", BOUNDS)
def test_a_route_keeps_to_the_dequantised_model_within_what_is_said_of_it(
    route: str, dequantised: tuple[str, Reading]
) -> None:
    alias, reference = dequantised
    weights, mean_bound, equal_bound, perplexity_bound = BOUNDS[route]
    if "affine" in route and library.load().functions is None:
        pytest.skip("no compiled kernels here")
    of_prompts = "bfloat16" in route
    if of_prompts and not PromptRoute.is_faster():
        pytest.skip("this CPU has no tiles of bfloat16")
    core = open_core(alias, weights, "bfloat16", exact=False if of_prompts else None)
    routes = core.loaded.weight_routes
    assert any(name.startswith(route) and ("bfloat16 from" in name) == of_prompts for name in routes)
    found = Reading.of(core).compared(reference)
    print(f"{alias}, {route}: {found}")
    assert 0 < found.mean <= mean_bound
    assert found.equal >= equal_bound
    assert abs(found.change) <= perplexity_bound
