"""Reports of kind g, GGUF files, replayed: the ids and the logits of the original, and nothing of a damaged file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from octavo.errors import LoadError
from octavo.models.loaders import open_checkpoint
from octavo.step_batch import StorageKind
from octavo.tokenizer import Tokenizer
from tests.models.test_families import TOLERANCE, all_logits, expected_logits, open_tiny
from tests.tiny_models import VOCAB_SIZE, save_gguf, save_hf, tiny_model
from tests.tokenizer.tiny_tokenizers import byte_level_metadata

# -- R041: the words that a tokenizer cuts text into ------------------------------------------------------------------

WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
# What the tokenizer.json of the models that these names stand for has as its pre_tokenizer.
PUBLISHED: dict[str, pre_tokenizers.PreTokenizer] = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "qwen2": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORD + r"\p{N}" + REST), "isolated"), BYTES]),
    "llama-bpe": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORD + r"\p{N}{1,3}" + REST), "isolated"), BYTES]),
}
SOURCE = (Path(__file__).read_text(encoding="utf-8") * 3)[:10_000]
PROBES = [
    "p->next = q => r", "f(x):\n    return (x):\n", "12345", "1 22 333 4444 55555 3.14159", "  leading", "trailing   ",
    "\ttab\t\ttabs", "line\r\nline\r\n\r\n", "I'm you're they'LL don't CAN'T 'tis", "naïve café Grüße señor",
    "東京 的 你好，世界。안녕하세요", "🚀🙂 👩‍👩‍👧 ok", " \n \n\n  x", "", " ", "a\u00a0b\u3000c", SOURCE,
]  # fmt: skip


@pytest.fixture(scope="module", params=PUBLISHED)
def both(request: pytest.FixtureRequest) -> tuple[tokenizers.Tokenizer, Tokenizer]:
    """A tokenizer that learnt its merges from the probes, and ours of its GGUF metadata."""
    theirs = tokenizers.Tokenizer(models.BPE())
    theirs.pre_tokenizer, theirs.decoder = PUBLISHED[request.param], decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=2000, min_frequency=1, initial_alphabet=alphabet, show_progress=False)
    theirs.train_from_iterator(PROBES * 2, trainer)
    content = json.loads(theirs.to_str())["model"]
    texts = sorted(content["vocab"], key=content["vocab"].__getitem__)
    metadata = byte_level_metadata(
        pre=request.param, tokens=texts, token_type=[1] * len(texts), merges=[" ".join(m) for m in content["merges"]],
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return theirs, Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize("text", PROBES, ids=lambda text: repr(text[:12]))
def test_r041_a_gguf_tokenizer_gives_the_ids_of_the_original(
    both: tuple[tokenizers.Tokenizer, Tokenizer], text: str
) -> None:
    theirs, ours = both
    expected = theirs.encode(text).ids
    assert ours.encode(text, add_special_tokens=False) == expected
    assert ours.decode(expected) == text


def test_r041_these_pre_tokenisers_cut_the_probes_in_different_ways() -> None:
    cuts = {name: [str(each.pre_tokenize_str(text)) for text in PROBES] for name, each in PUBLISHED.items()}
    assert all(cuts[one] != cuts[other] for one in cuts for other in cuts if one != other)


# -- R044: where the head is the embedding ----------------------------------------------------------------------------


def logits_of(path: Path, ids: list[int]) -> torch.Tensor:
    return all_logits(open_tiny(path), [ids], [[(0, len(ids))]], StorageKind.PAGED)[0]


def quantised_embedding() -> tuple[np.ndarray, torch.Tensor]:
    """Rows of Q6_K [V, 210] and what they decode to [V, 256]."""
    kind = gguf.GGMLQuantizationType.Q6_K
    blocks = np.random.default_rng(0).integers(0, 256, (VOCAB_SIZE, 210), dtype=np.uint8)
    blocks[:, 208:] = np.full((VOCAB_SIZE, 1), 0.001, np.float16).view(np.uint8)
    return blocks, torch.from_numpy(np.array(gguf.quants.dequantize(blocks, kind)))


@pytest.mark.parametrize("head", ["absent", "duplicate", "its own"])
@pytest.mark.parametrize("quantised", [False, True], ids=["float32", "Q6_K"])
def test_r044_logits_come_from_the_head_that_the_file_has_or_else_from_the_embedding(
    tmp_path: Path, head: str, quantised: bool
) -> None:
    tied = head != "its own"
    theirs = tiny_model("llama", hidden_size=256, num_attention_heads=4, head_dim=64, tie_word_embeddings=tied)
    raw: dict[str, Any] = {}
    if quantised:
        blocks, decoded = quantised_embedding()
        raw = {"token_embd.weight": (blocks, gguf.GGMLQuantizationType.Q6_K)}
        with torch.no_grad():
            theirs.model.embed_tokens.weight.copy_(decoded)
    extra = {"output.weight": theirs.model.embed_tokens.weight.detach().clone()} if head == "duplicate" else {}
    path = save_gguf(tmp_path / "model.gguf", theirs, "llama", raw=raw, extra=extra)
    ids = list(range(5, 45))
    expected = expected_logits(theirs, ids)
    error = (logits_of(path, ids) - expected).abs().max()
    assert error <= TOLERANCE * max(1.0, float(expected.std()))


def test_r044_a_directory_that_says_untied_and_has_no_head_is_refused_by_the_tensors_name(tmp_path: Path) -> None:
    save_hf(tmp_path, "llama", tie_word_embeddings=True)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tie_word_embeddings": False}))
    with pytest.raises(LoadError, match=r"'tie_word_embeddings' is false, but tensor 'lm_head\.weight' is missing"):
        open_checkpoint(tmp_path)
