"""Projected heads through the cache on a CUDA device: the kernels' results are those of gathering, at every route."""

from __future__ import annotations

from itertools import product

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.cache.spec import LayerSpec
from octavo.step_batch import StorageKind
from octavo.storage.route import RouteSwitches
from tests.schedules import HandScheduler
from tests.storage.projected_steps import attend_projected

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

CUDA = torch.device("cuda")


def layout(dim):
    full = LayerSpec("full", 6, 2, dim, dim, dim**-0.5)
    return [full, LayerSpec("sliding", 6, 2, dim, dim, dim**-0.5, 60)]


def run(dim, storage, codecs, dtype, native):
    scheduler = HandScheduler(
        layout(dim), storage, max_seqs=3, max_context=256, codecs=codecs, device=CUDA,
        switches=RouteSwitches(native=native),
    )  # fmt: skip
    outputs = attend_projected(scheduler, layout(dim), CUDA, dtype, scale=5)
    return outputs, scheduler.cache.routes.by_route()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("codecs", [*product(("f16", "q8_0", "q4_0"), repeat=2), ("bf16", "bf16")], ids="-".join)
@pytest.mark.parametrize("storage", list(StorageKind), ids=lambda s: s.value)
@pytest.mark.parametrize("dim", [64, 128])
def test_kernels_give_what_gathering_gives(dim, storage, codecs, dtype):
    want, gathered = run(dim, storage, codecs, dtype, native=False)
    got, routes = run(dim, storage, codecs, dtype, native=None)
    paged = storage is StorageKind.PAGED
    assert gathered.keys() == ({"gather"} if paged else {"dense", "ring"})
    assert routes.keys() == ({"fused_decode", "fused_verify", "varlen_prefill"} if paged else {"dense", "ring"})
    for mine, theirs in zip(got, want, strict=True):
        # A last bit of a rotated key may move a code by one.
        bound = 0.02 if "q" in codecs[0] + codecs[1] else 5e-3 if dtype is torch.bfloat16 else 1e-3
        bound += theirs.float().abs().max() * torch.finfo(dtype).eps
        assert (mine.float() - theirs.float()).abs().max() < bound
        assert not ((mine.float() * 1.05 - theirs.float()).abs().max() < bound)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_a_layer_waits_for_nothing():
    scheduler = HandScheduler(
        layout(64), StorageKind.PAGED, max_seqs=3, max_context=256, codecs=("f16",) * 2, device=CUDA
    )
    attend = scheduler.cache.attend_qkv

    def watched(*args):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return attend(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    scheduler.cache.attend_qkv = watched
    assert all(out.isfinite().all() for out in attend_projected(scheduler, layout(64), CUDA))
