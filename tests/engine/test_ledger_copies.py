"""Copies of K/V that come and go between steps: what each takes at most is in the ledger before it is made."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from octavo.cache.spec import LayerSpec, group_layers
from octavo.config import EngineConfig
from octavo.engine.hand_off import HandOff
from octavo.engine.loaded_model import load_model, plan_model
from octavo.engine.working_memory import Serving, encoded_bytes, export_bytes, shift_bytes, undo_bytes, workspace_bytes
from octavo.kernels.cpu import library
from octavo.kernels.cpu.linear import PackedAffine
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from octavo.storage import kv_cache
from octavo.storage.codecs import CODECS
from tests.engine.tiny_engines import Driver, Outcome, open_model, prompt_of
from tests.kernels.cpu.linear_cases import draw_matrix, draw_rows
from tests.tiny_models import save_hf

CPU = torch.device("cpu")


class Peak(TorchDispatchMode):
    """The most bytes at once of all that operations allocate while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.most = 0
        self._held: dict[int, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                known = storage.data_ptr() in before and storage.data_ptr() not in self._held
                if not known:
                    self._hold(x, storage.data_ptr(), storage.nbytes())
        return out

    def _hold(self, tensor, key, size):
        if not self._held.get(key):
            self.bytes += size
            self.most = max(self.most, self.bytes)
        self._held[key] = self._held.get(key, 0) + 1
        weakref.finalize(tensor, self._drop, key, size)

    def _drop(self, key, size):
        self._held[key] -= 1
        if not self._held[key]:
            self.bytes -= size


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    save_hf(path, request.param, **({"sliding_window": 96} if request.param == "gemma3" else {}))
    return path


@pytest.fixture(scope="module")
def loaded(path):
    return open_model(path)


def groups_of(loaded):
    return group_layers(loaded.model.kv_layout(loaded.plan.config))


@pytest.mark.parametrize("keep", [0, 64])
@pytest.mark.parametrize("kv_dtype", ["f16", "f32"])
def test_a_context_shift_takes_no_more_than_its_scratch(loaded, monkeypatch, keep, kv_dtype):
    peaks = []
    original = kv_cache.rotate_back

    def measured(*arguments):
        with Peak() as peak:
            original(*arguments)
        peaks.append(peak.most)

    monkeypatch.setattr(kv_cache, "rotate_back", measured)
    settings = {"context_limit_policy": "shift", "keep": keep, "kv_dtype": kv_dtype, "max_num_seqs": 1}
    driver = Driver(loaded, max_context=256, **settings)
    driver.add("a", prompt_of(250), SamplingParams(max_tokens=20, ignore_eos=True))
    driver.run()
    said = shift_bytes(groups_of(loaded), EngineConfig(**settings).on("cpu"), 256)
    assert len(peaks) >= len(groups_of(loaded))
    assert 0.4 * said < max(peaks) <= said
    assert shift_bytes(groups_of(loaded), EngineConfig().on("cpu"), 256) == 0


@pytest.mark.parametrize("codecs", [("f16", "f16"), ("q8_0", "turbo4")])
def test_what_can_be_rewound_takes_no_more_than_its_rows(loaded, codecs):
    config = EngineConfig(max_num_seqs=3, kv_dtype=f"k={codecs[0]},v={codecs[1]}")
    driver = Driver(loaded, StorageKind.DENSE, max_num_seqs=3, kv_dtype=config.kv_dtype)
    serving = Serving(StorageKind.DENSE, (CODECS[codecs[0]], CODECS[codecs[1]]), CPU)
    with Peak() as peak, driver.core.runner.cache.decode_lookahead():
        taken = peak.bytes
    said = undo_bytes(groups_of(loaded), config, serving)
    assert 0.7 * said <= taken <= said
    assert (said == 0) == (loaded.plan.config.sliding_window is None)
    assert undo_bytes(groups_of(loaded), config, replace(serving, storage=StorageKind.PAGED)) == 0


@pytest.mark.parametrize("storage", tuple(StorageKind), ids=lambda storage: storage.value)
def test_an_exported_sequence_takes_what_was_set_aside_for_it(loaded, storage):
    driver = Driver(loaded, storage, max_context=128, max_num_seqs=1)
    driver.outcomes["a"] = Outcome()
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    driver.core.add(Request("a", prompt_of(120), params, 0, 0), HandOff(export=True))
    events = []
    while driver.core.has_work:
        events += driver.core.step()
    snapshot = events[-1].snapshot
    said = export_bytes(groups_of(loaded), Serving(storage, driver.core.loaded.plan.codecs, CPU), 128)
    assert 0.9 * said < snapshot.num_bytes <= said


def test_room_for_an_export_is_set_aside_where_one_is_asked_for(path, loaded):
    config = EngineConfig(max_num_seqs=1, max_context=128, threads=1)
    plain, exporting = (plan_model(path, config, exports=exports) for exports in (False, True))
    expected = export_bytes(groups_of(loaded), Serving(StorageKind.DENSE, plain.codecs, CPU), 128)
    assert exporting.ledger.workspace_bytes - plain.ledger.workspace_bytes == expected > 0


@pytest.mark.parametrize(
    "spec", [LayerSpec("full", 4, 2, 16, 16, 0.25), LayerSpec("sliding", 4, 2, 16, 16, 0.25, 50)], ids=lambda s: s.kind
)
@pytest.mark.parametrize("keep", [0, 96])
def test_the_scratch_of_a_longer_context_is_never_smaller(loaded, spec, keep):
    config = EngineConfig(context_limit_policy="shift", keep=keep).on("cpu")
    groups = group_layers([spec, spec])
    serving = Serving(StorageKind.PAGED, (CODECS["f16"], CODECS["f16"]), CPU)
    sizes = [
        workspace_bytes(loaded.plan.config, groups, config, serving, length, compiled=[True])
        for length in range(1, 700)
    ]
    assert sizes == sorted(sizes)


def test_windows_have_blocks_for_the_tokens_that_a_shift_keeps(tmp_path):
    save_hf(tmp_path, "gemma3")  # windows of 16
    settings = {"context_limit_policy": "shift", "keep": 160, "max_num_seqs": 2, "prefill_chunk": 16}
    config = EngineConfig(threads=1, dtype="bfloat16", max_context=256, **settings)
    loaded = load_model(plan_model(tmp_path, config), config)
    driver = Driver(loaded, max_context=256, max_batch_tokens=32, **settings)
    for seed, name in enumerate(("a", "b")):
        driver.add(name, prompt_of(40, seed), SamplingParams(max_tokens=300, ignore_eos=True))
    driver.step()
    assert driver.core._scheduler.num_running == 2
    assert all(len(outcome.token_ids) == 300 for outcome in driver.run().values())
    driver.assert_idle()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not say how much memory is held")
def test_activations_that_products_encode_take_what_was_set_aside_for_them(loaded):
    if library.load().functions is None:
        pytest.skip(f"no compiled kernels: {library.load().reason}")
    tokens, columns = 4096, 2048
    packed = PackedAffine([draw_matrix(16, columns, bits, 32, "minimum") for bits in (4, 5, 8)])
    x = draw_rows(tokens, columns)
    taken = []

    def held() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def multiply() -> None:
        before = held()
        y = packed.multiply(x)
        taken.append(held() - before - y.nbytes)

    thread = threading.Thread(target=multiply)  # which has encoded nothing before
    thread.start()
    thread.join()
    said = encoded_bytes(replace(loaded.plan.config, hidden_size=columns), tokens)
    assert 0.5 * said < taken[0] <= said + (4 << 20)
