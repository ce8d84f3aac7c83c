"""Engine settings as a person gives them, resolved once into a frozen object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.errors import InvalidRequest

BLOCK_SIZES = (16, 32, 64)
StorageChoice = Literal["auto", "dense", "paged"]
DtypeChoice = Literal["auto", "float32", "bfloat16", "float16"]
DeviceChoice = Literal["auto", "cpu", "cuda"]
WeightsChoice = Literal["auto", "full", "int8", "int4"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that shapes an engine, validated at construction (`InvalidRequest` names value, limit, remedy).

    `max_context=None` takes the model's own limit; `num_kv_blocks=None` sizes the pool from free memory;
    `threads=None` takes what the cgroup allows. `prefill_chunk` and `max_batch_tokens` are tokens per step.
    """

    storage: StorageChoice = "auto"
    block_size: int = 16
    max_context: int | None = None
    max_num_seqs: int = 8
    max_batch_tokens: int = 2048
    prefill_chunk: int = 2048
    num_kv_blocks: int | None = None
    kv_dtype: str = "auto"
    dtype: DtypeChoice = "auto"
    weights: WeightsChoice = "auto"
    device: DeviceChoice = "auto"
    threads: int | None = None
    force: bool = False

    def __post_init__(self) -> None:
        _choice("storage", self.storage, ("auto", "dense", "paged"))
        _choice("dtype", self.dtype, ("auto", "float32", "bfloat16", "float16"))
        _choice("device", self.device, ("auto", "cpu", "cuda"))
        _choice("weights", self.weights, ("auto", "full", "int8", "int4"))
        if self.block_size not in BLOCK_SIZES:
            raise InvalidRequest(f"block size is {self.block_size}; choose one of {', '.join(map(str, BLOCK_SIZES))}")
        for name in (
            "max_context",
            "max_num_seqs",
            "max_batch_tokens",
            "prefill_chunk",
            "num_kv_blocks",
            "threads",
        ):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidRequest(f"{name.replace('_', ' ')} is {value!r}; it must be a whole number of at least 1")


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidRequest(f"{name} is {value!r}; choose one of {', '.join(allowed)}")
