"""Requests that start from a snapshot get the bits they would have had without; those that cannot change nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.cache.refusals import BlocksExhausted
from octavo.engine.hand_off import HandOff, model_identity
from octavo.errors import CapacityError, InvalidRequest
from octavo.outputs import TextDelta
from octavo.request import Request
from octavo.step_batch import StorageKind
from octavo.storage.snapshot import KVSnapshot
from tests.conftest import weights_path
from tests.engine.tiny_engines import GREEDY_12, STORAGES, Driver, Outcome, alone, open_model, prompt_of

CASES = ["llama", "gemma3", "mistral-window-5", "llama-q4_0"]
PROMPT = prompt_of(150)


def snapshot_of(loaded, tokens, storage=StorageKind.DENSE, **settings) -> KVSnapshot:
    """K/V of `tokens`, exported between two steps of an engine of its own."""
    driver = Driver(loaded, storage, **settings)
    driver.add("donor", tokens)
    while not driver.outcomes["donor"].token_ids:
        driver.step()
    snapshot = driver.core.export("donor")
    assert snapshot.token_ids == tuple(tokens)
    return snapshot


def add(driver: Driver, request_id: str, prompt, hand_off: HandOff) -> None:
    driver.core.add(Request(request_id, tuple(prompt), GREEDY_12, 0), hand_off)
    driver.outcomes[request_id] = Outcome()


def assert_equal(found: Outcome, expected: Outcome) -> None:
    assert (found.token_ids, found.finish_reason) == (expected.token_ids, expected.finish_reason)
    assert all(torch.equal(left, right) for left, right in zip(found.logits, expected.logits, strict=True))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("source", STORAGES, ids=lambda s: s.value)
@pytest.mark.parametrize("target", STORAGES, ids=lambda s: s.value)
@pytest.mark.parametrize("length", [1, 16, 100, 149])
def test_a_request_goes_on_from_a_snapshot_with_the_bits_of_one_that_computed_all(load, case, source, target, length):
    loaded = load(case)
    snapshot = KVSnapshot.from_bytes(snapshot_of(loaded, PROMPT[:length], source).to_bytes())
    driver = Driver(loaded, target, block_size=32, max_num_seqs=2, prefill_chunk=30)
    computed = []
    forward = driver.core.runner.forward
    driver.core.runner.forward = lambda batch: (computed.append(batch.num_tokens), forward(batch))[1]
    add(driver, "a", PROMPT, HandOff(start=snapshot))
    driver.run()
    assert_equal(driver.outcomes["a"], alone(loaded, PROMPT))
    assert sum(computed) == len(PROMPT) - length + 11
    driver.assert_idle()


@pytest.mark.parametrize("kv_dtype", ["f32", "bf16", "k=q8_0,v=f16", "q4_0", "turbo4"])
def test_each_codec_goes_on_bit_for_bit(directory, kv_dtype):
    settings = {"threads": 1, "max_context": 512, "kv_dtype": kv_dtype, "dtype": "bfloat16"}
    dense = LLM(directory("gemma3"), storage="dense", max_num_seqs=1, **settings)
    paged = LLM(directory("gemma3"), storage="paged", block_size=64, **settings)
    saved = []
    *_, first = dense.stream(PROMPT, GREEDY_12, on_snapshot=saved.append)
    assert saved[0].token_ids == PROMPT + first.outputs[0].token_ids[:-1]
    longer = PROMPT + first.outputs[0].token_ids
    found = paged.generate([longer], GREEDY_12, snapshot=saved[0])[0]
    assert found.outputs[0].token_ids == dense.generate([longer], GREEDY_12)[0].outputs[0].token_ids
    assert (found.usage.prompt_tokens, found.usage.cached_tokens) == (162, 161)


@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)
def test_others_in_the_batch_notice_nothing_and_a_snapshot_serves_many(load, storage):
    loaded = load("gemma3")
    snapshot = snapshot_of(loaded, PROMPT[:70])
    driver = Driver(loaded, storage, max_num_seqs=3, max_batch_tokens=64, prefill_chunk=16)
    others = [prompt_of(length, 1) for length in (90, 3, 33)]
    for i, other in enumerate(others):
        driver.add(f"other {i}", other)
        add(driver, f"from {i}", (*PROMPT[:70], *other), HandOff(start=snapshot))
    driver.run()
    for i, other in enumerate(others):
        assert_equal(driver.outcomes[f"other {i}"], alone(loaded, other))
        assert_equal(driver.outcomes[f"from {i}"], alone(loaded, (*PROMPT[:70], *other)))
    driver.assert_idle()


def test_exporting_disturbs_neither_the_request_nor_its_neighbours(load):
    loaded = load("gemma3")
    driver = Driver(loaded, StorageKind.PAGED, max_num_seqs=2)
    prompts = {"a": PROMPT, "b": prompt_of(50, seed=1)}  # nothing in common, so both begin at once
    for name, prompt in prompts.items():
        driver.add(name, prompt)
    while driver.core.has_work:
        driver.step()
        for name in ("a", "b"):
            if driver.outcomes[name].finish_reason is None:
                covered = driver.core.export(name).token_ids
                given = (*prompts[name], *driver.outcomes[name].token_ids)
                assert covered == given[:-1]
    for name, prompt in prompts.items():
        assert_equal(driver.outcomes[name], alone(loaded, prompt))


def test_only_a_running_request_can_be_exported(load):
    driver = Driver(load(), max_num_seqs=1)
    driver.add("first", PROMPT)
    driver.add("second", PROMPT)
    driver.step()
    for name in ("second", "never"):
        with pytest.raises(InvalidRequest, match=f"request '{name}' does not run, so it has no K/V to export"):
            driver.core.export(name)
    driver.run()
    with pytest.raises(InvalidRequest, match="request 'first' does not run"):
        driver.core.export("first")


@pytest.mark.parametrize("case", ["llama", "mistral-window-5"])
@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)
@pytest.mark.parametrize("where", ["import", "model"])
def test_a_step_that_fails_is_made_again_with_the_same_bits(load, case, storage, where, monkeypatch):
    loaded = load(case)
    snapshot = snapshot_of(loaded, PROMPT[:70])
    driver = Driver(loaded, storage, max_num_seqs=1, prefill_chunk=40)
    add(driver, "a", PROMPT, HandOff(start=snapshot))
    target = (driver.core.runner.cache, "import_") if where == "import" else (driver.core.runner, "forward")
    work = getattr(*target)

    def fail(*arguments):
        work(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*target, fail)
        with pytest.raises(KeyboardInterrupt):
            driver.step()
    driver.run()
    assert_equal(driver.outcomes["a"], alone(loaded, PROMPT))
    driver.assert_idle()


@pytest.mark.parametrize("case", ["llama", "gemma3"])
@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)
def test_a_preempted_request_computes_again_what_it_brought(load, case, storage):
    loaded = load(case)
    driver = Driver(loaded, storage, max_num_seqs=1, prefill_chunk=40)
    add(driver, "a", PROMPT, HandOff(start=snapshot_of(loaded, PROMPT[:70])))
    for steps in (1, 4):
        for _ in range(steps):
            driver.step()
        driver.core._scheduler.preempt("a")
    driver.run()
    assert_equal(driver.outcomes["a"], alone(loaded, PROMPT))
    driver.core.pool.check_integrity()


def test_k_v_that_a_client_brings_reaches_no_other_request(load):
    """A checksum is no proof of origin: others compute, or take what was computed here."""
    loaded = load("gemma3")
    honest = snapshot_of(loaded, PROMPT[:100])
    rows = honest.groups[1].layers[0]
    forged = replace(rows, k={name: plane + 1 for name, plane in rows.k.items()})
    group = replace(honest.groups[1], layers=(forged, *honest.groups[1].layers[1:]))
    driver = Driver(loaded, max_num_seqs=3)
    add(driver, "forged", PROMPT, HandOff(start=replace(honest, groups=(honest.groups[0], group))))
    driver.run()
    assert not torch.equal(driver.outcomes["forged"].logits[0], alone(loaded, PROMPT).logits[0])
    for _ in range(2):  # the second time from the prefix cache, where there is one
        for name in ("same", "longer"):
            driver.add(name, PROMPT if name == "same" else (*PROMPT, 5))
        add(driver, "honest", PROMPT, HandOff(start=honest))
        driver.run()
        assert_equal(driver.outcomes["same"], alone(loaded, PROMPT))
        assert_equal(driver.outcomes["longer"], alone(loaded, (*PROMPT, 5)))
        assert_equal(driver.outcomes["honest"], alone(loaded, PROMPT))
    driver.core.pool.check_integrity()


def test_aborting_before_and_after_the_import_leaves_nothing(load):
    loaded = load("gemma3")
    snapshot = snapshot_of(loaded, PROMPT[:70])
    driver = Driver(loaded, max_num_seqs=1)
    add(driver, "a", PROMPT, HandOff(start=snapshot))
    add(driver, "b", PROMPT, HandOff(start=snapshot))
    driver.step()
    driver.core.abort("b")
    driver.core.abort("a")
    driver.assert_idle()


# -- refusals: one line each, nothing queued, the next request is served -----------------------------------------


def refused(driver: Driver, prompt, snapshot: KVSnapshot, message: str, error=InvalidRequest) -> None:
    with pytest.raises(error, match=message) as refusal:
        add(driver, "a", prompt, HandOff(start=snapshot))
    assert "\n" not in str(refusal.value)
    driver.assert_idle()
    driver.add("next", PROMPT[:20])
    assert driver.run()["next"].finish_reason == "length"
    driver.assert_idle()


def test_a_prompt_that_differs_is_refused_with_the_first_difference(load):
    snapshot = snapshot_of(load(), PROMPT[:70])
    other = (*PROMPT[:42], PROMPT[42] + 1, *PROMPT[43:])
    message = (
        f"has token {PROMPT[42]} at position 42 and the prompt has {PROMPT[42] + 1}; the prompt must begin with all 70"
    )
    refused(Driver(load()), other, snapshot, message)


@pytest.mark.parametrize("length", [1, 69, 70])
def test_a_prompt_that_does_not_go_on_is_refused(load, length):
    snapshot = snapshot_of(load(), PROMPT[:70])
    refused(Driver(load()), PROMPT[:length], snapshot, rf"has 70 tokens and the prompt {length}; the prompt must go on")


def test_a_snapshot_longer_than_the_context_or_the_pool_is_refused(load):
    snapshot = snapshot_of(load(), PROMPT[:140])
    refused(Driver(load(), max_context=100), PROMPT, snapshot, "the prompt has 150 tokens; the context holds 100")
    small = Driver(load(), max_num_seqs=1, num_kv_blocks=8)
    refused(small, PROMPT, snapshot, "the prompt has 150 tokens; the K/V memory holds", CapacityError)


def test_another_model_is_refused_although_its_shape_is_the_same(load, directory, tmp_path_factory):
    from tests.tiny_models import save_hf

    path = tmp_path_factory.mktemp("other") / "twin"
    save_hf(path, "llama", seed=1)
    twin = open_model(path)
    message = (
        r"was taken from 'twin', and this model, 'llama.*', has another config or other weights; make the snapshot"
    )
    refused(Driver(load()), PROMPT, snapshot_of(twin, PROMPT[:70]), message)


def test_k_v_of_another_compute_dtype_is_refused_with_what_to_choose(load):
    snapshot = replace(snapshot_of(load("llama", "float32"), PROMPT[:70]), codecs=("f16", "f16"))
    message = "was computed in float32 with .* weights, and this engine has bfloat16 with .*; choose the same dtype"
    refused(Driver(load()), PROMPT, snapshot, message)


def test_another_codec_is_refused_with_the_setting_that_takes_it(load):
    snapshot = replace(snapshot_of(load(), PROMPT[:70]), codecs=("f32", "f16"))
    refused(
        Driver(load()), PROMPT, snapshot, r"k=f32,v=f16 and this engine stores k=f16,v=f16; choose kv dtype k=f32,v=f16"
    )


def test_a_shifted_context_is_refused(load):
    snapshot = replace(snapshot_of(load(), PROMPT[:70]), rope_offset=16)
    refused(Driver(load()), PROMPT, snapshot, "was taken after a context shift of 16 tokens")


def test_a_fingerprint_is_the_same_after_loading_again_and_by_any_path(load, directory, tmp_path):
    first = model_identity(load())
    moved = tmp_path / "moved"
    moved.symlink_to(directory("llama"))
    again = model_identity(open_model(moved))
    assert (again.fingerprint, again.compute, again.name) == (first.fingerprint, first.compute, "moved")
    assert model_identity(load("llama-q4_0")).fingerprint != first.fingerprint


def test_blocks_that_run_out_on_admission_leave_the_request_waiting(load, monkeypatch):
    """No pool that admits a request lacks its blocks; should one, nothing is lost."""
    driver = Driver(load(), max_num_seqs=1)
    add(driver, "a", PROMPT, HandOff(start=snapshot_of(load(), PROMPT[:70])))

    def refuse(handle, n):
        raise BlocksExhausted("none are left")

    with monkeypatch.context() as patch:
        patch.setattr(driver.core.pool, "append", refuse)
        with pytest.raises(BlocksExhausted):
            driver.step()
    driver.run()
    assert_equal(driver.outcomes["a"], alone(load(), PROMPT))
    driver.assert_idle()


# -- real models -------------------------------------------------------------------------------------------------


@pytest.mark.weights
@pytest.mark.parametrize(
    "alias",
    ["smollm2", pytest.param("gemma3", marks=pytest.mark.nightly), pytest.param("qwen05", marks=pytest.mark.nightly)],
)
def test_a_real_model_goes_on_from_a_file_in_the_middle_of_an_answer(alias, tmp_path):
    dense = LLM(weights_path(alias), threads=1, storage="dense", max_num_seqs=1, max_context=1024)
    prompt = dense.encode("The lighthouse keeper counted the ships that passed before noon. " * 50)[:560]
    whole = dense.generate([prompt], SamplingParams(max_tokens=24, ignore_eos=True))[0].outputs[0].token_ids
    count = 0
    for piece in dense.stream(prompt, SamplingParams(max_tokens=12, ignore_eos=True)):
        if isinstance(piece, TextDelta):
            count += len(piece.token_ids)
            if count == 6:
                dense.core.export(piece.request_id).save(tmp_path / "a.kv")
    paged = LLM(weights_path(alias), threads=1, storage="paged", block_size=64, max_num_seqs=2, max_context=1024)
    found = paged.generate(
        [prompt + whole[:12]],
        SamplingParams(max_tokens=12, ignore_eos=True),
        snapshot=KVSnapshot.load(tmp_path / "a.kv"),
    )[0]
    assert found.outputs[0].token_ids == whole[12:]
    assert found.usage.cached_tokens == len(prompt) + 5
