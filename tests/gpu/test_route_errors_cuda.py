"""How far quantised weights on a CUDA device are from the dequantised model on a real text.

As tests/models/test_route_errors.py, in steps of as many rows as kernels of few rows take, and of more. Run with -s to
read the figures.
"""

from __future__ import annotations

import pytest
import torch

from octavo.config import EngineConfig, WeightsChoice
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import load_model, plan_model
from octavo.kernels.triton.skinny_gemm import MAX_ROWS
from octavo.step_batch import StepBatch, StepRow, StorageKind
from tests.conftest import weights_path
from tests.models.test_route_errors import TEXT, TOKENS, Reading

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.weights,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
    pytest.mark.skipif(not TEXT.exists(), reason=f"{TEXT} is absent; Debian's base-files has it"),
]

FEW, MANY = MAX_ROWS, 256


def read(core: EngineCore, rows: int) -> Reading:
    """The text's logits and perplexity, computed `rows` tokens at a time."""
    ids = core.loaded.tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:TOKENS]
    pool, parts = core.pool, []
    slot, generation = handle = pool.allocate("text", StorageKind.PAGED, TOKENS)
    for start in range(0, TOKENS, rows):
        live_start, fresh = pool.live_start(handle), pool.append(handle, rows)
        chunk = tuple(ids[start : start + rows])
        row = StepRow(slot, generation, StorageKind.PAGED, chunk, start, fresh, live_start, sample=True)
        with torch.inference_mode():
            hidden = core.runner.forward(StepBatch((row,)))
            parts.append(core.runner.logits(hidden).float().cpu())
        for g, group in enumerate(pool.groups):
            if group.spec.window is not None:
                pool.trim_front(handle, g, group.spec.first_visible(start + rows))
    pool.release(handle)
    logits, targets = torch.cat(parts), torch.tensor(ids[1:])
    told = logits[:-1].log_softmax(-1).gather(1, targets[:, None])
    return Reading(logits, float(told.mean().neg().exp()))


def open_core(
    alias: str, weights: WeightsChoice, dtype: str, exact: bool | None = None, device: str = "cuda"
) -> EngineCore:
    config = EngineConfig(
        weights=weights,
        dtype=dtype,  # type: ignore[arg-type]
        device=device,  # type: ignore[arg-type]
        storage="paged",
        max_num_seqs=1,
        max_context=TOKENS + 16,
        max_batch_tokens=MANY,
        exact=exact,
    )
    return EngineCore(load_model(plan_model(weights_path(alias), config), config), config)


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def dequantised(request: pytest.FixtureRequest) -> tuple[str, Reading]:
    return request.param, read(open_core(request.param, "full", "float32"), MANY)


@pytest.mark.parametrize(("exact", "rows"), [(None, FEW), (None, MANY), (True, FEW)], ids=["few", "many", "exact"])
def test_codes_on_a_gpu_keep_to_the_dequantised_model_as_bfloat16_does(
    exact: bool | None, rows: int, dequantised: tuple[str, Reading]
) -> None:
    alias, reference = dequantised
    core = open_core(alias, "auto", "bfloat16", exact)
    route = "exact codes" if exact else "codes"
    assert core.loaded.weight_routes[route] > 0, core.loaded.weight_routes
    found = read(core, rows)
    difference = (found.logits - reference.logits).abs()
    mean, largest = float(difference.mean()), float(difference.max())
    equal = float((found.logits.argmax(1) == reference.logits.argmax(1)).float().mean())
    change = found.perplexity / reference.perplexity - 1
    print(
        f"{alias}, {route}, {rows} rows: logits off by {mean:.4f} on average and {largest:.3f} at most, "
        f"{equal:.1%} equal best tokens, perplexity {found.perplexity:.3f} of {reference.perplexity:.3f} "
        f"({change:+.2%})"
    )
    assert 0 < mean <= 0.12
    assert equal >= 0.97
    assert abs(change) <= 0.01
