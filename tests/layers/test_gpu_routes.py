"""The routes of a GPU keep what they declare: on one, or by Triton's interpreter in float16."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.kernels.triton.skinny_gemm import MAX_ROWS, SkinnyScratch
from octavo.layers.linear import Table
from octavo.layers.linear.codes_route import CodesRoute
from octavo.layers.linear.route import choose_route
from octavo.layers.linear.skinny_route import SkinnyRoute
from octavo.models.loaders.encoded_tensor import EncodedTensor
from octavo.models.loaders.encodings import gguf_encoding
from octavo.models.loaders.mlx import AffineTensor
from tests.layers.test_linear_routes import shard_of

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPE = torch.bfloat16 if GPU else torch.float16
ROWS = (1, 3, 17, 70) if GPU else (1, 3, 70)


def route(kind, **settings):
    return kind(DTYPE, DEVICE, SkinnyScratch(DEVICE), **settings)


def mlx_shard(scheme, rows, columns, seed=0):
    """A weight [rows, columns] of random codes in MLX's affine format; `scheme` is (bits, group)."""
    bits, group = scheme
    generator = np.random.default_rng(seed)
    kind = gguf.GGMLQuantizationType.F16
    scales = (generator.random((rows, columns // group)) * 0.01 + 0.001).astype(np.float16)
    scales, biases = (
        EncodedTensor.from_bytes("w", given.shape, gguf_encoding(kind, "w"), given.reshape(-1).view(np.uint8))
        for given in (scales, -scales * 2 ** (bits - 1))
    )
    codes = generator.integers(0, 256, (rows, columns * bits // 8), dtype=np.uint8)
    return AffineTensor("w", codes, scales, biases, bits, group)


def check(packed, weight, error):
    for rows in ROWS:
        x = torch.randn(rows, weight.shape[1], generator=torch.Generator().manual_seed(rows)).to(DTYPE).float()
        expected = x.double() @ weight.double().t()
        bound = error * (x.abs().double() @ weight.abs().double().t()) + 1e-6
        rounded = packed.apply(x.to(DEVICE)).double().cpu()
        assert ((rounded - expected).abs() <= bound + torch.finfo(DTYPE).eps * expected.abs()).all()
        if GPU or rows <= MAX_ROWS:  # a CPU has no product of 16-bit operands in float32
            exact = packed.apply_float32(x.to(DEVICE)).double().cpu()
            assert ((exact - expected).abs() <= bound).all()
            assert not ((exact * 1.2 - expected).abs() <= bound).all()
    assert packed.apply(torch.zeros(0, weight.shape[1], device=DEVICE)).shape == (0, len(weight))


@pytest.mark.parametrize(
    "encoding", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", (4, 64), (8, 32)], ids=str
)
def test_codes_are_multiplied_within_the_declared_error_and_looked_up(encoding):
    codes = route(CodesRoute)
    shard = shard_of if isinstance(encoding, str) else mlx_shard
    shards = [shard(encoding, 40, 256), shard(encoding, 24, 256, seed=1)]
    assert codes.refusal(shards) is None
    weight = torch.cat([shard.dequantize() for shard in shards])
    packed = codes.pack(shards)
    check(packed, weight, 2 * codes.properties.weight_error)
    assert packed.num_bytes == sum(codes.packed_bytes(shard) for shard in shards)
    ids = torch.tensor([63, 0, 41], device=DEVICE)
    assert isinstance(packed, Table)
    error = (packed.lookup(ids).cpu() - weight[[63, 0, 41]]).abs()
    assert (error <= codes.properties.weight_error * weight.abs().max()).all()


def test_shards_of_several_encodings_are_multiplied_each_in_its_own():
    shards = [shard_of(encoding, 32, 256, seed) for seed, encoding in enumerate(("Q4_0", "Q4_0", "Q8_0"))]
    codes = route(CodesRoute)
    check(codes.pack(shards), torch.cat([shard.dequantize() for shard in shards]), 2 * codes.properties.weight_error)


def test_weights_in_16_bit_are_multiplied_by_either_kernel_and_looked_up():
    shards = [shard_of("Q8_0", 48, 96), shard_of("Q8_0", 16, 96, seed=1)]
    skinny = route(SkinnyRoute)
    packed = skinny.pack(shards)
    weight = packed.weight.float().cpu()
    if GPU:
        check(packed, weight, 1e-5)
    x = torch.randn(2, 96, generator=torch.Generator().manual_seed(0)).to(DTYPE).float()
    assert torch.allclose(packed.apply_float32(x.to(DEVICE)).cpu(), x @ weight.t(), atol=1e-4)
    assert torch.equal(packed.lookup(torch.tensor([5], device=DEVICE)).cpu(), weight[5:6])


@pytest.mark.parametrize("shape", [(40, 96)] if not GPU else [(2048, 2048), (6144, 1024)], ids=str)
def test_the_exact_route_gives_a_row_the_same_bits_at_every_count_of_rows(shape):
    exact = route(SkinnyRoute, exact=True)
    assert exact.properties.row_invariant
    packed = exact.pack([shard_of("Q8_0", *shape)])
    x = torch.randn(600 if GPU else 70, shape[1], generator=torch.Generator().manual_seed(4)).to(DEVICE, DTYPE)
    whole, whole_float32 = packed.apply(x), packed.apply_float32(x)
    for start, rows in ((0, 1), (5, 2), (11, 17), (3, 64)):
        assert torch.equal(packed.apply(x[start : start + rows]), whole[start : start + rows])
        assert torch.equal(packed.apply_float32(x[start : start + rows]), whole_float32[start : start + rows])
    assert torch.allclose(whole_float32.cpu(), x.float().cpu() @ packed.weight.float().cpu().t(), atol=1e-3)


@pytest.mark.parametrize("encoding", ["Q4_0", "Q4_1", "Q8_0"])
def test_exact_codes_give_a_row_the_same_bits_at_every_count_of_rows(encoding):
    exact = route(CodesRoute, exact=True)
    assert exact.properties.row_invariant
    shard = shard_of(encoding, 40, 128)
    packed = exact.pack([shard])
    x = torch.randn(270 if GPU else 70, 128, generator=torch.Generator().manual_seed(4)).to(DEVICE, DTYPE)
    whole = packed.apply_float32(x)
    for start, rows in ((0, 1), (5, 2), (11, 17), (3, 64)):
        assert torch.equal(packed.apply_float32(x[start : start + rows]), whole[start : start + rows])
    assert torch.allclose(whole.cpu(), x.float().cpu() @ shard.dequantize().t(), atol=5e-3)
    assert torch.equal(packed.apply(x), whole.to(DTYPE))


def test_a_gpu_in_16_bit_keeps_codes_unless_full_weights_are_asked_for():
    if not GPU:
        pytest.skip("torch sees no CUDA device")
    assert choose_route("auto", DTYPE, DEVICE).description == "codes, else bfloat16"
    assert choose_route("full", DTYPE, DEVICE).description == "bfloat16"
    assert choose_route("auto", torch.float32, DEVICE).description == "float32"
