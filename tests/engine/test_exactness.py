"""What `exact` comes to: kept, or refused with the value, the limit and the remedy; and routes that do not keep it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch

from octavo.cache.spec import LayerSpec
from octavo.cache.storage_policy import StorageDecision
from octavo.config import EngineConfig
from octavo.engine import loaded_model
from octavo.engine.attention_check import attention_is_row_invariant
from octavo.engine.exactness import resolve_exact
from octavo.engine.loaded_model import load_model, plan_model, share_weights
from octavo.engine.route_check import checked_routes
from octavo.errors import InvalidRequest
from octavo.kernels.cpu import library
from octavo.kernels.cpu.attention import AttentionKernel
from octavo.layers.linear import RouteChoice
from octavo.layers.linear.route import RouteProperties
from octavo.layers.linear.row_probe import COUNTS, differing_count
from octavo.step_batch import StorageKind
from octavo.storage.codecs import CODECS
from tests.tiny_models import save_hf

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
FULL = LayerSpec("full", 4, 2, 64, 64, 0.1, None)
SLIDING = LayerSpec("sliding", 4, 2, 64, 64, 0.1, 32)


@dataclass
class FakeRoute:
    """Its products differ from `from_rows` rows on."""

    name: str
    row_invariant: bool = True
    from_rows: int = 10**9
    packed: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def properties(self):
        return RouteProperties(self.name, self.row_invariant, 0.0)

    def refusal(self, shards):
        return None

    def pack(self, shards):
        self.packed.append(shards[0].shape)
        columns = shards[0].shape[0] // 10 + 1

        def apply(x):
            return x[:, :columns] + (len(x) >= self.from_rows)

        return SimpleNamespace(apply=apply, apply_float32=apply)


def resolve(choice, device=CPU, route=None, **given):
    route = route or FakeRoute("tiled")
    settings = {"layout": [FULL], "codecs": (CODECS["f16"],) * 2, "block_size": 16, "storage": StorageKind.PAGED}
    return resolve_exact(choice, device=device, routes=RouteChoice(route, route), **{**settings, **given})


def test_a_cpu_is_exact_by_default_where_it_can_be_and_a_gpu_when_asked():
    assert resolve(None).holds
    assert resolve(True).holds
    assert not resolve(False).holds
    plain = FakeRoute("float32", row_invariant=False)
    assert resolve(None, route=plain).reason == "float32 products on cpu depend on the number of rows"
    assert not resolve(None, CUDA).holds
    assert resolve(True, CUDA).holds


GATHERS = {"OCTAVO_PAGED_ATTENTION_NATIVE": "0"}


@pytest.mark.parametrize(
    ("device", "given", "environment", "message"),
    [
        (
            CPU,
            {"route": FakeRoute("float32", False)},
            {},
            r"float32 products on cpu .*; use --dtype bfloat16.*--no-exact",
        ),
        (CUDA, {}, GATHERS, r"OCTAVO_PAGED_ATTENTION_NATIVE=0 .*; use .*--no-exact"),
        (
            CUDA,
            {"codecs": (CODECS["turbo4"],) * 2},
            {},
            r"no fused kernel for turbo4 .*; use --kv-dtype f16 or --no-exact",
        ),
        (
            CUDA,
            {"storage": StorageKind.DENSE, "layout": [FULL, SLIDING]},
            {},
            r"in rings.*; use --storage paged or --no-",
        ),
        (
            CUDA,
            {"layout": [LayerSpec("full", 4, 2, 64, 64, 0.1, None, 20.0)]},
            {},
            r"no fused kernel for capped scores\); use --no-exact$",
        ),
    ],
    ids=["float32", "gather", "codec", "rings", "softcap"],
)
def test_what_cannot_be_exact_is_refused_when_asked_for_with_a_remedy(monkeypatch, device, given, environment, message):
    pytest.importorskip("triton", reason="triton is not installed")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest, match=f"^exact results were asked for, but .*{message}"):
        resolve(True, device, **given)


def test_rings_do_not_hinder_layers_without_windows_nor_a_cpu():
    assert resolve(True, CUDA, storage=StorageKind.DENSE).holds
    assert resolve(True, CPU, storage=StorageKind.DENSE, layout=[SLIDING]).holds


def test_a_product_that_depends_on_its_rows_is_found_out():
    assert differing_count([lambda x: x * 3], 16, CPU) is None
    assert differing_count([lambda x: x * (1 + (len(x) < 5))], 16, CPU) == COUNTS[0] == 1
    assert differing_count([lambda x: x, lambda x: x + (len(x) == 17)], 16, CPU) == 17
    rare = [lambda x: x + (len(x) == 1) * (x > 3)]  # one number of seven hundred
    assert differing_count(rare, 64, CPU) == 1, "not the last row alone is looked at"


def checkpoint(*shapes):
    shards = {f"w{i}": FakeShard(shape) for i, shape in enumerate(shapes)}
    return SimpleNamespace(names=lambda: shards, tensor=shards.__getitem__)


@dataclass(frozen=True)
class FakeShard:
    shape: tuple[int, ...]

    def rows(self, start, stop):
        return FakeShard((stop - start, *self.shape[1:]))


def test_routes_are_tried_with_a_few_rows_of_each_width_and_kept_if_they_hold():
    first, full = FakeRoute("codes"), FakeRoute("full")
    routes = RouteChoice(first, full)
    assert checked_routes(routes, checkpoint((900, 64), (300, 64), (40, 96), (64,)), CPU) is routes
    assert first.packed == [(40, 96), (256, 64)]
    assert full.packed == []


def test_a_route_that_does_not_hold_gives_way_to_the_one_that_does_and_that_is_told(caplog):
    full = FakeRoute("full")
    with caplog.at_level(logging.WARNING):
        routes = checked_routes(RouteChoice(FakeRoute("codes", from_rows=17), full), checkpoint((30, 64)), CPU)
    assert routes == RouteChoice(full, full)
    assert caplog.messages == [
        "codes products of 64 columns differ here between 1 and 64 rows; full weights serve in their place"
    ]
    broken = FakeRoute("full", from_rows=3)
    with caplog.at_level(logging.WARNING):
        assert checked_routes(RouteChoice(broken, broken), checkpoint((30, 64)), CPU) is None
    assert caplog.messages[-1].endswith("; results are not exact")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    save_hf(path, "llama")
    return path


def load(model, **settings):
    config = EngineConfig(device="cpu", dtype="bfloat16", threads=1, **settings)
    return load_model(plan_model(model, config), config)


def test_a_machine_on_which_no_route_holds_is_told_or_refused_if_exact_results_were_asked_for(model, monkeypatch):
    assert load(model).plan.exact.holds
    assert not load(model, exact=False).plan.exact.holds
    monkeypatch.setattr("octavo.engine.route_check.differing_count", lambda products, columns, device: 3)
    plan = load(model).plan
    assert not plan.is_row_invariant
    assert "on this machine" in plan.exact.reason
    with pytest.raises(InvalidRequest, match=r"^exact results were asked for, but on this machine .*; use --no-exact$"):
        load(model, exact=True)


def test_attention_is_tried_in_every_shape_that_the_compiled_kernels_serve(monkeypatch):
    if library.load().functions is None:
        pytest.skip(f"no compiled kernels: {library.load().reason}")
    odd = LayerSpec("full", 4, 2, 24, 24, 0.1, None)
    for codec in ("f32", "f16", "q8_0", "turbo4"):
        assert attention_is_row_invariant([FULL, SLIDING, FULL], (CODECS[codec], CODECS["f16"]))
    run, tried, company = AttentionKernel.run, [], {"tokens": 0, "count": 0}

    def off_in_company(self, q, k, v, step, out, sinks=None):
        run(self, q, k, v, step, out, sinks)
        here = {"tokens": len(q), "count": step.count}
        tried.append((len(q), step.count))
        out += here == company

    monkeypatch.setattr(AttentionKernel, "run", off_in_company)
    for tokens, count in ((1, 1), (12, 1), (12, 12)):
        company.update(tokens=tokens, count=count)
        assert not attention_is_row_invariant([SLIDING], (CODECS["f16"],) * 2)
    company.update(tokens=0)
    tried.clear()
    assert attention_is_row_invariant([odd, SLIDING, SLIDING], (CODECS["f16"],) * 2)
    assert tried == [(12, 1), *[(1, 1)] * 12, (12, 12)]


def test_a_machine_on_which_attention_does_not_hold_is_told_or_refused(model, monkeypatch):
    monkeypatch.setattr("octavo.engine.loaded_model.attention_is_row_invariant", lambda layout, codecs: False)
    plan = load(model).plan
    assert not plan.is_row_invariant
    assert plan.exact.reason == "on this machine a token's attention depends on what is computed beside it"
    with pytest.raises(InvalidRequest, match=r"^exact results were asked for, but .*attention .*; use --no-exact$"):
        load(model, exact=True)


def test_float32_is_refused_when_exact_is_asked_for_before_weights_are_read(model):
    config = EngineConfig(device="cpu", dtype="float32", exact=True)
    with pytest.raises(InvalidRequest, match=r"use --dtype bfloat16, float16 or --no-exact"):
        plan_model(model, config)
    assert not plan_model(model, EngineConfig(device="cpu", dtype="float32")).exact.holds


def test_weights_that_are_exact_are_shared_only_under_settings_that_are(model, monkeypatch):
    """On a CPU all settings are; on a GPU, as which this one poses, there is no fused kernel for turbo4."""
    loaded = load(model)
    settings = {name: EngineConfig(device="cpu", kv_dtype=name) for name in ("q8_0", "f16", "turbo4")}
    for config in settings.values():
        assert share_weights(loaded, config, loaded.plan.storage).plan.exact.holds
    pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setattr(loaded_model, "available_memory", lambda device: 1 << 34)
    on_gpu = replace(loaded, plan=replace(loaded.plan, device=CUDA))
    paged = StorageDecision(StorageKind.PAGED, "the test's")
    assert share_weights(on_gpu, settings["f16"], paged).plan.exact.holds
    with pytest.raises(InvalidRequest, match=r"^exact results were asked for, but .*no fused kernel for turbo4"):
        share_weights(on_gpu, settings["turbo4"], paged)
    inexact = replace(on_gpu, plan=replace(on_gpu.plan, exact=resolve(False, CUDA)))
    assert not share_weights(inexact, settings["turbo4"], paged).plan.exact.holds


@pytest.mark.parametrize("value", ["on", 1, 0])
def test_exact_is_true_false_or_none(value):
    with pytest.raises(InvalidRequest, match=r"exact is .*; it must be true, false or"):
        EngineConfig(exact=value)
