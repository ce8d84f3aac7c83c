"""Each linear route keeps what it declares: its error and the independence of rows."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from octavo.errors import InvalidRequest
from octavo.kernels.cpu import library
from octavo.layers.linear import Linear
from octavo.layers.linear.affine_route import AffineRoute
from octavo.layers.linear.dense_route import DenseRoute
from octavo.layers.linear.int4_route import Int4Route
from octavo.layers.linear.int8_route import Int8Route
from octavo.layers.linear.route import choose_route
from octavo.layers.linear.tiled_route import TILE, TiledRoute
from octavo.models.loaders.encoded_tensor import EncodedTensor
from octavo.models.loaders.encodings import gguf_encoding

CPU = torch.device("cpu")
BF16 = torch.bfloat16
ROUTES = {
    "float32": DenseRoute(torch.float32, CPU),
    "tiled-bfloat16": TiledRoute(BF16),
    "tiled-float16": TiledRoute(torch.float16),
    "int8": Int8Route(BF16),
    "int4": Int4Route(BF16),
    "affine": AffineRoute(),
}
# What a route rounds its input to.
DTYPES = {"float32": torch.float32, "tiled-float16": torch.float16}
ENCODINGS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
SHAPES = [(32, 64), (96, 576), (64, 1536), (48, 4864)]


def shard_of(encoding, rows, columns, seed=0):
    """A weight [rows, columns] with codes over the whole range; blocks that `gguf` cannot write are drawn as bytes."""
    kind = gguf.GGMLQuantizationType[encoding]
    if encoding.endswith("_K"):
        _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        data = np.random.default_rng(seed).integers(0, 256, (rows * columns // 256, block_bytes), dtype=np.uint8)
        halves = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[encoding]
        for at in halves:
            data[:, at : at + 2] = np.array([0.002], dtype=np.float16).view(np.uint8)
        data = data.reshape(rows, -1)
    else:
        values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) / columns**0.5
        data = gguf.quants.quantize(values.numpy(), kind).view("uint8")
    return EncodedTensor.from_bytes("w", (rows, columns), gguf_encoding(kind, "w"), data.reshape(-1))


def q4_shard(rows, columns, seed=0):
    return shard_of("Q4_1", rows, columns, seed)


@pytest.fixture(autouse=True)
def _compiled_where_asked(request):
    if "affine" in request.node.name and library.load().functions is None:
        pytest.skip(f"no compiled kernels: {library.load().reason}")


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("name", ROUTES)
def test_a_product_is_within_the_declared_error(name, shape):
    shards = [q4_shard(*shape), q4_shard(*shape, seed=1)]
    route, dtype = ROUTES[name], DTYPES.get(name, BF16)
    assert route.refusal(shards) is None
    weight = torch.cat([shard.dequantize() for shard in shards])
    packed = route.pack(shards)
    # One-hot inputs read the packed weight back, column by column.
    columns = torch.arange(0, shape[1], max(1, shape[1] // 64))
    read = packed.apply(torch.eye(shape[1])[columns]).double().t()
    error = (read - weight[:, columns].double()).abs()
    rounding = torch.finfo(dtype).eps / 2 * read.abs()
    assert (error <= route.properties.weight_error * weight.abs().amax(1, keepdim=True) + rounding).all()
    x = torch.randn(70, shape[1], generator=torch.Generator().manual_seed(2)).to(dtype).float()
    expected = x.double() @ weight.double().t()
    bound = (2 * route.properties.weight_error + 1e-6) * expected.abs().max() + torch.finfo(dtype).eps
    assert (packed.apply(x).double() - expected).abs().max() <= bound
    assert (packed.apply(x).double() * 1.05 - expected).abs().max() > bound
    assert packed.apply_float32(x).dtype == torch.float32
    counted = sum(route.packed_bytes(shard) for shard in shards)
    assert counted <= packed.num_bytes <= 1.1 * counted


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("name", [name for name, route in ROUTES.items() if route.properties.row_invariant])
def test_a_row_is_bitwise_the_same_at_every_row_count(name, shape):
    packed = ROUTES[name].pack([q4_shard(*shape)])
    x = torch.randn(3 * TILE + 5, shape[1], generator=torch.Generator().manual_seed(3))
    whole, whole_float32 = packed.apply(x), packed.apply_float32(x)
    for start, rows in ((0, 1), (5, 2), (11, 7), (30, TILE), (1, TILE + 1), (20, 64)):
        part = x[start : start + rows].contiguous()
        assert torch.equal(packed.apply(part), whole[start : start + rows])
        assert torch.equal(packed.apply_float32(part), whole_float32[start : start + rows])


def test_logits_keep_what_sixteen_bit_rounding_would_lose():
    shard = q4_shard(512, 576)
    packed = TiledRoute(BF16).pack([shard])
    x = torch.randn(4, 576, generator=torch.Generator().manual_seed(4)) * 20
    x = x.to(BF16).float()
    exact = x.double() @ shard.dequantize(BF16).double().t()
    assert (packed.apply(x).double() - exact).abs().max() > 0.05
    assert (packed.apply_float32(x).double() - exact).abs().max() < 1e-3


def test_a_padded_tile_equals_an_unpadded_one_in_value():
    from octavo.layers.linear.tiled_route import TiledWeight

    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(5)).to(BF16)
    padded = TiledWeight(weight, packed=False, uniform=False, num_bytes=weight.numel() * 2)
    x = torch.randn(37, 96, generator=torch.Generator().manual_seed(6)).to(BF16).float()
    assert torch.allclose(padded.apply(x).float(), x @ weight.float().t(), rtol=0.01, atol=0.05)
    assert torch.equal(padded.apply(x[:5].contiguous()), padded.apply(x)[:5])
    assert torch.equal(padded.apply_float32(x[:5].contiguous()), padded.apply_float32(x)[:5])


def test_int4_refuses_what_is_not_four_bit_affine_and_the_fallback_takes_it():
    values = torch.randn(32, 64)
    shard = EncodedTensor.from_bytes(
        "w", (32, 64), gguf_encoding(gguf.GGMLQuantizationType.F32, "w"), values.numpy().view("uint8")
    )
    choice = choose_route("int4", BF16, CPU)
    assert "F32" in choice.first.refusal([shard])
    assert "Q8_0" in choice.first.refusal([shard_of("Q8_0", 32, 64)])
    assert choice.route([shard]) is choice.fallback
    assert choice.route([shard]).packed_bytes(shard) == 32 * 64 * 2
    four_bit = q4_shard(32, 64)
    assert choice.route([four_bit]).packed_bytes(four_bit) == 32 * 64 * (0.5 + 4 / 32)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_affine_route_multiplies_every_encoding_as_float32_would(encoding):
    shard = shard_of(encoding, 80, 512)
    packed = AffineRoute().pack([shard])
    x = torch.randn(40, 512, generator=torch.Generator().manual_seed(1))
    x[3] *= 1e4
    x[4] = 0.0
    exact = x.double() @ shard.dequantize().double().t()
    error = (packed.apply(x) - exact).abs().amax(1)
    scale = x.double().abs() @ shard.dequantize().double().abs().t()
    assert (error <= 2e-4 * scale.amax(1)).all()
    rows = shard.dequantize()[[79, 0, 33]]
    assert (packed.lookup(torch.tensor([79, 0, 33])) - rows).abs().max() <= 2.0**-10 * rows.abs().max()
    for rows in (1, 2, 5, 16, 17):
        assert torch.equal(packed.apply(x[-rows:].contiguous()), packed.apply(x)[-rows:])


def test_affine_shards_keep_encodings_of_their_own():
    shards = [shard_of("Q4_K", 32, 256), shard_of("Q6_K", 48, 256), shard_of("Q8_0", 16, 256)]
    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(1))
    whole = AffineRoute().pack(shards).apply(x)
    assert torch.equal(whole, torch.cat([AffineRoute().pack([shard]).apply(x) for shard in shards], dim=1))


def test_affine_poison_stays_in_its_row():
    packed = AffineRoute().pack([q4_shard(32, 64)])
    x = torch.randn(3, 64)
    for poison in (float("nan"), float("inf")):
        x[1, 7] = poison
        y = packed.apply(x)
        assert y[1].isnan().all()
        assert y[0].isfinite().all() and y[2].isfinite().all()


def test_affine_refuses_what_has_no_affine_form():
    values = torch.randn(32, 64)
    encoding = gguf_encoding(gguf.GGMLQuantizationType.F32, "w")
    assert "F32" in AffineRoute().refusal(
        [EncodedTensor.from_bytes("w", (32, 64), encoding, values.numpy().view("uint8"))]
    )


def test_without_compiled_kernels_auto_takes_what_torch_has(monkeypatch):
    monkeypatch.setattr(library, "load", lambda: library.Library(None, "a test"))
    assert isinstance(choose_route("auto", BF16, CPU).first, Int4Route)
    assert isinstance(choose_route("auto", torch.float16, CPU).first, TiledRoute)


def test_float32_has_one_route_and_declares_that_rows_depend_on_their_number():
    choice = choose_route("auto", torch.float32, CPU)
    assert choice.first is choice.fallback
    assert not choice.row_invariant


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_narrow_weights_are_refused_where_there_is_no_kernel(weights):
    with pytest.raises(InvalidRequest, match="weights full"):
        choose_route(weights, torch.float32, CPU)


def test_a_bias_is_added_in_float32():
    bias = torch.full((32,), 1e-3)
    weight = TiledRoute(BF16).pack([q4_shard(32, 64)])
    assert torch.equal(Linear(weight, bias)(torch.zeros(1, 64)), bias[None])
