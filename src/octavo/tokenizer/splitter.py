"""Finds whole special tokens in text. It knows nothing of merges, vocabularies or templates."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple


class Match(NamedTuple):
    """Token `token_id` spelled by `text[start:end]`."""

    start: int
    end: int
    token_id: int


class SpecialSplitter:
    """Cuts text at special tokens, the longest token first wherever two overlap, then from the left."""

    def __init__(
        self,
        tokens: Mapping[str, int],
        *,
        lstrip: frozenset[int] = frozenset(),
        rstrip: frozenset[int] = frozenset(),
    ) -> None:
        """`tokens` maps text to id; ids in `lstrip`/`rstrip` swallow the white space on that side."""
        self._tokens = dict(tokens)
        self._lstrip, self._rstrip = lstrip, rstrip
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for text in self._tokens:
            lengths[text[:2]].add(len(text))
        self._lengths = {head: tuple(found) for head, found in lengths.items()}
        self._heads = _heads_pattern(self._lengths)

    @property
    def tokens(self) -> Mapping[str, int]:
        """Text → id."""
        return self._tokens

    def find(self, text: str) -> list[Match]:
        """Matches without overlap, in order of position."""
        if self._heads is None:
            return []
        candidates = [match for head in self._heads.finditer(text) for match in self._at(text, head.start())]
        if len(candidates) < 2:
            return candidates
        candidates.sort(key=lambda match: (match.start - match.end, match.start))
        taken, chosen = bytearray(len(text)), []
        for match in candidates:
            if taken.find(1, match.start, match.end) < 0:
                taken[match.start : match.end] = b"\1" * (match.end - match.start)
                chosen.append(match)
        return sorted(chosen)

    def begins_at_end(self, text: str) -> bool:
        """Whether `text` ends with the beginning of a token, which what follows might complete."""
        if not text or text[-1].isspace():
            return False
        return any(text[-size:] in self._beginnings for size in range(1, min(len(text), self._longest) + 1))

    def split(self, text: str) -> list[str | int]:
        """`text` as runs of plain text (never empty) and token ids."""
        fragments: list[str | int] = []
        cursor, strip_left = 0, False
        for start, end, token_id in self.find(text):
            self._add_plain(fragments, text[cursor:start], strip_left, token_id in self._lstrip)
            fragments.append(token_id)
            cursor, strip_left = end, token_id in self._rstrip
        self._add_plain(fragments, text[cursor:], strip_left, False)
        return fragments

    @staticmethod
    def _add_plain(fragments: list[str | int], plain: str, strip_left: bool, strip_right: bool) -> None:
        if strip_left:
            plain = plain.lstrip()
        if strip_right:
            plain = plain.rstrip()
        if plain:
            fragments.append(plain)

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        return frozenset(token[:size] for token in self._tokens for size in range(1, len(token)))

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._beginnings), default=0)

    def _at(self, text: str, start: int) -> list[Match]:
        matches = []
        for head in {text[start : start + 2], text[start]}:
            for length in self._lengths.get(head, ()):
                token_id = self._tokens.get(text[start : start + length])
                if token_id is not None and start + length <= len(text):
                    matches.append(Match(start, start + length, token_id))
        return matches


def _heads_pattern(heads: Mapping[str, tuple[int, ...]]) -> re.Pattern[str] | None:
    """Matches (with no width) every position where a token could begin, judged by its first two characters."""
    if not heads:
        return None
    followers: defaultdict[str, set[str]] = defaultdict(set)
    for head in heads:
        followers[head[0]].add(head[1:])
    branches = []
    for first, seconds in followers.items():
        second = "" if "" in seconds else f"[{''.join(map(re.escape, sorted(seconds)))}]"
        branches.append(re.escape(first) + second)
    return re.compile(f"(?={'|'.join(branches)})")
