"""Every family against Hugging Face transformers, on tiny random checkpoints in float32."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from octavo.config import EngineConfig
from octavo.engine.loaded_model import load_model, plan_model
from octavo.engine.model_runner import ModelRunner
from octavo.kernels.rows import HeadWeights, Rotation
from octavo.models.inputs import ForwardInputs
from octavo.step_batch import StepBatch, StorageKind
from tests.schedules import HandScheduler, random_shares
from tests.tiny_models import FAMILIES, save_gguf, save_hf, save_tokenizer

TOLERANCE = 1e-4
LENGTHS = (50, 9, 131, 1)
LLAMA3 = {
    "rope_theta": 5e5,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_theta": 1e4, "rope_type": "linear", "factor": 3.0}
CASES = {
    **{family: (family, {}) for family in FAMILIES},
    "llama-untied": ("llama", {"tie_word_embeddings": False}),
    "llama-mha": ("llama", {"num_attention_heads": 4, "num_key_value_heads": 4}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR}),
    "mistral-window": ("mistral", {"sliding_window": 20}),
    "gemma3-softcap": ("gemma3", {"final_logit_softcapping": 5.0}),
}


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request, tmp_path_factory):
    """(transformers model, our runner's parts) over the same files."""
    family, overrides = CASES[request.param]
    path = tmp_path_factory.mktemp(request.param.replace("-", "_"))
    theirs = save_hf(path, family, max_position_embeddings=512, **overrides)
    save_tokenizer(path)
    return theirs, open_tiny(path)


def open_tiny(path):
    config = EngineConfig(dtype="float32", device="cpu", max_num_seqs=len(LENGTHS))
    return load_model(plan_model(path, config), config)


def token_ids(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 380, (length,), generator=generator).tolist() for length in LENGTHS]


@torch.no_grad()
def expected_logits(theirs, ids):
    """In float64: what remains is our own error alone."""
    return copy.deepcopy(theirs).double()(torch.tensor([ids])).logits[0]


def all_logits(loaded, sequences, steps, storage):
    """Logits [S, V] of each sequence after following steps of (slot, count): every position is sampled."""
    layout = loaded.model.kv_layout(loaded.plan.config)
    scheduler = HandScheduler(layout, storage, max_seqs=len(sequences), max_context=512)
    hidden = [[] for _ in sequences]
    with torch.inference_mode():
        for shares in steps:
            ids = [(slot, sequences[slot][scheduler.written[slot] : scheduler.written[slot] + n]) for slot, n in shares]
            batch = scheduler.batch(ids)
            scheduler.cache.plan(batch)
            positions = [p for row in batch.rows for p in range(row.start, row.stop)]
            packed = [token for row in batch.rows for token in row.token_ids]
            inputs = ForwardInputs(torch.tensor(packed), torch.tensor(positions), 512)
            out = loaded.model.forward(inputs, scheduler.cache)
            for (slot, _), part in zip(shares, out.split([n for _, n in shares]), strict=True):
                hidden[slot].append(loaded.model.logits(part))
    return [torch.cat(parts) for parts in hidden]


def schedules():
    return {
        "prefill": [[(slot, n)] for slot, n in enumerate(LENGTHS)],
        "chunks of 7": [[(slot, min(7, n - at))] for slot, n in enumerate(LENGTHS) for at in range(0, n, 7)],
        "decode": [[(slot, 1)] for slot, n in enumerate(LENGTHS) for _ in range(n)],
        "ragged batch": [[(slot, n) for slot, n in enumerate(LENGTHS)]],
        "mixed": random_shares(LENGTHS, seed=4, longest=30),
    }


@pytest.mark.parametrize("schedule", schedules())
@pytest.mark.parametrize("storage", list(StorageKind), ids=lambda s: s.value)
def test_logits_equal_those_of_transformers(case, storage, schedule):
    theirs, loaded = case
    sequences = token_ids()
    got = all_logits(loaded, sequences, schedules()[schedule], storage)
    for ids, logits in zip(sequences, got, strict=True):
        expected = expected_logits(theirs, ids)
        if len(ids) > 1:
            assert expected.std() >= 0.9
        assert (logits - expected).abs().max() <= TOLERANCE


def unrotated(self, position, limit):
    shape = limit, 2 * len(self.inverse_frequencies)
    return Rotation(torch.ones(shape), torch.zeros(shape), position)


MUTATIONS = {
    "rope": ("octavo.layers.rotary.Rotary.at", unrotated),
    "norms": ("octavo.layers.norm.RMSNorm.after_", lambda self, x, y, inner=None: x if y is None else x.add_(y)),
}


@pytest.mark.parametrize("part", MUTATIONS)
def test_leaving_out_a_part_is_noticed(case, part, monkeypatch):
    theirs, loaded = case
    monkeypatch.setattr(*MUTATIONS[part])
    ids = token_ids()[0]
    got = all_logits(loaded, [ids], [[(0, len(ids))]], StorageKind.DENSE)[0]
    assert not (got - expected_logits(theirs, ids)).abs().max() <= 100 * TOLERANCE


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_leaving_out_the_query_and_key_norms_is_noticed(family, tmp_path):
    theirs = save_hf(tmp_path, family)
    save_tokenizer(tmp_path)
    loaded = open_tiny(tmp_path)
    for block in loaded.model._blocks:
        block._attention._weights = HeadWeights()
    ids = token_ids()[0]
    got = all_logits(loaded, [ids], [[(0, len(ids))]], StorageKind.DENSE)[0]
    assert not (got - expected_logits(theirs, ids)).abs().max() <= 100 * TOLERANCE


