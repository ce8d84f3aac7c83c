"""The fused route behind the seam, under Triton's interpreter: what it gives is what gathering gives."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.cache.spec import LayerSpec
from octavo.step_batch import StorageKind
from octavo.storage import kv_cache
from octavo.storage.codecs import CODECS
from octavo.storage.eager_attention import EagerAttention
from octavo.storage.fused_attention import FusedAttention
from octavo.storage.route import Route
from tests.schedules import HandScheduler, random_shares
from tests.storage.projected_steps import STEPS, attend_projected
from tests.storage.shifted_sequence import Bookkeeping

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted only where there is no GPU")

CPU = torch.device("cpu")
DIM = 32
LENGTHS = (49, 17, 1, 18)
SINKS = torch.tensor([0.5, -3.0, 9.0, float("-inf"), 0.0, 2.0])


def spec(window=None, softcap=None, sinks=False):
    return LayerSpec("full" if window is None else "sliding", 6, 2, DIM, DIM, 0.25, window, softcap, sinks)


LAYOUT = [spec(), spec(window=40), spec(sinks=True)]


@pytest.fixture
def choose(monkeypatch):
    """choose(fused) decides how the next caches attend."""

    def decide(fused):
        def attention(spec, store, block_size, device, switches, staging):
            if fused:
                return FusedAttention(spec, store, block_size, device, staging)
            return EagerAttention(spec, block_size, device, "asked for by a test")

        monkeypatch.setattr(kv_cache, "_group_attention", attention)

    return decide


def run(storage, codecs):
    """Outputs of every step and layer, and the cache."""
    generator = torch.Generator().manual_seed(3)
    scheduler = HandScheduler(LAYOUT, storage, max_seqs=len(LENGTHS), max_context=max(LENGTHS) + 8, codecs=codecs)
    scheduler.cache.set_sinks(2, SINKS)
    steps = random_shares(LENGTHS, 5)
    for _ in range(2):  # then all of them go on token by token, the second one beside a chunk
        steps.append([(slot, 1) for slot in range(len(LENGTHS))])
    steps.append([(0, 1), (1, 3), (3, 1)])
    outputs = []
    for shares in steps:
        scheduler.cache.plan(scheduler.batch([(slot, [0] * count) for slot, count in shares]))
        total = sum(count for _, count in shares)
        for layer in range(len(LAYOUT)):
            q, k, v = (torch.randn(total, heads, DIM, generator=generator) for heads in (6, 2, 2))
            outputs.append(scheduler.cache.attend(layer, q, k, v).clone())
    return outputs, scheduler.cache


@pytest.mark.parametrize(
    ("storage", "codecs"),
    [
        (StorageKind.PAGED, ("f16", "f16")),
        (StorageKind.PAGED, ("q8_0", "q4_0")),
        (StorageKind.DENSE, ("f16", "f16")),
        pytest.param(StorageKind.DENSE, ("q8_0", "q4_0"), marks=pytest.mark.nightly),
    ],
    ids=lambda value: value.value if isinstance(value, StorageKind) else "-".join(value),
)
def test_mixed_steps_give_what_gathering_gives(choose, storage, codecs):
    choose(fused=False)
    expected, _ = run(storage, codecs)
    choose(fused=True)
    outputs, cache = run(storage, codecs)
    for got, want in zip(outputs, expected, strict=True):
        assert (got - want).abs().max() < 5e-4
    fused = cache.routes.by_route().get(Route.FUSED_DECODE.value, 0)
    assert (fused > 0) == (storage is StorageKind.PAGED)


@pytest.mark.parametrize(
    ("storage", "codecs"),
    [
        (StorageKind.PAGED, ("f16", "f16")),
        (StorageKind.PAGED, ("q8_0", "q4_0")),
        (StorageKind.DENSE, ("f16", "f16")),
    ],
    ids=["paged", "paged codes", "dense"],
)
def test_projected_heads_are_normed_turned_stored_and_attended_as_one_after_another(choose, storage, codecs):
    outputs = []
    for fused in (False, True):
        choose(fused)
        scheduler = HandScheduler(LAYOUT[:2], storage, max_seqs=3, max_context=48, codecs=codecs)
        outputs.append(attend_projected(scheduler, LAYOUT[:2], CPU, steps=STEPS[:2]))
    for want, got in zip(*outputs, strict=True):
        assert (got.float() - want.float()).abs().max() < 5e-4 + want.float().abs().max() * 2**-11


def test_every_row_of_a_paged_step_takes_a_kernel_that_is_counted(choose):
    choose(fused=True)
    scheduler = HandScheduler([spec()], StorageKind.PAGED, max_seqs=3, max_context=64, codecs=("f16", "f16"))
    scheduler.cache.plan(scheduler.batch([(0, [0]), (1, [0] * 8), (2, [0] * 9)]))
    assert scheduler.cache.routes.counts == {
        (Route.FUSED_DECODE, "one token"): 1,
        (Route.FUSED_VERIFY, "a few tokens"): 1,
        (Route.VARLEN_PREFILL, "a chunk"): 1,
    }


@pytest.mark.parametrize("padded", [False, True])
def test_keys_of_a_shifted_context_are_stored_and_found_past_the_gap(choose, monkeypatch, padded):
    layout = [spec(), spec(window=24)]
    choose(fused=False)
    expected = decode_shifted(layout)
    choose(fused=True)
    monkeypatch.setattr(kv_cache, "spare_blocks", lambda device: 1)
    for want, got in zip(expected, decode_shifted(layout, padded=padded), strict=True):
        assert (got - want).abs().max() < 5e-4


def decode_shifted(layout, *, padded=False):
    generator = torch.Generator().manual_seed(4)
    books = Bookkeeping(layout, 5, max_context=96, codecs=("f16", "f16"))
    books.cache.set_rotation(lambda layer: torch.full((DIM // 2,), 0.1))
    outputs = []
    for count, drop in ((70, 0), (1, 0), (1, 32), (1, 0), (1, 16), (1, 0)):
        if drop:
            books.drop(drop)
        rows = 2 if padded and count == 1 else count
        if rows > count:
            books.cache.plan_padded(books.batch([0]), rows, ())
        else:
            books.cache.plan(books.batch([0] * count))
        for layer in range(len(layout)):
            given = (torch.randn(count, heads, DIM, generator=generator) for heads in (6, 2, 2))
            q, k, v = (torch.cat((x, x.new_zeros(rows - count, *x.shape[1:]))) for x in given)
            outputs.append(books.cache.attend(layer, q, k, v)[:count].clone())
    return outputs


def test_a_step_uploads_the_ids_that_are_new_and_no_others(choose):
    choose(fused=True)
    scheduler = HandScheduler([spec()], StorageKind.PAGED, max_seqs=2, max_context=64, codecs=("f16", "f16"))
    tables = scheduler.cache._attention[0]._tables
    uploaded = []
    for count in (31, 1, 1, 1):
        scheduler.cache.plan(scheduler.batch([(1, [0] * count)]))
        uploaded.append(tables.uploaded_ids)
    assert 0 < uploaded[0] <= 2
    assert uploaded[1] == uploaded[0]
    assert uploaded[2] == uploaded[1] + 1
    assert uploaded[3] == uploaded[2]


@pytest.mark.parametrize(
    ("settings", "codec", "reason"),
    [
        ({}, "f16", None),
        ({"softcap": 20.0}, "f16", "no fused kernel for capped scores"),
        ({}, "f32", "no fused kernel for float32 keys or values"),
        ({}, "turbo4", "no fused kernel for turbo4 keys"),
    ],
)
def test_what_it_cannot_serve_is_refused_with_the_reason(settings, codec, reason):
    both = CODECS[codec], CODECS[codec]
    assert FusedAttention.refusal(spec(**settings), both, 16, torch.device("cuda")) == reason
    assert FusedAttention.refusal(spec(), both, 16, CPU) == "no fused kernel on cpu"
