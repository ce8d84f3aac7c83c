"""A model's vocabulary as llguidance takes it: the bytes of every token, and how text is cut into tokens."""

from __future__ import annotations

from llguidance import LLTokenizer, TokenizerWrapper

from octavo.errors import InvalidRequest
from octavo.tokenizer import Tokenizer

_GUARD = "\x02"  # in no text, and a token of its own


def grammar_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> LLTokenizer:
    """For logits of `vocab_size` tokens. Takes a moment, about 1 s for 260,000 tokens, and holds the GIL.

    Raises `InvalidRequest` for a tokenizer without an end-of-turn token.
    """
    ends = sorted(tokenizer.eos_token_ids)
    if not ends:
        raise InvalidRequest("this model has no token that ends a text, so no grammar can end; leave the grammar out")
    return LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer, vocab_size, ends)), n_vocab=vocab_size, eos_token=ends)


class _Vocabulary:
    """What `TokenizerWrapper` asks for. Control tokens are never text."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, ends: list[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = ends[0]
        self.bos_token_id = tokenizer.bos_token_id
        self.special_token_ids = sorted(tokenizer.control_token_ids | set(ends))
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
        special = set(self.special_token_ids)
        self._ids = {token: i for i, token in reversed(list(enumerate(self.tokens))) if token and i not in special}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: str | bytes) -> list[int]:
        """Ids whose bytes are those of `text`, as the tokenizer would choose them in the middle of a text."""
        data = text.encode() if isinstance(text, str) else text
        written = data.decode("utf-8", errors="replace")
        ids = self._tokenizer.encode(written, add_special_tokens=False)
        if self._bytes(ids) == data:
            return ids
        # A tokenizer that puts a space before a text: cut what follows another character.
        ids = self._tokenizer.encode(_GUARD + written, add_special_tokens=False)
        guard = _GUARD.encode()
        for index, token_id in enumerate(ids):
            if self.tokens[token_id] == guard and self._bytes(ids[index + 1 :]) == data:
                return ids[index + 1 :]
        return self._longest_first(data)

    def _bytes(self, ids: list[int]) -> bytes:
        return b"".join([self.tokens[token_id] for token_id in ids])

    def _longest_first(self, data: bytes) -> list[int]:
        ids, start = [], 0
        while start < len(data):
            for stop in range(min(len(data), start + self._longest), start, -1):
                token_id = self._ids.get(data[start:stop])
                if token_id is not None:
                    ids.append(token_id)
                    start = stop
                    break
            else:
                return ids  # bytes that no token has
        return ids
