"""The flags that every command running an engine shares, and the loading of a model with its progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from octavo.cli.options import list_option, option, texts
from octavo.config import EngineConfig

if TYPE_CHECKING:
    from octavo.engine.loaded_model import LoadedModel, ModelPlan, Progress
    from octavo.llm import LLM

Model = Annotated[
    str | None,
    option("-m", "--model", help="A .gguf file, a directory, an alias, or owner/name[:quant] (default smollm2)."),
]
MaxTokens = Annotated[int | None, option("-n", "--max-tokens", help="Most tokens to generate.")]
Temperature = Annotated[float, option("--temperature", help="0 is greedy.")]
TopK = Annotated[int, option("--top-k", help="Keep the k likeliest tokens; 0 keeps all.")]
TopP = Annotated[float, option("--top-p", help="Keep the likeliest tokens up to this probability.")]
MinP = Annotated[float, option("--min-p", help="Drop tokens below this share of the likeliest one's probability.")]
Seed = Annotated[int | None, option("--seed", help="Seed of the sampling; drawn if absent.")]
Stop = Annotated[list[str] | None, list_option("--stop", help="Stop before this text; may be given several times.")]
IgnoreEos = Annotated[bool, option("--ignore-eos", help="Go on after the model ends its answer.")]
Storage = Annotated[str, option("--storage", help="auto, dense or paged.")]
BlockSize = Annotated[int, option("--block-size", help="Tokens per K/V block: 16, 32 or 64.")]
MaxContext = Annotated[int | None, option("--max-context", help="Most tokens of prompt and output together.")]
Dtype = Annotated[str, option("--dtype", help="Compute dtype: auto, float32, bfloat16 or float16.")]
Weights = Annotated[str, option("--weights", help="Weights in memory: auto, full (the compute dtype), int8 or int4.")]
KvDtype = Annotated[
    str, option("--kv-dtype", help="K/V in memory: auto, f32, f16, bf16, q8_0, q4_0, turbo4, or k=NAME,v=NAME.")
]
Device = Annotated[str, option("--device", help="auto, cpu or cuda.")]
Threads = Annotated[int | None, option("--threads", help="CPU threads (default: what the cgroup allows).")]
Force = Annotated[bool, option("--force", help="Use a tokenizer whose pre-tokeniser is unknown.")]
AsJson = Annotated[bool, option("--json", help="Print exactly one JSON object.")]


def stop_strings(stop: list[str] | None) -> tuple[str, ...]:
    """What `--stop`, or its variable, says."""
    return texts(stop, "--stop")


def engine_config(**settings: Any) -> EngineConfig:
    return EngineConfig(**settings)


def load(model: str | None, config: EngineConfig) -> LLM:
    """Find or fetch the model, load it, and say on stderr what was chosen."""
    from octavo.engine.core import EngineCore
    from octavo.llm import LLM

    return LLM.over(EngineCore(load_weights(model, config), config))


def load_weights(model: str | None, config: EngineConfig) -> LoadedModel:
    from octavo.engine.loaded_model import load_model, plan_model
    from octavo.store import TerminalProgress, resolve_model

    path = resolve_model(model, progress=TerminalProgress())
    plan = plan_model(path, config)
    with loading_bar(plan) as progress:
        loaded = load_model(plan, config, progress)
    print(f"octavo: {describe(plan, loaded.weight_routes)}", file=sys.stderr)
    return loaded


def describe(plan: ModelPlan, routes: dict[str, int]) -> str:
    """One line: the model and what was chosen for it; `octavo inspect` says more."""
    k, v = plan.codecs
    kv = k.name if k is v else f"k={k.name},v={v.name}"
    where = plan.device.type if plan.device.type != "cpu" else f"cpu, {plan.threads} thread{'s'[: plan.threads > 1]}"
    return (
        f"{plan.checkpoint.path.name} ({plan.config.model_type}), {str(plan.dtype).removeprefix('torch.')} on {where}, "
        f"{' + '.join(routes)} weights, {plan.storage.kind.value} storage, {kv} K/V, context {plan.ledger.max_context}"
    )


@contextmanager
def loading_bar(plan: ModelPlan) -> Iterator[Progress]:
    """A progress bar on stderr while weights are packed, if stderr is a terminal."""
    from octavo.store import TerminalProgress

    state = [0]

    def progress(done: int, total: int) -> None:
        state[0] = done

    checkpoint = plan.checkpoint
    with TerminalProgress().bar(f"loading {checkpoint.path.name}", checkpoint.num_bytes, lambda: state[0]):
        yield progress
