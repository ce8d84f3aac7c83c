"""The imported snapshot as a parity arm: half an answer in a dense engine, the rest in a paged one from its K/V."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from octavo.cache.storage_policy import StorageDecision
from octavo.config import BLOCK_SIZES, EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import LoadedModel, share_weights
from octavo.engine.step_runner import LogitsObserver
from octavo.llm import LLM
from octavo.outputs import TextDelta
from octavo.parity.trace import Trace
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from octavo.storage.snapshot import KVSnapshot


def trace_imported(
    loaded: LoadedModel,
    config: EngineConfig,
    prompt: Sequence[int],
    num_tokens: int,
    trace: Trace,
    observe: LogitsObserver,
) -> Trace:
    """Greedy tokens of `prompt` into `trace`, whose logits `observe` fills; the routes are the second engine's."""
    half = num_tokens // 2
    other_size = next(size for size in BLOCK_SIZES if size != config.block_size)
    dense = _engine(loaded, config, StorageKind.DENSE, observe)
    so_far: list[int] = []
    data = b""
    for piece in dense.stream(prompt, SamplingParams(max_tokens=half, ignore_eos=True)):
        if isinstance(piece, TextDelta):
            so_far += piece.token_ids
            if len(so_far) == max(1, half // 2):  # in mid-run, so that the rest is several tokens and then single ones
                data = dense.core.export(piece.request_id).to_bytes()
    snapshot = KVSnapshot.from_bytes(data)
    paged = _engine(loaded, replace(config, block_size=other_size), StorageKind.PAGED, observe)
    params = SamplingParams(max_tokens=num_tokens - half, ignore_eos=True)
    rest = paged.generate([(*prompt, *so_far)], params, snapshot=snapshot)[0]
    trace.token_ids = [*so_far, *rest.outputs[0].token_ids]
    trace.routes = rest.routes
    return trace


def _engine(loaded: LoadedModel, config: EngineConfig, kind: StorageKind, observe: LogitsObserver) -> LLM:
    config = replace(config, max_num_seqs=1)
    return LLM.over(EngineCore(share_weights(loaded, config, StorageDecision(kind, "a parity arm")), config, observe))
