"""Each codec in each storage: the same bits in dense, ring, paged and gathered rows; attention over what it holds."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from octavo.cache.spec import LayerSpec
from octavo.kernels import reference
from octavo.kernels.cpu import library
from octavo.step_batch import StorageKind
from octavo.storage.codecs import CODECS
from tests.combinations import by_day
from tests.schedules import random_shares
from tests.storage.test_kv_cache import LENGTHS, WHOLE, run

PAIRS = [
    ("q8_0", "q8_0"),
    ("q4_0", "q4_0"),
    ("turbo4", "turbo4"),
    ("q8_0", "q4_0"),
    ("f16", "q8_0"),
    ("turbo4", "bf16"),
]
DIMS = [64, 80, 96, 128, 256]
KERNELS = ("compiled", "torch")
# Torch attends heads of every size by the same code, so by day three sizes, one of each block size, are enough of it.
SIZES = [*by_day(KERNELS[:1], PAIRS, DIMS), *by_day(KERNELS[1:], PAIRS, DIMS[:3])]
SIZES += [pytest.param(*each, marks=pytest.mark.nightly) for each in product(KERNELS[1:], PAIRS, DIMS[3:])]
SCALE = 0.1


def as_id(value):
    return "-".join(value) if isinstance(value, tuple) and isinstance(value[0], str) else str(value)


@pytest.fixture
def kernels(request, monkeypatch):
    """Both ways to attend: the compiled kernels, and torch where there are none."""
    if request.param == "torch":
        monkeypatch.setattr(library, "load", lambda: library.Library(None, "for a test"))
    elif library.load().functions is None:
        pytest.skip(library.load().reason)
    return request.param


def layout_of(k_dim, v_dim):
    full = LayerSpec("full", 4, 2, k_dim, v_dim, SCALE, None, None)
    return [full, LayerSpec("sliding", 4, 2, k_dim, v_dim, SCALE, 40, None)]


def draw(layout, seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = [[(spec.num_q_heads, spec.k_dim), (2, spec.k_dim), (2, spec.v_dim)] for spec in layout]
    return [
        [[torch.randn(length, *shape, generator=generator) for shape in layer] for layer in shapes]
        for length in LENGTHS
    ]


def assert_equal(got, expected, what):
    for slot, layers in enumerate(expected):
        for layer, rows in enumerate(layers):
            assert torch.equal(got[slot][layer], rows), f"{what}, slot {slot}, layer {layer}"


@pytest.mark.parametrize(("kernels", "codecs", "dim"), SIZES, indirect=["kernels"], ids=as_id)
def test_every_storage_and_schedule_gives_the_bits_of_a_whole_dense_prefill(kernels, codecs, dim, monkeypatch):
    layout = layout_of(dim, dim)
    data = draw(layout, dim)
    block_size = (16, 32, 64)[DIMS.index(dim) % 3]
    expected, _ = run(StorageKind.DENSE, WHOLE, data, codecs=codecs, layout=layout)
    steps = random_shares(LENGTHS, dim, longest=120)
    for storage in StorageKind:
        got, cache = run(storage, steps, data, codecs=codecs, layout=layout, block_size=block_size)
        assert_equal(got, expected, storage.value)
        if storage is StorageKind.PAGED and kernels == "compiled":
            assert set(cache.routes.by_route()) == {"fused_decode", "varlen_prefill"}
    monkeypatch.setenv("OCTAVO_PAGED_ATTENTION_NATIVE", "0")
    got, cache = run(StorageKind.PAGED, steps, data, codecs=codecs, layout=layout, block_size=block_size)
    assert set(cache.routes.by_route()) == {"gather"}
    assert_equal(got, expected, "gather")


@pytest.mark.parametrize(
    ("kernels", "codecs", "dims"),
    by_day(KERNELS, PAIRS, [(64, 64), (80, 48), (256, 128)]),
    indirect=["kernels"],
    ids=as_id,
)
def test_attention_is_the_float64_definition_over_decoded_rows(kernels, codecs, dims):
    layout = layout_of(*dims)
    data = draw(layout, 9)
    for storage in StorageKind:
        outputs, _ = run(storage, WHOLE, data, codecs=codecs, layout=layout)
        for slot in range(len(LENGTHS)):
            for layer, spec in enumerate(layout):
                q, k, v = data[slot][layer]
                k, v = (CODECS[name].round_trip(x).double() for name, x in zip(codecs, (k, v), strict=True))
                expected = reference.attention(q.double(), k, v, q_start=0, scale=SCALE, window=spec.window)
                got = outputs[slot][layer].double()
                largest = expected.abs().max()
                assert (got - expected).abs().max() < 5e-6 * largest
                assert (got * 1.01 - expected).abs().max() > 5e-6 * largest
