"""Small vocabularies in the shape of GGUF metadata, one of each kind, and templates for them."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from octavo.tokenizer.vocabulary import TokenKind

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' "
    "+ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "the them they 12345 naïve Größe",
    "안녕하세요 你好 🚀🚀 emoji",
]


def byte_level_pipeline() -> Tokenizer:
    """A byte-level BPE of about 400 tokens, without added tokens."""
    pipeline = Tokenizer(models.BPE())
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, min_frequency=1, initial_alphabet=alphabet, show_progress=False)
    pipeline.train_from_iterator(CORPUS * 2, trainer)
    return pipeline


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    """GPT-2 kind: control tokens <|endoftext|>, <|im_start|>, <|im_end|>; user-defined <tool_call> and two spaces."""
    pipeline = byte_level_pipeline()
    vocab = pipeline.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    kinds = [TokenKind.NORMAL] * len(tokens)
    merges = [" ".join(pair) for pair in _merges_of(pipeline)]
    for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"):
        tokens.append(text)
        kinds.append(TokenKind.CONTROL)
    for text in ("<tool_call>", "  "):
        tokens.append(text)
        kinds.append(TokenKind.USER_DEFINED)
    tokens.append("[PAD]")
    kinds.append(TokenKind.UNUSED)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.chat_template": CHATML,
    }
    return _changed(metadata, changes)


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """Llama kind: byte fallback, scores, and a space at the front unless `add_space_prefix` says otherwise."""
    entries: list[tuple[str, TokenKind, float]] = [
        ("<unk>", TokenKind.UNKNOWN, 0.0),
        ("<s>", TokenKind.CONTROL, 0.0),
        ("</s>", TokenKind.CONTROL, 0.0),
        *((f"<0x{byte:02X}>", TokenKind.BYTE, 0.0) for byte in range(256)),
    ]
    words = ["▁", "▁▁", "▁t", "he", "▁the", "in", "ing", "▁in", "an", "ana", "▁leading", "▁x", "<s", "s>", "é"]
    words += ["le", "ad", "lead", "▁lead", "▁b", "▁ban", "ban"]
    letters = sorted({char for word in words for char in word} | set("abcdefghijklmnopqrstuvwxyz.,<>/|"))
    pieces = [*words, *(letter for letter in letters if letter not in words)]
    entries += [(piece, TokenKind.NORMAL, -float(rank)) for rank, piece in enumerate(pieces)]
    entries += [("<tool>", TokenKind.USER_DEFINED, -1000.0), ("\n\n", TokenKind.USER_DEFINED, -1000.0)]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [text for text, _, _ in entries],
        "tokenizer.ggml.token_type": [int(kind) for _, kind, _ in entries],
        "tokenizer.ggml.scores": [score for _, _, score in entries],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}",
    }
    return _changed(metadata, changes)


def id_of(metadata: dict[str, Any], text: str) -> int:
    """Id of the token with that text."""
    found: int = metadata["tokenizer.ggml.tokens"].index(text)
    return found


def _merges_of(pipeline: Tokenizer) -> list[tuple[str, str]]:
    return [tuple(merge) for merge in json.loads(pipeline.to_str())["model"]["merges"]]


def _changed(metadata: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`changes` are keys without their prefix; None removes one."""
    for name, value in changes.items():
        key = "tokenizer.chat_template" if name == "chat_template" else f"tokenizer.ggml.{name}"
        metadata[key] = value
    return {key: value for key, value in metadata.items() if value is not None}
