"""Cached prefixes and preemption as parity arms: engines that do not compute a prompt once and straight on."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.engine.core import EngineCore
from octavo.llm import LLM
from octavo.outputs import TextDelta
from octavo.parity.trace import Trace
from octavo.sampling_params import SamplingParams


def trace_cached(core: EngineCore, prompt: Sequence[int], params: SamplingParams, trace: Trace) -> Trace:
    """The prompt again, after the same engine has answered it: all but its last block comes from the cache."""
    llm = LLM.over(core)
    llm.generate([prompt], params)
    trace.logits.clear()
    before = core.pool.prefix.counters.hit_tokens
    output = llm.generate([prompt], params)[0]
    hit_tokens = core.pool.prefix.counters.hit_tokens - before
    block_size = core.pool.block_size
    if hit_tokens < (len(prompt) - 1) // block_size * block_size:
        trace.problem = f"took {hit_tokens} tokens of {len(prompt)} from the prefix cache"
    trace.token_ids = list(output.outputs[0].token_ids)
    trace.routes = output.routes
    return trace


def trace_preempted(core: EngineCore, prompt: Sequence[int], params: SamplingParams, trace: Trace) -> Trace:
    """The request loses its blocks twice on the way; prompt and answer so far are computed again, as one prefill."""
    assert params.max_tokens is not None
    stops = {params.max_tokens // 3, 2 * params.max_tokens // 3}
    for piece in LLM.over(core).stream(prompt, params):
        if isinstance(piece, TextDelta):
            trace.token_ids += piece.token_ids
            if len(trace.token_ids) in stops:
                core.preempt(piece.request_id)
        else:
            trace.routes = piece.routes
    return trace
