"""Which file knows which `model_type`."""

from __future__ import annotations

from octavo.errors import LoadError
from octavo.models.causal_lm import CausalLM
from octavo.models.gemma3 import Gemma3ForCausalLM
from octavo.models.llama import LlamaForCausalLM
from octavo.models.qwen2 import Qwen2ForCausalLM
from octavo.models.qwen3 import Qwen3ForCausalLM

MODELS: dict[str, type[CausalLM]] = {
    "llama": LlamaForCausalLM,
    "mistral": LlamaForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "qwen3": Qwen3ForCausalLM,
    "gemma3_text": Gemma3ForCausalLM,
}


def model_class(model_type: str) -> type[CausalLM]:
    """Raises `LoadError` naming what is supported."""
    if model_type not in MODELS:
        raise LoadError(f"model type {model_type!r} is not supported; supported are {', '.join(sorted(MODELS))}")
    return MODELS[model_type]
