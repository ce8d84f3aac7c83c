"""Which engines are soaked: a tiny real transformer each, with few blocks, so that requests are in each other's way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.config import EngineConfig
from octavo.engine.loaded_model import plan_model
from octavo.llm import LLM
from tests.soak.questions import MAX_CONTEXT
from tests.tiny_models import save_hf

PARALLEL = 8
MAX_QUEUE = 24
MAX_BATCH_TOKENS = 64
BLOCKS = 20  # for PARALLEL sequences of up to 16 each


@dataclass(frozen=True, slots=True)
class Scenario:
    """`family` and `overrides` make the checkpoint. Dense requests have room to their end, and are never preempted."""

    name: str
    family: str
    overrides: dict[str, Any]
    storage: str = "paged"

    @property
    def preempts(self) -> bool:
        return self.storage == "paged"

    def write(self, path: Path) -> None:
        """The checkpoint. Its embeddings are not tied: with random weights that says the same token again and again."""
        save_hf(path, self.family, tie_word_embeddings=False, **self.overrides)

    def alone(self, path: Path) -> LLM:
        """One sequence at a time, dense, without a prefix cache."""
        return LLM(
            path,
            storage="dense",
            dtype="bfloat16",
            device="cpu",
            threads=1,
            max_context=MAX_CONTEXT,
            max_num_seqs=1,
            prefix_cache=False,
        )

    def flags(self, path: Path) -> list[object]:
        """Of `octavo serve`."""
        flags: dict[str, object] = {
            "--model": path,
            "--storage": self.storage,
            "--dtype": "bfloat16",
            "--device": "cpu",
            "--threads": 1,
            "--max-context": MAX_CONTEXT,
            "--parallel": PARALLEL,
            "--max-queue": MAX_QUEUE,
            "--max-batch-tokens": MAX_BATCH_TOKENS,
        }
        if self.preempts:
            flags["--kv-budget"] = self._budget(path)
        return [f"{flag}={value}" for flag, value in flags.items()]

    def _budget(self, path: Path) -> int:
        """Bytes of `BLOCKS` blocks in each group of layers whose blocks a sequence fills without bound."""
        config = EngineConfig(
            storage="paged",
            dtype="bfloat16",
            device="cpu",
            threads=1,
            max_context=MAX_CONTEXT,
            max_num_seqs=PARALLEL,
            max_batch_tokens=MAX_BATCH_TOKENS,
            num_kv_blocks=BLOCKS,
        )
        return plan_model(path, config).ledger.kv_bytes


WINDOWS = {"sliding_window": 24}
SCENARIOS = (
    Scenario("llama", "llama", {}),
    Scenario("gemma3 with windows", "gemma3", WINDOWS),
    Scenario("gemma3 dense", "gemma3", WINDOWS, storage="dense"),
)
