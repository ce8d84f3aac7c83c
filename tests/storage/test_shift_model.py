"""Decoding past the context, by a whole model, against one masked forward in float64 of what each step could see."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from octavo.config import EngineConfig
from octavo.engine.loaded_model import load_model, plan_model
from octavo.engine.model_runner import ModelRunner
from octavo.kernels import reference
from tests.storage.shifted_sequence import Bookkeeping
from tests.tiny_models import save_hf, save_tokenizer

CONTEXT, KEEP, PROMPT, LENGTH = 64, 4, 40, 150
LLAMA3 = {
    "rope_theta": 5e5,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
CASES = {
    "llama": ("llama", {}),
    "llama3-scaling": ("llama", {"rope_parameters": LLAMA3}),
    "yarn-scaling": ("llama", {"rope_parameters": YARN}),
    "sliding-windows": ("mistral", {"sliding_window": 50}),
}


@pytest.fixture(scope="module", params=CASES)
def models(request, tmp_path_factory):
    """The transformers model in float64, and ours over the same files."""
    family, overrides = CASES[request.param]
    path = tmp_path_factory.mktemp("model")
    theirs = save_hf(path, family, **overrides)
    save_tokenizer(path)
    config = EngineConfig(dtype="float32", device="cpu", max_num_seqs=1)
    return theirs.double(), load_model(plan_model(path, config), config)


@dataclass
class History:
    """What each token could see when it was computed, and by how much its rotary position lay below its index."""

    token_ids: torch.Tensor
    visible: torch.Tensor = field(default_factory=lambda: torch.zeros(LENGTH, LENGTH, dtype=torch.bool))
    offset: torch.Tensor = field(default_factory=lambda: torch.zeros(LENGTH, dtype=torch.int64))

    def note(self, first: int, shown: list[int], offset: int) -> None:
        for token in range(first, shown[-1] + 1):
            self.visible[token, [other for other in shown if other <= token]] = True
            self.offset[token] = offset


def decode(loaded, drop):
    """Logits [LENGTH - PROMPT + 1, V] of the last prompt token and all after it, and what each could see."""
    generator = torch.Generator().manual_seed(0)
    history = History(torch.randint(3, 380, (LENGTH,), generator=generator))
    layout = loaded.model.kv_layout(loaded.plan.config)
    book = Bookkeeping(layout, KEEP, max_context=CONTEXT)
    book.cache.set_rotation(loaded.model.inverse_frequencies)
    runner = ModelRunner(loaded, book.cache)
    logits, shifts = [], 0
    for first, count in ((0, PROMPT), *((at, 1) for at in range(PROMPT, LENGTH))):
        if len(book.visible()) + count > CONTEXT:
            book.drop(drop)
            shifts += 1
        logits.append(runner.execute(book.batch(history.token_ids[first : first + count].tolist())))
        history.note(first, book.visible(), book.state.rope_offset)
    assert shifts >= 2
    return torch.cat(logits), history


@torch.no_grad()
def define(theirs, history, window):
    """Logits [LENGTH, V] float64. Kept tokens stay where they were; all others lie as far apart as their indices."""
    token = torch.arange(LENGTH)
    inv_freq = theirs.model.rotary_emb.inv_freq.double()
    magnitude = theirs.model.rotary_emb.attention_scaling
    kept = token[None, :] < KEEP
    distance = token[:, None] - token[None, :] - torch.where(kept, history.offset[:, None], 0)
    hidden = ~history.visible if window is None else ~history.visible | (distance >= window)
    x = theirs.model.embed_tokens(history.token_ids)
    for layer in theirs.model.layers:
        attention, h = layer.self_attn, layer.input_layernorm(x)
        dim, groups = attention.head_dim, attention.num_key_value_groups
        q, k, v = (proj(h).view(LENGTH, -1, dim) for proj in (attention.q_proj, attention.k_proj, attention.v_proj))
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        keys = reference.rotate(k, token, inv_freq) * magnitude
        to_kept = reference.rotate(q, token - history.offset, inv_freq) * magnitude
        to_others = reference.rotate(q, token, inv_freq) * magnitude
        scores = torch.where(
            kept, torch.einsum("thd,shd->hts", to_kept, keys), torch.einsum("thd,shd->hts", to_others, keys)
        )
        weights = (scores * attention.scaling).masked_fill(hidden, float("-inf")).softmax(-1)
        x = x + attention.o_proj(torch.einsum("hts,shd->thd", weights, v).reshape(LENGTH, -1))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return theirs.lm_head(theirs.model.norm(x))


@pytest.mark.parametrize("drop", [16, 32])
def test_logits_past_the_context_are_those_of_one_masked_forward(models, drop):
    theirs, loaded = models
    window = loaded.plan.config.sliding_window if theirs.config.model_type == "mistral" else None
    got, history = decode(loaded, drop)
    expected = define(theirs, history, window)[PROMPT - 1 :]
    assert (got - expected).abs().max() < 2e-3
    # Neither what is seen nor where it lies is of no consequence.
    history.visible = torch.ones_like(history.visible).tril()
    assert (got - define(theirs, history, window)[PROMPT - 1 :]).abs().max() > 0.05
    history.offset.zero_()
    assert (got - define(theirs, history, window)[PROMPT - 1 :]).abs().max() > 0.05


def test_before_the_first_shift_the_definition_is_the_model(models):
    theirs, loaded = models
    window = loaded.plan.config.sliding_window if theirs.config.model_type == "mistral" else None
    history = History(torch.arange(LENGTH) + 10)
    history.visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    with torch.no_grad():
        expected = theirs(history.token_ids[None]).logits[0]
    assert (define(theirs, history, window) - expected).abs().max() < 1e-4
