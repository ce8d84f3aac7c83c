"""The loads and head shapes that decode kernels are compared on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from octavo.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Query heads, K/V heads and head size of one attention layer."""

    num_q_heads: int
    num_kv_heads: int
    dim: int

    @property
    def name(self) -> str:
        return f"Hq{self.num_q_heads} Hkv{self.num_kv_heads} D{self.dim}"


@dataclass(frozen=True, slots=True)
class DecodeLoad:
    """One decode step: the context of each sequence, in tokens."""

    name: str
    lengths: tuple[int, ...]

    @property
    def even(self) -> bool:
        return len(set(self.lengths)) == 1

    def kv_bytes(self, shape: HeadShape, bytes_per_element: float = 2) -> int:
        """K and V of all tokens, read once."""
        return int(sum(self.lengths) * shape.num_kv_heads * shape.dim * 2 * bytes_per_element)


_TERM = re.compile(r"(?:(\d+)x)?(\d+)(K?)")
_MIXED = DecodeLoad("64 mixed", tuple(256 + 251 * i for i in range(64)))


def parse_shapes(text: str) -> tuple[HeadShape, ...]:
    """Shapes such as `16/8/128,24/4/256`: query heads, K/V heads, head size."""
    shapes = []
    for each in text.split(","):
        numbers = each.split("/")
        if len(numbers) != 3 or not all(number.isdecimal() and int(number) for number in numbers):
            raise InvalidRequest(f"the head shape is {each!r}; give query heads/KV heads/head size, such as 16/8/128")
        shape = HeadShape(*map(int, numbers))
        if shape.num_q_heads % shape.num_kv_heads:
            raise InvalidRequest(f"{each} has {shape.num_q_heads} query heads; give a multiple of {shape.num_kv_heads}")
        shapes.append(shape)
    return tuple(shapes)


def parse_loads(text: str) -> tuple[DecodeLoad, ...]:
    """Loads such as `8x4K,128K+7x8K`: sequences times tokens. `64 mixed` is 64 sequences of 256 to 16,069 tokens."""
    return tuple(_MIXED if each == _MIXED.name else _parse_load(each) for each in text.split(","))


def _parse_load(text: str) -> DecodeLoad:
    lengths: list[int] = []
    for term in text.split("+"):
        match = _TERM.fullmatch(term)
        if match is None or not int(match[2]) or match[1] == "0":
            raise InvalidRequest(f"the load is {text!r}; give sequences and tokens, such as 8x4K or 128K+7x8K")
        lengths += [int(match[2]) * (1024 if match[3] else 1)] * int(match[1] or 1)
    return DecodeLoad(text, tuple(lengths))