@pytest.mark.parametrize("scale", ["scores", "embeddings"])
def test_a_wrong_scale_is_noticed(scale, tmp_path, monkeypatch):
    theirs = save_hf(tmp_path, "gemma3")
    save_tokenizer(tmp_path)
    loaded = open_tiny(tmp_path)
    if scale == "embeddings":
        monkeypatch.setattr(loaded.model._embed, "_scale", 1.0)
    else:
        layout = [replace(spec, scale=1.0) for spec in loaded.model.kv_layout(loaded.plan.config)]
        monkeypatch.setattr(loaded.model, "kv_layout", lambda config: layout)
    ids = token_ids()[0]
    got = all_logits(loaded, [ids], [[(0, len(ids))]], StorageKind.DENSE)[0]
    assert not (got - expected_logits(theirs, ids)).abs().max() <= 100 * TOLERANCE


@pytest.mark.parametrize("heads", [(8, 2), (8, 8), (32, 4)], ids=lambda h: f"{h[0]}-{h[1]}")
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_gguf_file_gives_the_logits_of_its_original(family, heads, tmp_path):
    num_heads, num_kv_heads = heads
    theirs = save_hf(
        tmp_path / "hf",
        family,
        hidden_size=128,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=128 // num_heads,
    )
    path = save_gguf(tmp_path / "model.gguf", theirs, family)
    ids = token_ids()[2]
    got = all_logits(open_tiny(path), [ids], [[(0, len(ids))]], StorageKind.PAGED)[0]
    assert (got - expected_logits(theirs, ids)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("key", ["rope_type", "type", "gguf"])
def test_llama3_scaling_holds_far_beyond_the_original_context(key, tmp_path):
    import json

    rope = {**LLAMA3, "original_max_position_embeddings": 8192}
    theirs = save_hf(tmp_path / "hf", "llama", max_position_embeddings=32768, rope_parameters=rope)
    save_tokenizer(tmp_path / "hf")
    path = tmp_path / "hf"
    if key == "gguf":
        from octavo.layers.rope_scaling import RopeScaling
        from octavo.layers.rotary import rotary_frequencies

        config = theirs.config
        head_dim = config.hidden_size // config.num_attention_heads
        scaled, _ = rotary_frequencies(head_dim, 5e5, RopeScaling("llama3", 8.0, 1.0, 4.0, 8192), 32768)
        plain, _ = rotary_frequencies(head_dim, 5e5, RopeScaling(), 32768)
        path = save_gguf(tmp_path / "model.gguf", theirs, "llama", extra={"rope_freqs.weight": plain / scaled})
    elif key == "type":
        file = path / "config.json"
        content = json.loads(file.read_text())
        scaling = content.pop("rope_parameters")
        content["rope_theta"] = scaling.pop("rope_theta")
        scaling["type"] = scaling.pop("rope_type")
        content["rope_scaling"] = scaling
        file.write_text(json.dumps(content))
    loaded = open_tiny(path)
    x = torch.randn(3, 2, loaded.plan.config.head_dim)
    positions = torch.tensor([10, 5000, 20000])
    cos, sin = theirs.model.rotary_emb(x, positions[None])
    rotation = loaded.model._rotary.at(positions, 20001)
    assert torch.allclose(rotation.cos, cos[0], atol=2e-3)
    half = cos.shape[-1] // 2
    assert torch.allclose(rotation.sin[:, half:], sin[0, :, half:], atol=2e-3)
    ids = token_ids()[0]
    offset = 20000
    with torch.no_grad():
        expected = theirs(torch.tensor([ids]), position_ids=torch.arange(offset, offset + len(ids))[None]).logits[0]
    layout = loaded.model.kv_layout(loaded.plan.config)
    scheduler = HandScheduler(layout, StorageKind.DENSE, max_seqs=1, max_context=512)
    with torch.inference_mode():
        scheduler.cache.plan(scheduler.batch([(0, ids)]))
        positions = torch.arange(offset, offset + len(ids))
        inputs = ForwardInputs(torch.tensor(ids), positions, offset + len(ids))
        hidden = loaded.model.forward(inputs, scheduler.cache)
        got = loaded.model.logits(hidden)
    assert (got - expected).abs().max() <= 20 * TOLERANCE  # angles of 20,000 radians in float32


def test_the_runner_gives_logits_of_sampled_rows_only(case):
    _, loaded = case
    layout = loaded.model.kv_layout(loaded.plan.config)
    scheduler = HandScheduler(layout, StorageKind.PAGED, max_seqs=4, max_context=512)
    runner = ModelRunner(loaded, scheduler.cache)
    sequences = token_ids()
    rows = tuple(scheduler.row(slot, ids, sample=slot in (1, 2)) for slot, ids in enumerate(sequences))
    logits = runner.execute(StepBatch(rows))
    alone = all_logits(loaded, sequences, [[(slot, n)] for slot, n in enumerate(LENGTHS)], StorageKind.PAGED)
    for row, slot in enumerate((1, 2)):
        assert torch.allclose(logits[row], alone[slot][-1], atol=TOLERANCE)
    assert len(logits) == 2
