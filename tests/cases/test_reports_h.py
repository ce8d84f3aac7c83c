"""Reports of kind h, state beside the blocks, replayed with the state there is: rings of windows, and their snapshots.

Recurrent layers are not served, and so their models are refused before anything of them is read.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from octavo.errors import LoadError
from octavo.models.loaders import open_checkpoint
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.combinations import by_day
from tests.engine.conftest import Load
from tests.engine.tiny_engines import STORAGES, Driver, alone, prompt_of
from tests.tiny_models import save_hf

WINDOWED = ["gemma3", "gemma3-window-5", "mistral-window-16"]
LONG = SamplingParams(max_tokens=30, ignore_eos=True)

# Model types of Hugging Face configurations, and architectures of GGUF files, with recurrent layers.
RECURRENT = (
    "mamba", "mamba2", "falcon_mamba", "jamba", "bamba", "zamba2", "nemotron_h", "falcon_h1", "granitemoehybrid",
    "qwen3_next", "recurrent_gemma", "lfm2",
)  # fmt: skip
RECURRENT_IN_GGUF = (
    "mamba",
    "mamba2",
    "jamba",
    "nemotron_h",
    "falcon-h1",
    "granitehybrid",
    "qwen3next",
    "lfm2",
    "plamo2",
)


def assert_same(driver: Driver, name: str, expected) -> None:
    outcome = driver.outcomes[name]
    assert outcome.token_ids == expected.token_ids, name
    assert torch.equal(torch.stack(outcome.logits), torch.stack(expected.logits)), name


# -- R045: a slot that another had ----------------------------------------------------------------------------------


def poison_rings(driver: Driver) -> None:
    """As if the last tenant had left the worst behind."""
    for store in driver.core.runner.cache._layers.values():
        if store.ring is not None:
            for plane in (*store.ring.k.planes().values(), *store.ring.v.planes().values()):
                plane.fill_(float("nan"))


LEFT = ("finished", "aborted in decode", "aborted in prefill", "preempted", "poisoned")


@pytest.mark.parametrize(("case", "left"), by_day(WINDOWED, LEFT))
def test_r045_a_slot_that_another_request_had_gives_what_a_fresh_one_gives(load: Load, case: str, left: str) -> None:
    loaded = load(case)
    driver = Driver(loaded, StorageKind.DENSE, max_num_seqs=1, prefill_chunk=16, prefix_cache=False)
    lengths = (1, 5, 40)
    for length in lengths:
        driver.add(f"long {length}", prompt_of(90, seed=length), LONG)
        for _ in range(2 if left == "aborted in prefill" else 12):
            driver.step()
        if left == "preempted":
            driver.core.preempt(f"long {length}")
        elif left.startswith("aborted"):
            driver.core.abort(f"long {length}")
        driver.run()
        if left == "poisoned":
            poison_rings(driver)
        driver.add(f"short {length}", prompt_of(length, seed=7))
        driver.run()
        assert_same(driver, f"short {length}", alone(loaded, prompt_of(length, seed=7)))
        if left in ("finished", "preempted"):
            expected = alone(loaded, prompt_of(90, seed=length), LONG)
            assert driver.outcomes[f"long {length}"].token_ids == expected.token_ids
    driver.assert_idle()


# -- R047: a prefix whose blocks are there and whose state is not ----------------------------------------------------


@pytest.mark.parametrize(
    ("case", "storage"),
    by_day(WINDOWED, STORAGES),
    ids=lambda value: value.value if isinstance(value, StorageKind) else value,
)
def test_r047_a_prefix_is_taken_only_as_far_as_the_state_of_every_layer_is_there(
    load: Load, case: str, storage: StorageKind
) -> None:
    loaded = load(case)
    driver = Driver(loaded, storage, max_num_seqs=3, prefill_chunk=32)
    prompt = prompt_of(128)
    longer, half = (*prompt, *prompt_of(40, seed=1)), (*prompt[:64], *prompt_of(50, seed=2))
    turns = [("P", prompt), ("P and X", longer), ("half of P", half), ("P again", prompt), ("P and X again", longer)]
    cached = {}

    def run() -> None:
        while driver.core.has_work:
            for event in driver.step():
                if event.num_cached_tokens is not None:
                    cached[event.delta.request_id] = event.num_cached_tokens

    for name, ids in turns:
        driver.add(name, ids)
        run()
    together = [("of 96", (*prompt[:96], *prompt_of(9, seed=3))), ("of 30", (*prompt[:30], *prompt_of(70, seed=4)))]
    together.append(("all of P", (*prompt, *prompt_of(3, seed=5))))
    for name, ids in together:
        driver.add(name, ids)
    run()
    for name, ids in (*turns, *together):
        assert_same(driver, name, alone(loaded, ids))
        assert cached[name] < len(ids) and cached[name] % 16 == 0
    assert cached["P"] == 0
    if storage is StorageKind.PAGED:
        assert [cached[name] for name in ("P and X", "half of P", "P again")] == [128, 64, 112]
    else:  # blocks of half of P are there, and no state of any window at their end
        assert (cached["P and X"], cached["half of P"]) == (112, 0)
    driver.assert_idle()


# -- R045, R047, R048: recurrent layers themselves --------------------------------------------------------------------


@pytest.mark.parametrize("model_type", RECURRENT)
def test_r048_a_configuration_with_recurrent_layers_is_refused_by_its_name_whatever_its_time_steps(
    tmp_path: Path, model_type: str
) -> None:
    save_hf(tmp_path, "llama")
    steps = {"time_step_min": 0.001, "time_step_max": 0.1, "time_step_limit": [0.0, 1e9]}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": model_type} | steps))
    with pytest.raises(LoadError, match=rf"'{model_type}' is not supported; supported are llama"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("architecture", RECURRENT_IN_GGUF)
def test_r045_a_gguf_file_with_recurrent_layers_is_refused_by_its_name(tmp_path: Path, architecture: str) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", architecture)
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(LoadError, match=f"'{architecture}' is not supported; supported are llama"):
        open_checkpoint(tmp_path / "m.gguf")
