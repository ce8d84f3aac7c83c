"""K/V codecs on a CUDA device: the bits of a CPU."""

from __future__ import annotations

import pytest
import torch

from octavo.storage.codecs import CODECS
from tests.kernels.cpu.codec_cases import DIMS, hard_values

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", CODECS)
def test_rows_are_encoded_and_decoded_with_the_bits_of_a_cpu(name, dim):
    values = hard_values(dim)
    count, heads = values.shape[:2]
    cpu, cuda = (CODECS[name].allocate(count, heads, dim, torch.device(kind)) for kind in ("cpu", "cuda"))
    cpu.write_run(0, values)
    cuda.write(torch.arange(count, device="cuda"), values.cuda())
    for plane, expected in cpu.planes().items():
        got = cuda.planes()[plane].cpu()
        assert torch.equal(got.isnan(), expected.isnan()), plane
        assert torch.equal(got.float().nan_to_num(), expected.float().nan_to_num()), plane
    expected, got = torch.empty(heads, count, dim), torch.empty(heads, count, dim, device="cuda")
    cpu.read(0, count, expected)
    cuda.read(0, count, got)
    assert torch.equal(got.cpu().isnan(), expected.isnan())
    assert torch.equal(got.cpu().nan_to_num(), expected.nan_to_num())
