"""Products whose weights stream ahead of a step, on Hopper: what a float64 product gives, alone and behind others."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="triton is not installed")

from octavo.cache.storage_policy import StorageDecision
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import load_model, plan_model, share_weights
from octavo.kernels.triton.fused_rows import add_rms_norm_
from octavo.kernels.triton.launch import has_warpgroup_products
from octavo.kernels.triton.skinny_gemm import SkinnyScratch
from octavo.kernels.triton.streamed_table import StreamedTile, streamed_gated_tile, streamed_tile
from octavo.layers.linear import skinny_route
from octavo.layers.linear.skinny_route import SkinnyWeight
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.tiny_models import save_hf, save_tokenizer

GPU = torch.cuda.is_available() and has_warpgroup_products(torch.device("cuda"))
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPU, reason="needs a Hopper GPU")]

CUDA = torch.device("cuda")


def draw(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device=CUDA, generator=torch.Generator(CUDA).manual_seed(sum(shape))).to(dtype)


def multiply(x, weight, tile, dtype=torch.float32, gelu=None):
    from octavo.kernels.triton.streamed_product import multiply_streamed

    y = multiply_streamed(x, weight, tile, dtype, gelu=gelu)
    return y.double().sum(0) if tile.splits > 1 else y.double()


def is_close(found, expected, bound):
    def off(x):
        return (x - expected).norm() / expected.norm()

    return off(found) < bound < off(found * 1.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize(
    ("rows", "n", "k", "tile"),
    [
        (33, 256, 512, StreamedTile(64, 64, 64, 4)),
        (64, 100, 1000, StreamedTile(64, 64, 64, 6)),
        (64, 256, 128, StreamedTile(64, 32, 64, 8)),  # fewer columns than stages have
        (50, 192, 1088, StreamedTile(64, 64, 64, 4, 4)),  # the last split has fewer columns
        (64, 320, 640, StreamedTile(64, 128, 128, 2, 2)),
        (65, 100, 1000, StreamedTile(128, 64, 64, 4)),
        (128, 192, 1088, StreamedTile(128, 64, 64, 6, 4)),
        (200, 130, 512, StreamedTile(128, 64, 64, 4, 2)),  # two tiles of rows
        (200, 130, 512, StreamedTile(256, 64, 64, 4, 2)),
    ],
    ids=str,
)
def test_products_and_their_parts_are_those_of_float64(rows, n, k, tile, dtype):
    x, weight = draw(rows, k, dtype=dtype), draw(n, k, dtype=dtype) / k**0.5
    expected = x.double() @ weight.double().t()
    assert is_close(multiply(x, weight, tile), expected, 1e-5)
    if tile.splits == 1:
        assert is_close(multiply(x, weight, tile, dtype), expected, 5e-3)


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize(
    ("rows", "n", "k", "tile"),
    [
        (33, 96, 512, StreamedTile(64, 64, 64, 4)),
        (64, 100, 1000, StreamedTile(64, 32, 64, 6)),
        (100, 96, 512, StreamedTile(128, 64, 64, 4)),
        (200, 100, 512, StreamedTile(256, 64, 64, 4)),
    ],
    ids=str,
)
def test_gates_are_those_of_two_rounded_products(rows, n, k, tile, gelu):
    x, weight = draw(rows, k), draw(2 * n, k) / k**0.5
    gate, up = (x.double() @ weight.double().t()).bfloat16().double().chunk(2, dim=-1)
    expected = (F.gelu(gate, approximate="tanh") if gelu else F.silu(gate)) * up
    assert is_close(multiply(x, weight, tile, torch.bfloat16, gelu), expected, 5e-3)


def test_rows_past_the_last_are_neither_read_nor_written():
    wide, weight = draw(128, 256), draw(128, 256)
    wide[40:] = float("nan")
    tile = StreamedTile(64, 64, 64, 4)
    found = multiply(wide[:40], weight, tile)
    assert found.shape == (40, 128)
    assert torch.equal(found, multiply(wide[:40].clone(), weight, tile))
    assert found.isfinite().all()


@pytest.mark.parametrize("rows", [64, 100])
def test_a_step_from_a_graph_has_the_bits_of_its_kernels_one_by_one(rows):
    """Weights are on their way before the kernel in front is done; what it writes is waited for."""
    height = 64 if rows <= 64 else 128
    gated, summed = StreamedTile(height, 64, 64, 4), StreamedTile(height, 64, 64, 4, 4)
    up, down, norm = draw(2 * 1024, 512) / 32, draw(512, 1024) / 32, torch.rand(512, device=CUDA) + 0.5
    start = draw(rows, 512).float()
    x = start.clone()

    def run(wait):
        from octavo.kernels.triton.streamed_product import multiply_streamed

        x.copy_(start)
        y = None
        for _ in range(40):
            h = add_rms_norm_(x, y, norm, 1e-6, torch.bfloat16)
            wait()
            h = multiply_streamed(h, up, gated, torch.bfloat16, gelu=False)
            wait()
            y = multiply_streamed(h, down, summed, torch.float32)
            wait()
        return add_rms_norm_(x, y, norm, 1e-6, torch.bfloat16)

    expected = run(torch.cuda.synchronize).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(lambda: None)
    for _ in range(20):
        graph.replay()
        assert torch.equal(found, expected)


@pytest.mark.parametrize("rows", [2, 8, 9, 16, 17, 32, 33, 64, 65, 100, 128, 129, 192, 224, 256])
@pytest.mark.parametrize(
    ("n", "k"), [(2048, 2048), (4096, 2048), (2048, 6144), (6144, 4096), (4096, 4096), (4096, 14336)]
)
def test_measured_shapes_give_what_the_library_does(n, k, rows):
    x, weight = draw(rows, k), draw(n, k) / k**0.5
    packed, expected = SkinnyWeight(weight, SkinnyScratch(CUDA)), F.linear(x, weight).double()
    parts = packed.apply_in_parts(x)
    found = packed.apply(x).double() if parts is None else parts.double().sum(0)
    assert is_close(found, expected, 5e-3)
    assert is_close(packed.apply_float32(x).double(), expected, 5e-3)
    tile = streamed_tile(rows, n, k)
    assert (parts is not None) == (tile is not None and tile.splits > 1)


@pytest.mark.parametrize("rows", [2, 8, 9, 16, 17, 32, 33, 64, 65, 128, 200])
@pytest.mark.parametrize(("n", "k"), [(6144, 2048), (14336, 4096)])
def test_measured_gates_give_what_the_library_does(n, k, rows):
    x, weight = draw(rows, k), draw(2 * n, k) / k**0.5
    found = SkinnyWeight(weight, SkinnyScratch(CUDA)).apply_gated(x, "silu")
    gate, up = F.linear(x, weight).double().chunk(2, dim=-1)
    if streamed_gated_tile(rows, n, k) is not None:
        assert found is not None
    if found is not None:
        assert is_close(found.double(), F.silu(gate) * up, 5e-3)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = tmp_path_factory.mktemp("qwen3")
    save_hf(path, "qwen3", max_position_embeddings=1024)
    save_tokenizer(path)
    config = EngineConfig(dtype="bfloat16", device="cuda")
    return load_model(plan_model(path, config), config)


def decode(loaded, **settings):
    """Tokens and logits of 40 sequences that decode together."""
    config = EngineConfig(max_context=300, device="cuda", max_num_seqs=40, **settings)
    logits: dict[str, list[torch.Tensor]] = {}

    def observe(request_id, row):
        logits.setdefault(request_id, []).append(row.cpu().clone())

    decision = StorageDecision(StorageKind.PAGED, "the test asks for it")
    core = EngineCore(share_weights(loaded, config, decision), config, observe)
    for i in range(40):
        prompt = tuple((7 * j + i) % 370 + 3 for j in range(5 + i))
        core.add(Request(f"{i}", prompt, SamplingParams(max_tokens=12, ignore_eos=True), 0))
    while core.has_work:
        for event in core.step():
            assert event.error is None, event.error
    return logits, dict(core.runner.graphs.counts)


@pytest.mark.parametrize("splits", [1, 2])
def test_an_engine_decodes_many_rows_with_them_from_graphs_as_one_by_one(loaded, splits, monkeypatch):
    expected, _ = decode(loaded)
    used = []

    def tile(rows, n, k):
        if not 33 <= rows <= 64:
            return None
        used.append((n, k))
        return StreamedTile(64, 64, 64, 4, splits)

    def gated_tile(rows, n, k):
        return StreamedTile(64, 64, 64, 4) if 33 <= rows <= 64 else None

    monkeypatch.setattr(skinny_route, "streamed_tile", tile)
    monkeypatch.setattr(skinny_route, "streamed_gated_tile", gated_tile)
    found, counts = decode(loaded)
    assert counts["replayed"] > 5
    assert len(set(used)) > 3
    one_by_one, _ = decode(loaded, cuda_graphs=False)
    for name, rows in found.items():
        for row, same in zip(rows, one_by_one[name], strict=True):
            assert torch.equal(row, same)
        # The first two tokens' logits see the same tokens before them, but where one of two that are as good came out.
        assert is_near(rows[0], expected[name][0])
        if rows[0].argmax() == expected[name][0].argmax():
            assert is_near(rows[1], expected[name][1])


def is_near(found, expected):
    return (found - expected).norm() < 2e-2 * expected.norm()
