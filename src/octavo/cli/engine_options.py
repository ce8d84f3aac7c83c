"""The flags that every command running an engine shares, and the loading of a model with its progress on stderr."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from octavo.cli.options import list_option, option, texts
from octavo.config import EngineConfig, byte_size

if TYPE_CHECKING:
    from octavo.engine.loaded_model import LoadedModel, ModelPlan, Progress
    from octavo.llm import LLM
    from octavo.tokenizer import Tokenizer

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
KvBudget = Annotated[str, option("--kv-budget", help="Memory for K/V: auto, or a size such as 4GiB, 512MiB or bytes.")]
PrefixCache = Annotated[
    bool, option("--prefix-cache/--no-prefix-cache", help="Share K/V of common beginnings in paged storage.")
]
ContextLimit = Annotated[
    str, option("--context-limit-policy", help="At the context limit: stop, or shift (forget the older half, go on).")
]
Keep = Annotated[int, option("--keep", help="Tokens at the front that a shift never forgets; whole blocks.")]
MaxBatchTokens = Annotated[
    int | None,
    option(
        "--max-batch-tokens", help="Most tokens in a step, prompts and answers together (default: 2048; on a GPU 8192)."
    ),
]
PrefillChunk = Annotated[
    int | None, option("--prefill-chunk", help="Most tokens of one prompt in a step (default: 512; on a GPU 2048).")
]
PrefillGrantInterval = Annotated[
    int,
    option("--prefill-grant-interval", help="Where answers fill the steps, prompts get a part of every n-th."),
]
Device = Annotated[str, option("--device", help="auto, cpu or cuda.")]
Threads = Annotated[int | None, option("--threads", help="CPU threads (default: what the cgroup allows).")]
CudaGraphs = Annotated[
    bool | None,
    option("--cuda-graphs/--no-cuda-graphs", help="Replay decode steps from graphs (default: on a CUDA device)."),
]
Exact = Annotated[
    bool | None,
    option(
        "--exact/--no-exact",
        help="A token's bits are the same alone, in any batch, chunking and storage (default: where a CPU can).",
    ),
]
Force = Annotated[bool, option("--force", help="Use a tokenizer whose pre-tokeniser is unknown.")]
ProfileDirectory = Annotated[
    Path | None, option("--profile", help="Write a torch profiler trace of engine steps into this directory.")
]
ProfileSteps = Annotated[int, option("--profile-steps", help="Engine steps that a profile takes in.")]
AsJson = Annotated[bool, option("--json", help="Print exactly one JSON object.")]


def stop_strings(stop: list[str] | None) -> tuple[str, ...]:
    """What `--stop`, or its variable, says."""
    return texts(stop, "--stop")


@dataclass(frozen=True)
class EngineFlags:
    """The flags that shape an engine, in the order that help lists them. Each is a field of `EngineConfig`."""

    storage: Storage = "auto"
    block_size: BlockSize = 16
    max_context: MaxContext = None
    dtype: Dtype = "auto"
    weights: Weights = "auto"
    kv_dtype: KvDtype = "auto"
    kv_budget: KvBudget = "auto"
    prefix_cache: PrefixCache = True
    context_limit_policy: ContextLimit = "stop"
    keep: Keep = 0
    max_batch_tokens: MaxBatchTokens = None
    prefill_chunk: PrefillChunk = None
    prefill_grant_interval: PrefillGrantInterval = 4
    device: Device = "auto"
    cuda_graphs: CudaGraphs = None
    exact: Exact = None
    threads: Threads = None

    def config(self, max_num_seqs: int, *, force: bool = False) -> EngineConfig:
        """Raises `InvalidRequest` for values that cannot be."""
        settings: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        settings["kv_budget"] = byte_size(self.kv_budget, "--kv-budget")
        return EngineConfig(max_num_seqs=max_num_seqs, force=force, **settings)


def with_engine_flags(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of `EngineFlags`, but those `without`, in place of its parameter `engine`."""

    def expanded(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(EngineFlags, include_extras=True)
        shown = [each for each in fields(EngineFlags) if each.name not in without]
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.name == "engine":
                parameters += [
                    inspect.Parameter(each.name, keyword, default=each.default, annotation=hints[each.name])
                    for each in shown
                ]
            else:
                parameters.append(parameter.replace(kind=keyword))

        @wraps(command)
        def run(**given: Any) -> None:
            engine = EngineFlags(**{each.name: given.pop(each.name) for each in shown})
            command(engine=engine, **given)

        # Typer reads a command's signature and annotations.
        run.__dict__["__signature__"] = inspect.Signature(parameters, return_annotation=None)
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return expanded


def nothing_to_check(plan: ModelPlan, tokenizer: Tokenizer) -> None:
    """Of a command that takes any model."""


def load(
    model: str | None,
    config: EngineConfig,
    check: Callable[[ModelPlan, Tokenizer], None] = nothing_to_check,
    *,
    exports: bool = False,
) -> LLM:
    """Find or fetch the model, load it, and say on stderr what was chosen.

    `check` raises what is to be refused before weights are loaded. `exports` is as for `plan_model`.
    """
    from octavo.engine.core import EngineCore
    from octavo.llm import LLM

    return LLM.over(EngineCore(load_weights(model, config, check, exports=exports), config))


def load_weights(
    model: str | None,
    config: EngineConfig,
    check: Callable[[ModelPlan, Tokenizer], None] = nothing_to_check,
    *,
    exports: bool = False,
) -> LoadedModel:
    from octavo.engine.loaded_model import load_model, plan_model
    from octavo.store import TerminalProgress, resolve_model

    path = resolve_model(model, progress=TerminalProgress())
    plan = plan_model(path, config, exports=exports)
    tokenizer = plan.checkpoint.tokenizer(force=config.force)
    check(plan, tokenizer)
    with loading_bar(plan) as progress:
        loaded = load_model(plan, config, progress, tokenizer)
    print(f"octavo: {describe(loaded.plan, loaded.weight_routes)}", file=sys.stderr)
    return loaded


def describe(plan: ModelPlan, routes: dict[str, int]) -> str:
    """One line: the model and what was chosen for it; `octavo inspect` says more."""
    from octavo.engine.hardware import instruction_set

    k, v = plan.codecs
    kv = k.name if k is v else f"k={k.name},v={v.name}"
    where = f"{plan.device.type} ({instruction_set(plan.device)})"
    if plan.device.type == "cpu":
        where += f", {plan.threads} thread{'s'[: plan.threads > 1]}"
    exact = "exact" if plan.exact.holds else "not exact"
    return (
        f"{plan.checkpoint.path.name} ({plan.config.model_type}), {str(plan.dtype).removeprefix('torch.')} on {where}, "
        f"{' + '.join(routes)} weights, {plan.storage.kind.value} storage, {kv} K/V, "
        f"context {plan.ledger.max_context}, {exact}"
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
