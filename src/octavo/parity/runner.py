"""Runs the arms: the same weights and prompts through every storage, batch, chunking and front."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence, Set
from dataclasses import replace

import torch
from torch import Tensor

from octavo.cache.storage_policy import StorageDecision
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import LoadedModel, share_weights
from octavo.engine.step_runner import LogitsObserver
from octavo.errors import InvalidRequest
from octavo.llm import LLM
from octavo.parity.arms import ARMS, NARROW, ROWS, check_arm, keeps_windows_paged, refused_arms
from octavo.parity.cache_arms import trace_cached, trace_preempted
from octavo.parity.cli_arm import trace_cli
from octavo.parity.graph_arm import trace_replayed
from octavo.parity.prompts import parity_prompts
from octavo.parity.report import ArmResult, Report, joined_result
from octavo.parity.server_arm import ServedAnswers, ask_server
from octavo.parity.server_questions import Question, ask_alone
from octavo.parity.shift_arm import ShiftRun
from octavo.parity.snapshot_arm import trace_imported
from octavo.parity.trace import Comparison, Trace, compare
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from octavo.storage.compiled_attention import CompiledAttention
from octavo.storage.fused_attention import FusedAttention
from octavo.storage.route import RouteSwitches

_WIDE = 0.25  # the margin where something is computed or kept in 16 bits
_MARGIN = {torch.float32: 1e-3, torch.float16: _WIDE, torch.bfloat16: _WIDE}


class ParityRun:
    """One model's parity run. The reference is each prompt alone, dense, prefilled whole."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        num_tokens: int,
        fault: str | None,
        chosen: Collection[str],
        on_skip: Callable[[str, str], None],
    ) -> None:
        for name in (*chosen, *([] if fault is None else [fault])):
            check_arm(name)
        self._loaded = loaded
        self._chosen = frozenset(chosen or ARMS)
        self._on_skip = on_skip
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
        self.bitwise = loaded.plan.is_row_invariant
        self.margin = _MARGIN[loaded.plan.dtype]
        self._references: dict[int, Trace] = {}
        self._questions: list[Question] = []
        self._specs = loaded.model.kv_layout(loaded.plan.config)
        self._refusals = refused_arms(loaded.plan, self._specs, config.block_size)
        self._home = StorageKind.PAGED if keeps_windows_paged(loaded.plan, self._specs) else StorageKind.DENSE
        if self._chosen <= self._refusals.keys():
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self._refusals.items() if name in self._chosen)
            raise InvalidRequest(f"none of the chosen arms can be run here ({reasons}); choose others")
        self._expected = {StorageKind.DENSE: {"dense", "ring"}, StorageKind.PAGED: self._paged_routes()}

    def arms(self) -> Iterator[ArmResult]:
        """Run the chosen arms, one after another."""
        dense, paged, longest = StorageKind.DENSE, StorageKind.PAGED, ROWS - 1
        if self._wants("dense_b1"):
            yield self._judge("dense_b1", self._alone(dense, longest, "dense_b1"), longest, dense)
        if self._wants("paged_b1"):
            yield self._judge("paged_b1", self._alone(paged, longest, "paged_b1"), longest, paged)
        if self._wants("gather_b1"):
            gathered = self._alone(paged, longest, "gather_b1", switches=RouteSwitches(native=False))
            yield self._judge("gather_b1", gathered, longest, paged, {"gather"})
        for kind in (dense, paged):
            names = [f"batch{ROWS}_{kind.value}_row{row}" for row in range(ROWS)]
            wanted = [row for row, name in enumerate(names) if self._wants(name)]
            traces = self._batch(kind, names) if wanted else []
            for row in wanted:
                yield self._judge(names[row], traces[row], row, kind)
        for chunk in (7, 64):
            name = f"prefill_chunk_{chunk}"
            if self._wants(name):
                yield self._judge(name, self._alone(paged, longest, name, prefill_chunk=chunk), longest, paged)
        if self._wants("graph"):
            yield self._graph("graph", longest)
        if self._wants("cached_prefix"):
            yield self._judge("cached_prefix", self._cached("cached_prefix", longest, paged), longest, paged)
        if self._wants("cached_prefix_dense"):
            trace = self._cached("cached_prefix_dense", longest, dense)
            yield self._judge("cached_prefix_dense", trace, longest, dense)
        if self._wants("preempted"):
            yield self._judge("preempted", self._preempted(longest), longest, paged)
        if self._wants("imported_snapshot"):
            yield self._judge("imported_snapshot", self._imported(longest), longest, paged)
        if self._wants("context_shift"):
            yield self._shifted("context_shift", longest)
        for codec in NARROW:
            if self._wants(f"codec_{codec}"):
                yield self._codec(codec, longest)
        if self._wants("cli"):
            yield self._judge("cli", self._cli(0), 0, dense)
        for kind in (dense, paged):
            if self._wants(f"server_{kind.value}"):
                yield self._served(f"server_{kind.value}", kind)

    def _wants(self, arm: str) -> bool:
        """Whether to run an arm. Tells of one that was chosen and cannot be run here."""
        if arm in self._chosen and arm in self._refusals:
            self._on_skip(arm, self._refusals[arm])
        return arm in self._chosen and arm not in self._refusals

    def _whole(self, prompt: int) -> Trace:
        """The reference of a prompt, computed once."""
        if prompt not in self._references:
            self._references[prompt] = self._alone(self._home, prompt, "")
        return self._references[prompt]

    def _shifted(self, name: str, prompt: int) -> ArmResult:
        """Past the context, keys are rotated where they are stored and rounded once more: equal within a margin.

        Where nothing else rounds differently, as routes are row-invariant, logits have to be, too, at every step.
        """
        plan = self._loaded.plan
        margin = self.margin if plan.codecs[0].name == "f32" else _WIDE
        windows = [spec.window for spec in self._specs if spec.window is not None]
        run = ShiftRun.of(self._ids[prompt], self._num_tokens, self._config.block_size, windows)
        trace = run.answer(self._loaded, self._config, margin if name == self._fault else None)
        reference = run.reference(self._loaded, trace.token_ids)
        found = compare(trace, reference, bitwise=False, margin=margin, forced=True)
        problem = self._problem(trace, run.num_tokens, self._expected[StorageKind.PAGED])
        if problem is None and self.bitwise and (found.max_logit_diff or 0.0) > margin:
            problem = f"logits differ by more than {margin:g}"
        return _result(name, found, trace, problem, None if margin == self.margin and not self.bitwise else margin)

    def _paged_routes(self) -> set[str]:
        """What paged rows take here: the fused kernel's routes wherever it serves a group of layers, else gather."""
        plan, switches = self._loaded.plan, RouteSwitches.from_environment()
        if plan.device.type == "cuda":
            size, routes = self._config.block_size, {"fused_decode", "fused_verify", "varlen_prefill"}
            reasons = [FusedAttention.refusal(spec, plan.codecs, size, plan.device) for spec in self._specs]
        else:
            routes = {"fused_decode", "varlen_prefill"}
            reasons = [CompiledAttention.refusal_for(spec, plan.codecs, plan.device) for spec in self._specs]
        refused = {switches.refusal(reason) is not None for reason in reasons}
        fused = routes if False in refused else set()
        return fused | ({"gather"} if True in refused else set())

    def _codec(self, codec: str, prompt: int) -> ArmResult:
        """K and V in fewer bits: other numbers than the reference's, but the same dense as paged.

        Paged rows are gathered, unless that is not exact where results are.
        """
        name = f"codec_{codec}"
        gathers = "gather_b1" not in self._refusals
        dense = self._alone(StorageKind.DENSE, prompt, "", kv_dtype=codec)
        switches = RouteSwitches(native=False) if gathers else None
        paged = self._alone(StorageKind.PAGED, prompt, name, switches=switches, kv_dtype=codec)
        return self._judge(name, paged, prompt, StorageKind.PAGED, {"gather"} if gathers else None, dense)

    def _graph(self, name: str, prompt: int) -> ArmResult:
        """Equal to the bit whatever else is: a graph has the launches of the step that it was recorded from."""
        expected = self._alone(StorageKind.PAGED, prompt, "", graphs=False)
        trace = Trace()
        core = self._engine(name, prompt, trace, StorageKind.PAGED, prefix_cache=False, graphs=True)
        trace_replayed(core, self._ids[prompt], self._params, trace)
        found = compare(trace, expected, bitwise=True, margin=self.margin)
        routes = self._expected[StorageKind.PAGED]
        return _result(name, found, trace, self._problem(trace, self._num_tokens, routes))

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
        reference = reference or self._whole(prompt)
        found = compare(trace, reference, bitwise=self.bitwise, margin=self.margin)
        return _result(name, found, trace, self._problem(trace, self._num_tokens, routes or self._expected[kind]))

    def _problem(self, trace: Trace, num_tokens: int, routes: Set[str]) -> str | None:
        if trace.problem is not None:
            return trace.problem
        if len(trace.token_ids) != num_tokens:
            return f"gave {len(trace.token_ids)} tokens, not {num_tokens}"
        if not (trace.routes and set(trace.routes) <= routes):
            return f"took routes {sorted(trace.routes)}, not {sorted(routes)}"
        return None

    def _alone(
        self,
        kind: StorageKind,
        prompt: int,
        name: str,
        prefill_chunk: int = 2048,
        switches: RouteSwitches | None = None,
        kv_dtype: str | None = None,
        graphs: bool | None = None,
    ) -> Trace:
        config = replace(self._config, max_num_seqs=1, prefill_chunk=prefill_chunk, prefix_cache=False)
        config = replace(config, kv_dtype=kv_dtype or config.kv_dtype)
        config = config if graphs is None else replace(config, cuda_graphs=graphs)
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

    def _cached(self, name: str, prompt: int, kind: StorageKind) -> Trace:
        trace = Trace()
        core = self._engine(name, prompt, trace, kind, prefix_cache=True)
        return trace_cached(core, self._ids[prompt], self._params, trace)

    def _preempted(self, prompt: int) -> Trace:
        trace = Trace()
        core = self._engine("preempted", prompt, trace, StorageKind.PAGED, prefix_cache=False)
        return trace_preempted(core, self._ids[prompt], self._params, trace)

    def _engine(
        self,
        name: str,
        prompt: int,
        trace: Trace,
        kind: StorageKind,
        *,
        prefix_cache: bool,
        graphs: bool | None = None,
    ) -> EngineCore:
        config = replace(self._config, max_num_seqs=1, prefix_cache=prefix_cache)
        config = config if graphs is None else replace(config, cuda_graphs=graphs)
        loaded = share_weights(self._loaded, config, StorageDecision(kind, "a parity arm"))
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

    def _served(self, name: str, kind: StorageKind) -> ArmResult:
        """All questions to one server. Where routes are not row-invariant a margin says nothing of sampled tokens."""
        if not self._questions:
            prompts = [self._prompts[0], self._prompts[-1]]
            self._questions = ask_alone(self._loaded, self._config, prompts, self._num_tokens, sampled=self.bitwise)
        served = ask_server(self._loaded.plan, self._config, kind, self._questions, self._prompts)
        if name == self._fault and served.problem is None and served.answers[0].problem is None:
            served.answers[0].logprobs["tokens"][self._fault_step(0)] += " "
        return self._judge_served(name, kind, served)

    def _judge_served(self, name: str, kind: StorageKind, served: ServedAnswers) -> ArmResult:
        if served.problem is not None:
            return ArmResult(name, False, None, None, served.routes, served.problem)
        results = []
        for question, answer in zip(self._questions, served.answers, strict=True):
            trace = question.trace(answer, served.routes, bitwise=self.bitwise)
            found = compare(trace, question.reference(), bitwise=self.bitwise, margin=self.margin)
            problem = self._problem(trace, self._num_tokens, self._expected[kind])
            results.append(_result(question.name, found, trace, problem))
        return joined_result(name, results)

    def _fault_step(self, prompt: int) -> int:
        """The first step at which the reference leads by so much that another token is no tie."""
        reference = self._whole(prompt)
        steps = range(self._num_tokens)
        return next((step for step in steps if reference.margin(step) > self.margin), 0)


