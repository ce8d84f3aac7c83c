"""A tokenizer that needs no files: one token for every byte. Imports no torch."""

from __future__ import annotations

from typing import Any

from tokenizers import pre_tokenizers

from octavo.tokenizer import Tokenizer

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def mock_tokenizer(vocab_size: int = 0) -> Tokenizer:
    """Byte-level: a token for every byte, and one merge, for a vocabulary must have one.

    Up to `vocab_size` there are tokens besides that no text is encoded as, each with a text of its own.
    """
    tokens = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "th"]
    tokens += [f"[{index}]" for index in range(len(tokens), vocab_size)]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(_SPECIAL) + [1] * (len(tokens) - len(_SPECIAL)),
        "tokenizer.ggml.merges": ["t h"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": _TEMPLATE,
    }
    return Tokenizer.from_gguf(metadata)
