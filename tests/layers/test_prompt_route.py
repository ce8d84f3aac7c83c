"""Weights on a CPU that need not be exact: few rows have the bits of the affine route, many are near them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from octavo.config import EngineConfig
from octavo.engine.loaded_model import load_model, plan_model
from octavo.kernels.cpu import library
from octavo.layers.linear.affine_route import AffineRoute
from octavo.layers.linear.prompt_route import MANY, PromptRoute
from octavo.layers.linear.route import choose_route
from tests.layers.test_linear_routes import shard_of
from tests.tiny_models import save_gguf, tiny_model

CPU = torch.device("cpu")

pytestmark = [
    pytest.mark.skipif(library.load().functions is None, reason="there are no compiled kernels here"),
    pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no bfloat16 products"),
]


def test_few_rows_have_the_bits_of_the_affine_route_and_many_are_within_the_declared_error():
    shards = [shard_of("Q4_1", 96, 576), shard_of("Q8_0", 32, 576, 1)]
    route = PromptRoute()
    packed, affine = route.pack(shards), AffineRoute().pack(shards)
    x = torch.randn(MANY + 30, 576, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    few = x[: MANY - 1].contiguous()
    assert torch.equal(packed.apply(few), affine.apply(few))
    assert torch.equal(packed.apply_float32(x), affine.apply_float32(x))
    got = packed.apply(x)
    assert got.dtype == torch.float32
    assert not torch.equal(got, affine.apply(x))
    weight = torch.cat([shard.dequantize() for shard in shards])
    expected = x.double() @ weight.double().t()
    assert (got.double() - expected).norm() / expected.norm() < 5e-3 < (1.01 * got - expected).norm() / expected.norm()
    assert not route.properties.row_invariant
    counted = sum(route.packed_bytes(shard) for shard in shards)
    assert counted <= packed.num_bytes <= 1.1 * counted


def test_tables_are_kept_in_one_form():
    head = replace(shard_of("Q8_0", 64, 96), name="lm_head.weight")
    assert PromptRoute().pack([head]).num_bytes == AffineRoute().pack([head]).num_bytes
    assert PromptRoute().packed_bytes(head) == AffineRoute().packed_bytes(head)


def test_it_is_chosen_where_exact_results_are_declined_and_the_cpu_has_tiles(monkeypatch):
    for has_tiles in (True, False):
        monkeypatch.setattr(PromptRoute, "is_faster", staticmethod(lambda has_tiles=has_tiles: has_tiles))
        chosen = {exact: choose_route("auto", torch.bfloat16, CPU, exact=exact).first for exact in (None, True, False)}
        assert isinstance(chosen[False], PromptRoute) == has_tiles
        assert not isinstance(chosen[None], PromptRoute) and not isinstance(chosen[True], PromptRoute)
    assert not isinstance(choose_route("auto", torch.float16, CPU, exact=False).first, PromptRoute)


def test_a_model_that_is_not_to_be_exact_takes_it_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(PromptRoute, "is_faster", staticmethod(lambda: True))
    path = save_gguf(tmp_path / "m.gguf", tiny_model("llama"), "llama", "Q8_0")
    config = EngineConfig(device="cpu", dtype="bfloat16", exact=False, threads=1, force=True)
    loaded = load_model(plan_model(path, config), config)
    assert f"affine (bfloat16 from {MANY} rows)" in loaded.weight_routes
    assert not loaded.plan.is_row_invariant
