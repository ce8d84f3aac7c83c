"""CUDA graphs as a parity arm: the same engine with its decode steps replayed, and launched one by one."""

from __future__ import annotations

from octavo.engine.core import EngineCore
from octavo.engine.graph_runner import REPLAYED
from octavo.llm import LLM
from octavo.parity.trace import Trace
from octavo.sampling_params import SamplingParams


def trace_replayed(core: EngineCore, prompt: list[int], params: SamplingParams, trace: Trace) -> Trace:
    """Greedy tokens of `prompt` by an engine that records graphs; a problem unless most steps were replayed."""
    output = LLM.over(core).generate([prompt], params)[0]
    trace.token_ids = list(output.outputs[0].token_ids)
    trace.routes = output.routes
    replayed = core.runner.counts.get(REPLAYED, 0)
    if replayed * 2 < len(trace.token_ids):
        trace.problem = f"replayed {replayed} of {len(trace.token_ids)} steps: {core.runner.counts}"
    return trace
