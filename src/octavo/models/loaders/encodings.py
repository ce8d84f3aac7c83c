"""How tensor values lie in files: names, block sizes and ids of the encodings that can be read. Decodes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import LoadError


@dataclass(frozen=True, slots=True)
class Encoding:
    """`block_size` consecutive values of a row take `block_bytes` bytes. Floats are blocks of one value."""

    name: str
    block_size: int
    block_bytes: int

    @property
    def is_float(self) -> bool:
        return self.block_size == 1

    def row_bytes(self, row_length: int) -> int:
        """Bytes of a row of `row_length` values, which must be a multiple of `block_size`."""
        assert row_length % self.block_size == 0
        return row_length // self.block_size * self.block_bytes


F32 = Encoding("F32", 1, 4)
F16 = Encoding("F16", 1, 2)
BF16 = Encoding("BF16", 1, 2)

# GGUF's numeric type ids. Block layouts are those of ggml's `block_q*` structs.
GGUF_ENCODINGS: dict[int, Encoding] = {
    0: F32,
    1: F16,
    2: Encoding("Q4_0", 32, 18),
    3: Encoding("Q4_1", 32, 20),
    6: Encoding("Q5_0", 32, 22),
    7: Encoding("Q5_1", 32, 24),
    8: Encoding("Q8_0", 32, 34),
    10: Encoding("Q2_K", 256, 84),
    11: Encoding("Q3_K", 256, 110),
    12: Encoding("Q4_K", 256, 144),
    13: Encoding("Q5_K", 256, 176),
    14: Encoding("Q6_K", 256, 210),
    16: Encoding("IQ2_XXS", 256, 66),
    17: Encoding("IQ2_XS", 256, 74),
    18: Encoding("IQ3_XXS", 256, 98),
    19: Encoding("IQ1_S", 256, 50),
    20: Encoding("IQ4_NL", 32, 18),
    21: Encoding("IQ3_S", 256, 110),
    22: Encoding("IQ2_S", 256, 82),
    23: Encoding("IQ4_XS", 256, 136),
    29: Encoding("IQ1_M", 256, 56),
    30: BF16,
}

SAFETENSORS_ENCODINGS: dict[str, Encoding] = {"F32": F32, "F16": F16, "BF16": BF16}


def gguf_encoding(type_id: int, where: str) -> Encoding:
    """The encoding with GGUF's `type_id`; `LoadError` beginning with `where` if it cannot be read."""
    encoding = GGUF_ENCODINGS.get(type_id)
    if encoding is None:
        supported = ", ".join(known.name for known in GGUF_ENCODINGS.values())
        raise LoadError(f"{where} has type {_type_name(type_id)}, which is not supported; supported are {supported}")
    return encoding


def _type_name(type_id: int) -> str:
    from gguf import GGMLQuantizationType  # slow to import, and needed for this message only

    known = {int(kind): kind.name for kind in GGMLQuantizationType}
    return known.get(type_id, f"number {type_id}")
