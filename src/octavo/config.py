"""Engine settings as a person gives them, resolved once into a frozen object."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from octavo.errors import InvalidRequest, shown

BLOCK_SIZES = (16, 32, 64)
MAX_COUNT = 2**31 - 1  # of tokens, sequences, blocks or threads
MAX_BYTES = 2**63 - 1
# Of a step, and of one prompt in it, by type of device. A GPU's step has a fixed price, so few large ones are cheaper.
STEP_TOKENS = {"cpu": (2048, 512), "cuda": (8192, 2048)}
_MAY_BE_ABSENT = ("max_context", "max_batch_tokens", "prefill_chunk", "num_kv_blocks", "threads")
_SIZE = re.compile(r"([0-9]{1,20}) ?(|[KMG]i?B)")
_UNITS = {"": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
StorageChoice = Literal["auto", "dense", "paged"]
DtypeChoice = Literal["auto", "float32", "bfloat16", "float16"]
DeviceChoice = Literal["auto", "cpu", "cuda"]
ContextLimitPolicy = Literal["stop", "shift"]
WeightsChoice = Literal["auto", "full", "int8", "int4"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that shapes an engine, validated at construction (`InvalidRequest` names value, limit, remedy).

    `max_context=None` takes the model's own limit; `kv_budget=None` sizes the K/V pool from free memory, else it is the
    bytes that K/V takes in all; `num_kv_blocks` asks for that many blocks instead, so only one of the two may be given.
    `prefix_cache`: paged requests share the K/V of common beginnings. `threads=None` takes what the cgroup allows.
    `prefill_chunk` and `max_batch_tokens` are tokens per step, None as many as suit the device (see `on`); where tokens
    being generated fill the steps, prompts get a quarter of every `prefill_grant_interval`-th. At the context limit a
    request ends, or with `context_limit_policy` `shift` forgets the older half of its tokens, but the first `keep`, and
    goes on.
    `decode_lookahead` gives the device a decode step before the tokens of the one before are read; None does so where
    the device computes while the host goes on. Answers do not depend on it. `cuda_graphs` records decode steps of a
    CUDA device and replays them, None where that serves; answers do not depend on that either. `fast_forward` takes
    tokens that a grammar leaves no choice about without a step for each, where that changes no bit of what follows.
    `exact` takes only what gives a token the same bits alone, in any batch, chunking and storage, and is refused where
    that cannot be; None asks for it on a CPU alone, and only where it can be.
    """

    storage: StorageChoice = "auto"
    block_size: int = 16
    max_context: int | None = None
    max_num_seqs: int = 8
    max_batch_tokens: int | None = None
    prefill_chunk: int | None = None
    prefill_grant_interval: int = 4
    num_kv_blocks: int | None = None
    kv_budget: int | None = None
    kv_dtype: str = "auto"
    dtype: DtypeChoice = "auto"
    weights: WeightsChoice = "auto"
    device: DeviceChoice = "auto"
    threads: int | None = None
    prefix_cache: bool = True
    context_limit_policy: ContextLimitPolicy = "stop"
    keep: int = 0
    decode_lookahead: bool | None = None
    cuda_graphs: bool | None = None
    fast_forward: bool = True
    exact: bool | None = None
    force: bool = False

    def __post_init__(self) -> None:
        _choice("storage", self.storage, ("auto", "dense", "paged"))
        _choice("dtype", self.dtype, ("auto", "float32", "bfloat16", "float16"))
        _choice("device", self.device, ("auto", "cpu", "cuda"))
        _choice("weights", self.weights, ("auto", "full", "int8", "int4"))
        if type(self.block_size) is not int or self.block_size not in BLOCK_SIZES:
            raise InvalidRequest(f"block size is {shown(self.block_size)}; choose one of {_listed(BLOCK_SIZES)}")
        if not isinstance(self.kv_dtype, str):
            raise InvalidRequest(f"kv dtype is {shown(self.kv_dtype)}; give auto, a codec, or k=NAME,v=NAME")
        for name in ("prefix_cache", "fast_forward", "force"):
            if not isinstance(getattr(self, name), bool):
                value = shown(getattr(self, name))
                raise InvalidRequest(f"{name.replace('_', ' ')} is {value}; it must be true or false")
        for name in ("decode_lookahead", "cuda_graphs", "exact"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise InvalidRequest(
                    f"{name.replace('_', ' ')} is {shown(value)}; it must be true, false or, for the device's own "
                    "way, None"
                )
        for name in (
            "max_context",
            "max_num_seqs",
            "max_batch_tokens",
            "prefill_chunk",
            "prefill_grant_interval",
            "num_kv_blocks",
            "threads",
        ):
            value = getattr(self, name)
            if value is None and name in _MAY_BE_ABSENT:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_COUNT:
                bounds = f"at least 1, at most {MAX_COUNT}"
                raise InvalidRequest(
                    f"{name.replace('_', ' ')} is {shown(value)}; it must be a whole number of {bounds}"
                )
        self._check_context_limit()
        self._check_budget()

    def on(self, device_type: str) -> EngineConfig:
        """The same for a device of this type, with the numbers of tokens that suit it."""
        batch, chunk = STEP_TOKENS[device_type]
        return replace(
            self,
            max_batch_tokens=batch if self.max_batch_tokens is None else self.max_batch_tokens,
            prefill_chunk=chunk if self.prefill_chunk is None else self.prefill_chunk,
        )

    @property
    def batch_tokens(self) -> int:
        """Most tokens of a step, prompts and answers together. Only of a config that is `on` a device."""
        assert self.max_batch_tokens is not None, "a config is for a device"
        return self.max_batch_tokens

    @property
    def chunk_tokens(self) -> int:
        """Most tokens of one sequence in a step. Only of a config that is `on` a device."""
        assert self.prefill_chunk is not None, "a config is for a device"
        return min(self.prefill_chunk, self.batch_tokens)

    def _check_context_limit(self) -> None:
        _choice("context limit policy", self.context_limit_policy, ("stop", "shift"))
        if isinstance(self.keep, bool) or not isinstance(self.keep, int) or not 0 <= self.keep <= MAX_COUNT:
            raise InvalidRequest(f"keep is {shown(self.keep)}; it must be a whole number of at least 0")
        if self.context_limit_policy == "stop":
            if self.keep:
                raise InvalidRequest(f"keep is {self.keep}, but nothing is forgotten; add context limit policy shift")
            return
        if self.keep % self.block_size:
            raise InvalidRequest(
                f"keep is {self.keep} and the block size {self.block_size}; whole blocks are kept: "
                f"give {-(-self.keep // self.block_size) * self.block_size}"
            )
        if self.storage == "dense":
            raise InvalidRequest(
                "context limit policy shift needs paged storage, not dense; use --storage paged or auto"
            )

    def check_keep(self, max_context: int) -> None:
        """Raises `InvalidRequest` if a context of `max_context` tokens leaves nothing to forget after the kept ones."""
        most = (max_context // self.block_size - 2) * self.block_size
        if self.context_limit_policy == "shift" and self.keep > most:
            raise InvalidRequest(
                f"keep is {self.keep} and the context {max_context}, which leaves less than two blocks of "
                f"{self.block_size} to forget; keep at most {max(0, most)} or raise the max context"
            )

    def _check_budget(self) -> None:
        budget = self.kv_budget
        if budget is None:
            return
        if isinstance(budget, bool) or not isinstance(budget, int) or not 1 <= budget <= MAX_BYTES:
            raise InvalidRequest(
                f"kv budget is {shown(budget)}; it must be a whole number of bytes, at least 1, at most {MAX_BYTES}"
            )
        if self.num_kv_blocks is not None:
            raise InvalidRequest(
                f"kv budget is {budget} bytes and num kv blocks is {self.num_kv_blocks}; each sizes the K/V pool: "
                "give only one of them"
            )


def byte_size(text: str, name: str) -> int | None:
    """Bytes of a size as a person writes it: `4GiB`, `512MB`, `1048576`; None for `auto`. `name` is for the error."""
    if text == "auto":
        return None
    found = _SIZE.fullmatch(text)
    size = int(found[1]) * _UNITS[found[2]] if found is not None else 0
    if not 1 <= size <= MAX_BYTES:
        raise InvalidRequest(
            f"{name} is {shown(text)}; give auto or a whole number from 1 byte to {MAX_BYTES}, with KiB, MiB or GiB "
            "(or KB, MB, GB) after it, such as 4GiB"
        )
    return size


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidRequest(f"{name} is {shown(value)}; choose one of {_listed(allowed)}")


def _listed(values: tuple[object, ...]) -> str:
    return ", ".join(map(str, values))
