"""A checkpoint whose answers are known: after each token it writes one certain other. All its weights are real ones.

Attention and MLPs add nothing, so that the last token alone decides; they are computed, and K/V written, all the same.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from tests.tiny_models import EOS_TOKEN_ID, save_tokenizer, tiny_model, tiny_tokenizer

CONTEXT = 4416
LETTERS = "abcdefghijklmnopqrstuvwxyz"  # each is followed by the next, the last by the end
LOOPS = ("🚀", "안")  # their bytes follow each other in a circle, each a token of its own
# The last message's own last token decides what the answer begins with.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}{% if not loop.last %}<|im_end|>\n"
    "{% endif %}{% endfor %}"
)


def byte_ids(text: str | bytes) -> list[int]:
    """The tokens of the single bytes of `text`."""
    # In a byte-level alphabet printable bytes are themselves, and the others come after them.
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in plain]
    letters = {**{byte: chr(byte) for byte in plain}, **{byte: chr(0x100 + i) for i, byte in enumerate(others)}}
    vocabulary = tiny_tokenizer().get_vocab()
    return [vocabulary[letters[byte]] for byte in (text.encode() if isinstance(text, str) else text)]


def followers(vocab_size: int) -> list[int]:
    """The token that follows each; one that is in no script follows itself."""
    after = list(range(vocab_size))
    letters = byte_ids(LETTERS)
    for one, next_one in zip(letters, [*letters[1:], EOS_TOKEN_ID], strict=True):
        after[one] = next_one
    for loop in LOOPS:
        circle = byte_ids(loop)
        for one, next_one in zip(circle, [*circle[1:], circle[0]], strict=True):
            after[one] = next_one
    after[byte_ids("\n")[0]] = letters[0]
    return after


def save_scripted(path: Path) -> None:
    """Writes the checkpoint into the directory `path`."""
    model = tiny_model("llama", num_hidden_layers=1, max_position_embeddings=CONTEXT)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.norm.weight.fill_(1.0)
        embedding = model.model.embed_tokens.weight
        embedding /= embedding.norm(dim=1, keepdim=True)
        # Of 64 random dimensions, the token that follows has a lead of more than 20 in its logit.
        model.lm_head.weight.zero_()
        for token_id, follower in enumerate(followers(len(embedding))):
            model.lm_head.weight[follower] += 10.0 * embedding[token_id]
    model.save_pretrained(path)
    save_tokenizer(path)
    settings = path / "tokenizer_config.json"
    fields = json.loads(settings.read_text(encoding="utf-8"))
    settings.write_text(json.dumps({**fields, "chat_template": TEMPLATE}), encoding="utf-8")
