"""Runs the arms: the same weights and prompts through every storage, batch, chunking and front."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace

import torch
from torch import Tensor

from octavo.cache.storage_policy import StorageDecision
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore, LogitsObserver
from octavo.engine.loaded_model import LoadedModel, share_weights
from octavo.errors import InvalidRequest
from octavo.llm import LLM
from octavo.parity.cache_arms import trace_cached, trace_preempted
from octavo.parity.cli_arm import trace_cli
from octavo.parity.prompts import parity_prompts
from octavo.parity.report import ArmResult, Report
from octavo.parity.snapshot_arm import trace_imported
from octavo.parity.trace import Trace, compare
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from octavo.storage.codecs import CODECS
from octavo.storage.compiled_attention import CompiledAttention
from octavo.storage.route import RouteSwitches

ROWS = 4
_NARROW = ("q8_0", "q4_0", "turbo4")
ARMS = (
    "dense_b1",
    "paged_b1",
    "gather_b1",
    *(f"batch{ROWS}_{kind}_row{row}" for kind in ("dense", "paged") for row in range(ROWS)),
    "prefill_chunk_7",
    "prefill_chunk_64",
    "cached_prefix",
    "preempted",
    "imported_snapshot",
    *(f"codec_{name}" for name in _NARROW),
    "cli",
)
_MARGIN = {torch.float32: 1e-3, torch.float16: 0.25, torch.bfloat16: 0.25}


class ParityRun:
    """One model's parity run. The reference is each prompt alone, dense, prefilled whole."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig, num_tokens: int, fault: str | None) -> None:
        if fault is not None and fault not in ARMS:
            raise InvalidRequest(f"arm {fault!r} is unknown; choose one of {', '.join(ARMS)}")
        self._loaded = loaded
        self._params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
        self._num_tokens = num_tokens
        self._fault = fault
        windows = [spec.window for spec in loaded.model.kv_layout(loaded.plan.config) if spec.window is not None]
        self._prompts = parity_prompts(loaded.tokenizer, max(windows, default=256) + 100)
        self._ids = [loaded.tokenizer.encode(prompt) for prompt in self._prompts]
        needed, limit = max(map(len, self._ids)) + num_tokens, loaded.plan.ledger.context_limit
        if needed > limit:
            raise InvalidRequest(
                f"a parity run of {num_tokens} tokens needs a context of {needed} here, and the model's is {limit}; "
                "compare fewer tokens or another model"
            )
        self._config = replace(config, max_context=needed)
        self.bitwise = loaded.plan.device.type == "cpu" and loaded.plan.routes.row_invariant
        self.margin = _MARGIN[loaded.plan.dtype]
        self._reference: list[Trace] = []
        self._specs = loaded.model.kv_layout(loaded.plan.config)
        self._expected = {StorageKind.DENSE: {"dense", "ring"}, StorageKind.PAGED: self._paged_routes()}

    def arms(self, on_arm: Callable[[ArmResult], None]) -> list[ArmResult]:
        """Run all arms, telling each as it is known."""
        results: list[ArmResult] = []

        def done(arm: ArmResult) -> None:
            results.append(arm)
            on_arm(arm)

        self._reference = [self._alone(StorageKind.DENSE, i, "") for i in range(ROWS)]
        longest = ROWS - 1
        done(self._judge("dense_b1", self._alone(StorageKind.DENSE, longest, "dense_b1"), longest, StorageKind.DENSE))
        done(self._judge("paged_b1", self._alone(StorageKind.PAGED, longest, "paged_b1"), longest, StorageKind.PAGED))
        gathered = self._alone(StorageKind.PAGED, longest, "gather_b1", switches=RouteSwitches(native=False))
        done(self._judge("gather_b1", gathered, longest, StorageKind.PAGED, {"gather"}))
        for kind in (StorageKind.DENSE, StorageKind.PAGED):
            names = [f"batch{ROWS}_{kind.value}_row{row}" for row in range(ROWS)]
            for row, trace in enumerate(self._batch(kind, names)):
                done(self._judge(names[row], trace, row, kind))
        for chunk in (7, 64):
            name = f"prefill_chunk_{chunk}"
            trace = self._alone(StorageKind.PAGED, longest, name, prefill_chunk=chunk)
            done(self._judge(name, trace, longest, StorageKind.PAGED))
        done(self._judge("cached_prefix", self._cached(longest), longest, StorageKind.PAGED))
        done(self._judge("preempted", self._preempted(longest), longest, StorageKind.PAGED))
        done(self._judge("imported_snapshot", self._imported(longest), longest, StorageKind.PAGED))
        for codec in _NARROW:
            if not any(CODECS[codec].refusal(dim) for spec in self._specs for dim in (spec.k_dim, spec.v_dim)):
                done(self._codec(codec, longest))
        done(self._judge("cli", self._cli(0), 0, StorageKind.DENSE))
        return results

    def _paged_routes(self) -> set[str]:
        """What paged rows take here: the fused kernel's routes wherever it serves a group of layers, else gather."""
        plan, switches = self._loaded.plan, RouteSwitches.from_environment()
        refused = {
            switches.refusal(CompiledAttention.refusal_for(spec, plan.codecs, plan.device)) is not None
            for spec in self._specs
        }
        fused = {"fused_decode", "varlen_prefill"} if False in refused else set()
        return fused | ({"gather"} if True in refused else set())

    def _codec(self, codec: str, prompt: int) -> ArmResult:
        """K and V in fewer bits: other numbers than the reference's, but the same dense as paged by gather."""
        name = f"codec_{codec}"
        dense = self._alone(StorageKind.DENSE, prompt, "", kv_dtype=codec)
        paged = self._alone(StorageKind.PAGED, prompt, name, switches=RouteSwitches(native=False), kv_dtype=codec)
        return self._judge(name, paged, prompt, StorageKind.PAGED, {"gather"}, dense)

    def _judge(
        self,
        name: str,
        trace: Trace,
        prompt: int,
        kind: StorageKind,
        routes: Set[str] | None = None,
        reference: Trace | None = None,
    ) -> ArmResult:
        """`reference` is the prompt's own unless given, and `routes` are those of `kind`."""
        expected = routes or self._expected[kind]
        reference = reference or self._reference[prompt]
        found = compare(trace, reference, bitwise=self.bitwise, margin=self.margin)
        problem = trace.problem
        if problem is None and len(trace.token_ids) != self._num_tokens:
            problem = f"gave {len(trace.token_ids)} tokens, not {self._num_tokens}"
        if problem is None and not (trace.routes and set(trace.routes) <= expected):
            problem = f"took routes {sorted(trace.routes)}, not {sorted(expected)}"
        equal = found.agrees and problem is None
        return ArmResult(name, equal, found.first_divergence, found.max_logit_diff, trace.routes, problem)

    def _alone(
        self,
        kind: StorageKind,
        prompt: int,
        name: str,
        prefill_chunk: int = 2048,
        switches: RouteSwitches | None = None,
        kv_dtype: str | None = None,
    ) -> Trace:
        config = replace(self._config, max_num_seqs=1, prefill_chunk=prefill_chunk)
        config = replace(config, kv_dtype=kv_dtype or config.kv_dtype)
        return self._run(config, kind, [prompt], [name], switches)[0]

    def _batch(self, kind: StorageKind, names: Sequence[str]) -> list[Trace]:
        """All prompts at once under a token budget that makes the long one's prefill share steps with decodes."""
        config = replace(self._config, max_num_seqs=ROWS, max_batch_tokens=200, prefill_chunk=128)
        return self._run(config, kind, range(ROWS), names)

    def _run(
        self,
        config: EngineConfig,
        kind: StorageKind,
        prompts: Sequence[int],
        names: Sequence[str],
        switches: RouteSwitches | None = None,
    ) -> list[Trace]:
        traces = [Trace() for _ in prompts]
        loaded = share_weights(self._loaded, config, StorageDecision(kind, "a parity arm"))
        llm = LLM.over(EngineCore(loaded, config, self._observer(traces, prompts, names), switches))
        outputs = llm.generate([self._ids[i] for i in prompts], self._params)
        for trace, output in zip(traces, outputs, strict=True):
            trace.token_ids = list(output.outputs[0].token_ids)
            trace.routes = output.routes
        return traces

    def _cached(self, prompt: int) -> Trace:
        trace = Trace()
        core = self._paged("cached_prefix", prompt, trace, prefix_cache=True)
        return trace_cached(core, self._ids[prompt], self._params, trace)

    def _preempted(self, prompt: int) -> Trace:
        trace = Trace()
        core = self._paged("preempted", prompt, trace, prefix_cache=False)
        return trace_preempted(core, self._ids[prompt], self._params, trace)

    def _paged(self, name: str, prompt: int, trace: Trace, *, prefix_cache: bool) -> EngineCore:
        config = replace(self._config, max_num_seqs=1, prefix_cache=prefix_cache)
        loaded = share_weights(self._loaded, config, StorageDecision(StorageKind.PAGED, "a parity arm"))
        return EngineCore(loaded, config, self._observer([trace], [prompt], [name]))

    def _imported(self, prompt: int) -> Trace:
        trace = Trace()
        observe = self._observer([trace], [prompt], ["imported_snapshot"])
        return trace_imported(self._loaded, self._config, self._ids[prompt], self._num_tokens, trace, observe)

    def _observer(self, traces: Sequence[Trace], prompts: Sequence[int], names: Sequence[str]) -> LogitsObserver:
        """Adds logits to the trace of their request, perturbed where that is the arm to fail."""

        def observe(request_id: str, logits: Tensor) -> None:
            row = int(request_id.partition("-")[0]) % len(traces)  # one trace may take several requests in turn
            trace = traces[row]
            if names[row] and names[row] == self._fault and len(trace.logits) == self._fault_step(prompts[row]):
                logits.copy_(logits.roll(1))
            trace.logits.append(logits.clone())

        return observe

    def _cli(self, prompt: int) -> Trace:
        trace = trace_cli(self._loaded.plan, self._config, self._prompts[prompt], self._ids[prompt], self._num_tokens)
        if self._fault == "cli" and trace.problem is None:
            trace.token_ids[self._fault_step(prompt)] += 1
        return trace

    def _fault_step(self, prompt: int) -> int:
        """The first step at which the reference leads by so much that another token is no tie."""
        reference = self._reference[prompt]
        steps = range(self._num_tokens)
        return next((step for step in steps if reference.margin(step) > self.margin), 0)


def run_parity(
    loaded: LoadedModel,
    config: EngineConfig,
    *,
    num_tokens: int = 64,
    fault: str | None = None,
    on_arm: Callable[[ArmResult], None] = lambda arm: None,
) -> Report:
    """Compare every arm with the reference over `num_tokens` greedy tokens.

    `fault` perturbs one arm, which must then be reported as different. Raises `InvalidRequest` for an unknown arm, or
    if the model's context is too short for the prompts and `num_tokens`.
    """
    run = ParityRun(loaded, config, num_tokens, fault)
    contract = "bitwise" if run.bitwise else f"tokens wherever the reference leads by more than {run.margin:g}"
    return Report(loaded.plan.checkpoint.path.name, contract, tuple(run.arms(on_arm)))
