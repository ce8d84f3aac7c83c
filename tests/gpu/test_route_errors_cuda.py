"""How far quantised weights on a CUDA device are from the dequantised model on a real text.

In steps of as many rows as kernels of few rows take, and of more. Run with -s to read the figures.
"""

from __future__ import annotations

import pytest
import torch

from octavo.kernels.triton.skinny_gemm import MAX_ROWS
from tests.models.real_text import MOST_ROWS, TEXT, Reading, open_core

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.weights,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
    pytest.mark.skipif(not TEXT.exists(), reason=f"{TEXT} is absent; Debian's base-files has it"),
]


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def dequantised(request: pytest.FixtureRequest) -> tuple[str, Reading]:
    return request.param, Reading.of(open_core(request.param, "full", "float32", device="cuda"))


@pytest.mark.parametrize(
    ("exact", "rows"), [(None, MAX_ROWS), (None, MOST_ROWS), (True, MAX_ROWS)], ids=["few", "many", "exact"]
)
def test_codes_on_a_gpu_keep_to_the_dequantised_model_as_bfloat16_does(
    exact: bool | None, rows: int, dequantised: tuple[str, Reading]
) -> None:
    alias, reference = dequantised
    core = open_core(alias, "auto", "bfloat16", exact, "cuda")
    route = "exact codes" if exact else "codes"
    assert core.loaded.weight_routes[route] > 0, core.loaded.weight_routes
    found = Reading.of(core, rows).compared(reference)
    print(f"{alias}, {route}, {rows} rows: {found}")
    assert 0 < found.mean <= 0.12
    assert found.equal >= 0.97
    assert abs(found.change) <= 0.01