def _result(name: str, found: Comparison, trace: Trace, problem: str | None, margin: float | None = None) -> ArmResult:
    equal = found.agrees and problem is None
    return ArmResult(name, equal, found.first_divergence, found.max_logit_diff, trace.routes, problem, margin)


def run_parity(
    loaded: LoadedModel,
    config: EngineConfig,
    *,
    num_tokens: int = 64,
    fault: str | None = None,
    arms: Collection[str] = (),
    on_arm: Callable[[ArmResult], None] = lambda arm: None,
    on_skip: Callable[[str, str], None] = lambda name, reason: None,
) -> Report:
    """Compare `arms` (all there are unless given) with the reference over `num_tokens` greedy tokens.

    `fault` perturbs one arm, which must then be reported as different. `on_arm` is told of each arm as it is known,
    `on_skip` of each that cannot be run here, and why. Raises `InvalidRequest` for an unknown arm, if none of those
    chosen can be run, or if the model's context is too short for the prompts and `num_tokens`.
    """
    run = ParityRun(loaded, config, num_tokens, fault, arms, on_skip)
    results = []
    for arm in run.arms():
        results.append(arm)
        on_arm(arm)
    margins = {arm.margin for arm in results}
    margin = margins.pop() if len(margins) == 1 else None  # of all arms, where each says one
    bitwise = run.bitwise and margin is None
    contract = "bitwise" if bitwise else f"tokens wherever the reference leads by more than {margin or run.margin:g}"
    return Report(loaded.plan.checkpoint.path.name, contract, tuple(results))
