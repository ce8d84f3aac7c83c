"""SentencePiece BPE: merges by the score of the merged piece. It knows no special tokens and adds no prefix.

Not a `tokenizers` model, because a table of ranked merges cannot hold SentencePiece's order: among equal scores it
takes the leftmost pair, while a merge table ranks the several pairs that make one piece.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from octavo.tokenizer.vocabulary import SPACE_MARK

_MAX_CACHED_WORDS = 65_536
_MAX_CACHED_LENGTH = 64  # characters


class SentencePieceModel:
    """Encodes text whose spaces are already U+2581. Immutable apart from a bounded memo of words."""

    def __init__(
        self,
        pieces: Mapping[str, int],
        scores: Sequence[float],
        byte_ids: Mapping[int, int],
        unknown_id: int | None,
    ) -> None:
        """`pieces` are the tokens that text may become; `scores` by id; `byte_ids` maps a byte to its token."""
        self._pieces, self._scores, self._unknown_id = pieces, scores, unknown_id
        self._byte_ids = byte_ids
        self._words: dict[str, list[int]] = {}
        self._boundary = _word_boundary(pieces)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""
        ids: list[int] = []
        for word in self._boundary.split(text):
            found = self._words.get(word)
            if found is None:
                found = self._encode_word(word)
                if len(word) <= _MAX_CACHED_LENGTH:
                    if len(self._words) >= _MAX_CACHED_WORDS:
                        self._words.clear()
                    self._words[word] = found
            ids += found
        return ids

    def _encode_word(self, word: str) -> list[int]:
        ids: list[int] = []
        for symbol in self._merge(list(word)):
            token_id = self._pieces.get(symbol)
            if token_id is not None:
                ids.append(token_id)
            else:
                ids += self._fallback(symbol)
        return ids

    def _merge(self, symbols: list[str]) -> list[str]:
        """Merges neighbours, best score first, leftmost among equals; a merged-away symbol becomes empty."""
        count = len(symbols)
        before, after = list(range(-1, count - 1)), [*range(1, count), -1]
        queue: list[tuple[float, int, int, int]] = []  # (-score, left, right, length when queued)

        def propose(left: int, right: int) -> tuple[float, int, int, int] | None:
            piece = symbols[left] + symbols[right]
            token_id = self._pieces.get(piece)
            return None if token_id is None else (-self._scores[token_id], left, right, len(piece))

        for left in range(count - 1):
            if (entry := propose(left, left + 1)) is not None:
                queue.append(entry)
        heapify(queue)
        while queue:
            _, left, right, length = heappop(queue)
            if not symbols[left] or not symbols[right] or len(symbols[left]) + len(symbols[right]) != length:
                continue  # queued before one of the two changed
            symbols[left] += symbols[right]
            symbols[right] = ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
                if (entry := propose(left, after[left])) is not None:
                    heappush(queue, entry)
            if before[left] >= 0 and (entry := propose(before[left], left)) is not None:
                heappush(queue, entry)
        return [symbol for symbol in symbols if symbol]

    def _fallback(self, symbol: str) -> list[int]:
        encoded = symbol.encode("utf-8")
        if all(byte in self._byte_ids for byte in encoded):
            return [self._byte_ids[byte] for byte in encoded]
        return [] if self._unknown_id is None else [self._unknown_id]


def _word_boundary(pieces: Mapping[str, int]) -> re.Pattern[str]:
    """Where text may be cut without changing its tokens: before a space mark that no piece joins to what precedes it.

    A merge across the cut would make a piece that holds both neighbours, so it is enough that no piece does.
    """
    joined = set(re.findall(f"([^{SPACE_MARK}\0]){SPACE_MARK}", "\0".join(pieces)))
    keep = "".join(map(re.escape, sorted(joined)))
    return re.compile(f"(?<=[^{SPACE_MARK}{keep}])(?={SPACE_MARK})")
