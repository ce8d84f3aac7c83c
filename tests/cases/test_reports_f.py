"""Reports of kind f, K/V in fewer bits, replayed from start-up to answers: supported and close, or refused at once."""

from __future__ import annotations

import json

import pytest
import torch

from octavo.config import EngineConfig
from octavo.engine.loaded_model import plan_model
from octavo.errors import InvalidRequest, LoadError
from octavo.step_batch import StorageKind
from tests.combinations import by_day
from tests.engine.tiny_engines import STORAGES, Driver, open_model, prompt_of
from tests.kv_memory import held_bytes
from tests.tiny_models import save_hf

# Root mean square error of the logits over their standard deviation; of unrelated logits it is 1.4. These random
# models multiply what a codec rounds; on real ones it is a tenth of this.
MOST_ERROR = {"q8_0": 0.05, "q4_0": 0.6, "turbo4": 0.6, "k=q8_0,v=q4_0": 0.6, "k=f16,v=q8_0": 0.05}
LENGTHS = (17, 40, 70, 100)
WINDOW = 16

both_storages = pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)
every_choice = pytest.mark.parametrize("choice", MOST_ERROR)


def as_id(value):
    return value.value if isinstance(value, StorageKind) else None


def serve(loaded, storage, choice):
    """Answers to prompts longer than a block, and then to the same ones once more."""
    driver = Driver(loaded, storage, kv_dtype=choice, max_num_seqs=3, max_context=128)
    for time in ("first", "later"):
        for length in LENGTHS:
            driver.add(f"{time} {length}", prompt_of(length))
        driver.run()
    driver.assert_idle()
    return driver


def relative_error(driver: Driver, exact: Driver) -> float:
    """Of the logits of each answer up to its first token that differs."""
    ours, theirs = [], []
    for name, outcome in driver.outcomes.items():
        pairs = zip(outcome.token_ids, exact.outcomes[name].token_ids, strict=True)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(outcome.token_ids) - 1)
        ours += outcome.logits[: same + 1]
        theirs += exact.outcomes[name].logits[: same + 1]
    difference = torch.stack(ours) - torch.stack(theirs)
    return float(difference.pow(2).mean().sqrt() / torch.stack(theirs).std())


# -- R034: head sizes ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_head_size(tmp_path_factory):
    """A tiny model of that head size: its directory and its weights in float32, written and loaded once."""
    made = {}

    def of(head_dim):
        if head_dim not in made:
            path = tmp_path_factory.mktemp(f"heads_{head_dim}")
            save_hf(path, "llama", head_dim=head_dim)
            made[head_dim] = path, open_model(path, "float32")
        return made[head_dim]

    return of


@pytest.mark.parametrize(("storage", "head_dim"), by_day(STORAGES, (80, 96, 112, 160, 256)), ids=as_id)
def test_r034_every_codec_serves_these_head_sizes_with_a_small_error(of_head_size, head_dim, storage):
    _, loaded = of_head_size(head_dim)
    exact = serve(loaded, storage, "f32")
    for choice, most in MOST_ERROR.items():
        error = relative_error(serve(loaded, storage, choice), exact)
        assert 1e-3 < error < most, choice


@pytest.mark.parametrize("storage", ["dense", "paged"])
@pytest.mark.parametrize(
    ("choice", "refused"),
    [
        ("q8_0", "q8_0 for k"),
        ("q4_0", "q4_0 for k"),
        ("turbo4", "turbo4 for k"),
        ("k=q4_0,v=f16", "q4_0 for k"),
        ("k=f16,v=q8_0", "q8_0 for v"),
    ],
)
def test_r034_a_head_size_of_72_is_refused_at_start_up_with_what_can_be_chosen(
    of_head_size, octavo, choice, refused, storage
):
    path, _ = of_head_size(72)
    done = octavo("generate", "-m", path, "-p", "The harbour", "--kv-dtype", choice, "--storage", storage)
    assert done.status != 0
    assert refused in done.error and "72 elements" in done.error
    with pytest.raises(InvalidRequest, match="72 elements") as caught:
        plan_model(path, EngineConfig(kv_dtype=choice, storage=storage, device="cpu", threads=1))
    able = str(caught.value).rpartition("choose one of ")[2].split(", ")
    assert able == ["auto", "f32", "f16", "bf16"]


@both_storages
def test_r034_what_the_refusal_of_72_names_serves_it(of_head_size, storage):
    _, loaded = of_head_size(72)
    exact = serve(loaded, storage, "f32")
    for choice in ("auto", "f16", "bf16"):
        assert relative_error(serve(loaded, storage, choice), exact) < 0.02, choice


# -- R035: layers with windows ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("storage", "choice"), by_day(STORAGES, tuple(MOST_ERROR)), ids=as_id)
def test_r035_prompts_beyond_the_window_are_answered_the_first_time_and_later(load, choice, storage):
    loaded = load("gemma3")
    assert min(LENGTHS) > WINDOW
    driver = serve(loaded, storage, choice)
    for length in LENGTHS:
        first, later = (driver.outcomes[f"{time} {length}"] for time in ("first", "later"))
        assert first.finish_reason == "length" and len(first.token_ids) == 12
        assert torch.equal(torch.stack(first.logits), torch.stack(later.logits))
    assert relative_error(driver, serve(loaded, storage, "f32")) < MOST_ERROR[choice] / 2


@pytest.mark.parametrize("storage", ["dense", "paged"])
@every_choice
def test_r035_inspect_says_what_each_kind_of_layer_takes_and_the_engine_takes_it(
    directory, load, octavo, choice, storage
):
    arguments = ("--kv-dtype", choice, "--storage", storage, "--parallel", 3, "--max-context", 128, "--json")
    done = octavo("inspect", directory("gemma3"), "--dtype", "float32", *arguments)
    assert done.status == 0
    said = json.loads(done.out)
    driver = serve(load("gemma3", "float32"), STORAGES[[s.value for s in STORAGES].index(storage)], choice)
    k, v = driver.core.loaded.plan.codecs
    assert said["kv_dtype"] == {"k": k.name, "v": v.name}
    groups = said["memory"]["groups"]
    assert {group["kind"]: group["window"] for group in groups} == {"sliding": WINDOW, "full": None}
    heads, head_dim = 2, 32
    for group in groups:
        assert group["bytes_per_token"] == group["layers"] * heads * (
            k.bytes_per_row(head_dim) + v.bytes_per_row(head_dim)
        )
    for_snapshots = sum(group["snapshot_bytes"] for group in groups)
    assert held_bytes(driver.core.runner.cache) == said["memory"]["kv_bytes"] - for_snapshots
    assert driver.core.pool.prefix.num_snapshot_bytes <= for_snapshots


@pytest.mark.parametrize("model_type", ["mamba2", "jamba", "zamba2"])
def test_r035_a_model_with_recurrent_layers_is_refused_before_anything_is_read(tmp_path, octavo, model_type):
    save_hf(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": model_type}))
    with pytest.raises(LoadError, match=rf"{model_type}.*not supported; supported are .*llama"):
        plan_model(tmp_path, EngineConfig(kv_dtype="q8_0", device="cpu", threads=1))
    done = octavo("inspect", tmp_path, "--kv-dtype", "q8_0")
    assert done.status != 0 and model_type in done.error
