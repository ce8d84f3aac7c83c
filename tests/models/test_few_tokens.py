"""All layers in one call of the compiled kernels: bit for bit what the layers give one by one, whoever is served."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from octavo.engine.model_runner import ModelRunner
from octavo.kernels.cpu import library
from octavo.kernels.cpu.blocks import MOST_TOKENS, CompiledBlocks
from octavo.kernels.cpu.linear import PackedAffine
from octavo.layers.few_tokens import FewTokens
from octavo.step_batch import StorageKind
from tests.engine.tiny_engines import Driver, open_model, prompt_of
from tests.tiny_models import save_gguf, tiny_model

pytestmark = pytest.mark.skipif(library.load().functions is None, reason="no compiled kernels here")
FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")


@pytest.fixture(scope="module", params=FAMILIES)
def loaded(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model.gguf"
    return open_model(save_gguf(path, tiny_model(request.param, sliding_window=16), request.param, "Q8_0"))


@pytest.fixture
def calls(monkeypatch):
    """Tokens of every call that took all layers."""
    counted: list[int] = []
    run = CompiledBlocks.run

    def count(self, x, rotations, call):
        counted.append(len(x))
        return run(self, x, rotations, call)

    monkeypatch.setattr(CompiledBlocks, "run", count)
    return counted


def answers(loaded, storage):
    """Of a prompt longer than the window and a call, and of two that join while it decodes."""
    driver = Driver(loaded, storage, max_num_seqs=3)
    driver.add("long", prompt_of(MOST_TOKENS + 40))
    while len(driver.outcomes["long"].token_ids) < 3:
        driver.step()
    driver.add("short", prompt_of(7))
    driver.add("other", prompt_of(30, seed=1))
    return driver.run()


@pytest.mark.parametrize("storage", list(StorageKind))
def test_layers_in_one_call_give_what_they_give_one_by_one(loaded, storage, calls, monkeypatch):
    together = answers(loaded, storage)
    assert {1, 3} <= set(calls)  # steps of one row and of three
    assert max(calls) <= MOST_TOKENS
    monkeypatch.setattr(FewTokens, "run", lambda self, x, rotations, cache: None)
    calls.clear()
    apart = answers(loaded, storage)
    assert not calls
    for name, outcome in together.items():
        assert outcome.token_ids == apart[name].token_ids
        assert torch.equal(torch.stack(outcome.logits), torch.stack(apart[name].logits))


@pytest.mark.parametrize("chunk", [1000, 70])
def test_the_last_layer_past_its_keys_is_computed_for_sampled_tokens_alone(loaded, chunk, monkeypatch):
    def logits():
        driver = Driver(loaded, max_num_seqs=3, prefill_chunk=chunk)
        for i, length in enumerate((100, 90, 75)):
            driver.add(str(i), prompt_of(length, seed=i))
        return torch.cat([torch.stack(outcome.logits) for _, outcome in sorted(driver.run().items())])

    products: list[int] = []
    multiply = PackedAffine.multiply
    monkeypatch.setattr(PackedAffine, "multiply", lambda self, x: (products.append(len(x)), multiply(self, x))[1])
    of_sampled = logits()
    last = [after for before, after in pairwise(products) if before > MOST_TOKENS >= after]
    assert last == [0 if chunk == 70 else 3], products
    monkeypatch.setattr(
        ModelRunner, "every_state", property(lambda self: True, lambda self, value: None), raising=False
    )
    assert torch.equal(logits(), of_sampled)


def test_a_model_with_other_weights_among_them_takes_its_layers_one_by_one(tmp_path, calls):
    model = tiny_model("llama")
    driver = Driver(open_model(save_gguf(tmp_path / "model.gguf", model, "llama", "F16")))
    driver.add("only", prompt_of(5))
    assert driver.run()["only"].finish_reason is not None
    assert not calls


def test_a_model_whose_paged_rows_are_gathered_takes_its_layers_one_by_one(loaded, calls, monkeypatch):
    monkeypatch.setenv("OCTAVO_PAGED_ATTENTION_NATIVE", "0")
    gathered = answers(loaded, StorageKind.PAGED)
    assert not calls
    monkeypatch.delenv("OCTAVO_PAGED_ATTENTION_NATIVE")
    for name, outcome in answers(loaded, StorageKind.PAGED).items():
        assert torch.equal(torch.stack(outcome.logits), torch.stack(gathered[name].logits))
    assert calls
