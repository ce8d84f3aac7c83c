"""Each linear route keeps what it declares: its error and the independence of rows."""

from __future__ import annotations

import gguf
import pytest
import torch

from octavo.errors import InvalidRequest
from octavo.layers.linear import Linear
from octavo.layers.linear.dense_route import DenseRoute
from octavo.layers.linear.int4_route import Int4Route
from octavo.layers.linear.int8_route import Int8Route
from octavo.layers.linear.route import choose_route
from octavo.layers.linear.tiled_route import TILE, TiledRoute
from octavo.models.loaders.encoded_tensor import EncodedTensor
from octavo.models.loaders.encodings import gguf_encoding
from octavo.step_batch import Phase

CPU = torch.device("cpu")
BF16 = torch.bfloat16
ROUTES = {
    "float32": DenseRoute(torch.float32, CPU),
    "tiled-bfloat16": TiledRoute(BF16),
    "tiled-float16": TiledRoute(torch.float16),
    "int8": Int8Route(BF16),
    "int4": Int4Route(BF16),
}
DTYPES = {"float32": torch.float32, "tiled-float16": torch.float16}
SHAPES = [(32, 64), (96, 576), (64, 1536), (48, 4864)]


def q4_shard(rows, columns, seed=0):
    """A Q4_1 weight [rows, columns] with codes over the whole range."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator) / columns**0.5
    data = gguf.quants.quantize(values.numpy(), gguf.GGMLQuantizationType.Q4_1)
    return EncodedTensor.from_bytes(
        "w", (rows, columns), gguf_encoding(gguf.GGMLQuantizationType.Q4_1, "w"), data.view("uint8")
    )


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
    read = packed.apply(torch.eye(shape[1], dtype=dtype)[columns]).double().t()
    error = (read - weight[:, columns].double()).abs()
    rounding = torch.finfo(dtype).eps / 2 * read.abs()
    assert (error <= route.properties.weight_error * weight.abs().amax(1, keepdim=True) + rounding).all()
    x = torch.randn(70, shape[1], generator=torch.Generator().manual_seed(2)).to(dtype)
    expected = x.double() @ weight.double().t()
    bound = (2 * route.properties.weight_error + 1e-6) * expected.abs().max() + torch.finfo(dtype).eps
    assert (packed.apply(x).double() - expected).abs().max() <= bound
    assert (packed.apply(x).double() * 1.05 - expected).abs().max() > bound
    assert packed.apply_float32(x).dtype == torch.float32
    assert packed.num_bytes >= weight.numel() * route.properties.bytes_per_weight * 0.9


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("name", [name for name, route in ROUTES.items() if route.properties.row_invariant])
def test_a_row_is_bitwise_the_same_at_every_row_count(name, shape):
    packed = ROUTES[name].pack([q4_shard(*shape)])
    x = torch.randn(3 * TILE + 5, shape[1], generator=torch.Generator().manual_seed(3)).to(DTYPES.get(name, BF16))
    whole, whole_float32 = packed.apply(x), packed.apply_float32(x)
    for start, rows in ((0, 1), (5, 2), (11, 7), (30, TILE), (1, TILE + 1), (20, 64)):
        part = x[start : start + rows].contiguous()
        assert torch.equal(packed.apply(part), whole[start : start + rows])
        assert torch.equal(packed.apply_float32(part), whole_float32[start : start + rows])


def test_logits_keep_what_sixteen_bit_rounding_would_lose():
    shard = q4_shard(512, 576)
    packed = TiledRoute(BF16).pack([shard])
    x = torch.randn(4, 576, generator=torch.Generator().manual_seed(4)).to(BF16) * 20
    exact = x.double() @ shard.dequantize(BF16).double().t()
    assert (packed.apply(x).double() - exact).abs().max() > 0.05
    assert (packed.apply_float32(x).double() - exact).abs().max() < 1e-3


def test_a_padded_tile_equals_an_unpadded_one_in_value():
    from octavo.layers.linear.tiled_route import TiledWeight

    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(5)).to(BF16)
    padded = TiledWeight(weight, packed=False, uniform=False, num_bytes=weight.numel() * 2)
    x = torch.randn(37, 96, generator=torch.Generator().manual_seed(6)).to(BF16)
    assert torch.allclose(padded.apply(x).float(), x.float() @ weight.float().t(), rtol=0.01, atol=0.05)
    assert torch.equal(padded.apply(x[:5].contiguous()), padded.apply(x)[:5])
    assert torch.equal(padded.apply_float32(x[:5].contiguous()), padded.apply_float32(x)[:5])


def test_int4_refuses_what_is_not_four_bit_affine_and_the_fallback_takes_it():
    values = torch.randn(32, 64)
    shard = EncodedTensor.from_bytes(
        "w", (32, 64), gguf_encoding(gguf.GGMLQuantizationType.F32, "w"), values.numpy().view("uint8")
    )
    choice = choose_route("int4", BF16, CPU)
    assert "F32" in choice.prompt.refusal([shard])
    assert choice.fallback.refusal([shard]) is None
    assert choice.weight_bytes(shard) == 32 * 64 * 2
    assert choice.weight_bytes(q4_shard(32, 64)) == 32 * 64 * (0.5 + 4 / 32)


def test_auto_reads_four_bit_weights_for_generated_tokens_only():
    choice = choose_route("auto", BF16, CPU)
    assert choice.by_phase
    assert choice.row_invariant
    assert choice.weight_bytes(q4_shard(32, 64)) == 32 * 64 * (2 + 0.5 + 4 / 32)
    prompt, generated = (route.pack([q4_shard(32, 64)]) for route in (choice.prompt, choice.generated))
    linear = Linear(prompt, generated)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).to(BF16)
    assert torch.equal(linear(x, Phase.PROMPT), prompt.apply(x))
    assert torch.equal(linear(x, Phase.GENERATED), generated.apply(x))
    assert not torch.equal(linear(x, Phase.PROMPT), linear(x, Phase.GENERATED))


def test_float32_has_one_route_and_declares_that_rows_depend_on_their_number():
    choice = choose_route("auto", torch.float32, CPU)
    assert not choice.by_phase
    assert not choice.row_invariant


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_narrow_weights_are_refused_where_there_is_no_kernel(weights):
    with pytest.raises(InvalidRequest, match="weights full"):
        choose_route(weights, torch.float32, CPU)


def test_a_bias_is_added_in_float32():
    bias = torch.full((32,), 1e-3)
    weight = TiledRoute(BF16).pack([q4_shard(32, 64)])
    x = torch.zeros(1, 64, dtype=BF16)
    assert torch.equal(Linear(weight, weight, bias)(x, Phase.PROMPT), bias[None])
