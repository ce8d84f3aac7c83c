"""A set of small integers that hands out the lowest first. Owns no meaning: blocks and slots both use it."""

from __future__ import annotations

from collections.abc import Iterable

_WORD = 512
_WORD_BYTES = _WORD // 8


class IndexSet:
    """Subset of `range(size)`, full at construction.

    Two levels of bitmap: words of 512 bits, and a summary with one bit per non-empty word. Taking the lowest index
    and adding one touch one word and the summary, so they cost the same at any size in use; finding a contiguous run
    reads all words.
    """

    __slots__ = ("_len", "_size", "_summary", "_words")

    def __init__(self, size: int) -> None:
        num_full, rest = divmod(size, _WORD)
        self._words = [(1 << _WORD) - 1] * num_full + ([(1 << rest) - 1] if rest else [])
        self._summary = (1 << len(self._words)) - 1
        self._size = size
        self._len = size

    @classmethod
    def of(cls, size: int, indices: Iterable[int]) -> IndexSet:
        """The subset of `range(size)` that has `indices`."""
        chosen = cls(size)
        chosen._words = [0] * len(chosen._words)
        chosen._summary = chosen._len = 0
        chosen.add(indices)
        return chosen

    def __len__(self) -> int:
        return self._len

    def __contains__(self, index: int) -> bool:
        return 0 <= index < self._size and bool(self._words[index // _WORD] >> (index % _WORD) & 1)

    def pop_lowest(self) -> int:
        """Remove and return the lowest index. The set must not be empty."""
        summary = self._summary
        assert summary, "an empty set has no lowest index"
        w = (summary & -summary).bit_length() - 1
        word = self._words[w]
        rest = word & (word - 1)
        self._words[w] = rest
        if not rest:
            self._summary = summary & (summary - 1)
        self._len -= 1
        return w * _WORD + (word ^ rest).bit_length() - 1

    def add(self, indices: Iterable[int]) -> None:
        """Add `indices`, which must lie in range, differ and not be there yet. Neighbours cost least."""
        w, mask, count, size = 0, 0, 0, self._size
        for index in indices:
            assert 0 <= index < size, f"index {index} is outside range({size})"
            if index // _WORD != w:
                if mask:
                    self._add_bits(w, mask)
                w, mask = index // _WORD, 0
            mask |= 1 << index % _WORD
            count += 1
        if mask:
            self._add_bits(w, mask)
        self._len += count

    def _add_bits(self, w: int, mask: int) -> None:
        assert not self._words[w] & mask, "an index to add is a member already"
        self._words[w] |= mask
        self._summary |= 1 << w

    def lowest_run(self, length: int) -> int | None:
        """Start of the lowest `length` (at least 1) consecutive members, or None if there is no such run."""
        starts = self._bits()
        reached = 1
        while reached < length and starts:
            step = min(reached, length - reached)
            starts &= starts >> step
            reached += step
        return (starts & -starts).bit_length() - 1 if starts else None

    def longest_run(self) -> int:
        """Length of the longest run of consecutive members."""
        doubled = [self._bits()]  # doubled[j]: where runs of 2**j start
        if not doubled[0]:
            return 0
        while longer := doubled[-1] & (doubled[-1] >> (1 << (len(doubled) - 1))):
            doubled.append(longer)
        starts, length = doubled[-1], 1 << (len(doubled) - 1)
        for j in range(len(doubled) - 2, -1, -1):
            if extended := starts & (doubled[j] >> length):
                starts, length = extended, length + (1 << j)
        return length

    def remove_run(self, start: int, length: int) -> None:
        """Remove `start, …, start + length - 1`, all of which must be members."""
        stop = start + length
        while start < stop:
            w, low = divmod(start, _WORD)
            taken = min(stop - start, _WORD - low)
            mask = ((1 << taken) - 1) << low
            assert self._words[w] & mask == mask, "a run to remove has an index that is not free"
            self._words[w] ^= mask
            if not self._words[w]:
                self._summary ^= 1 << w
            start += taken
        self._len -= length

    def check_integrity(self) -> None:
        """Assert that words, summary and length tell the same story. Reads every word."""
        assert self._len == sum(word.bit_count() for word in self._words)
        assert self._summary == sum(1 << w for w, word in enumerate(self._words) if word)

    def _bits(self) -> int:
        return int.from_bytes(b"".join(word.to_bytes(_WORD_BYTES, "little") for word in self._words), "little")
