"""Tiny random checkpoints of every family, as Hugging Face directories and as GGUF files, with a real tokenizer.

The writers here are an independent definition of what loaders must undo; they share no code with `octavo`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Quant
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
VOCAB_SIZE = 384
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_TOKEN_ID = 2

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_CORPUS = (
    "The harbour was quiet when the first boats returned with the morning tide.",
    "A careful engineer measures twice, writes the number down, and measures again.",
    "def add(left, right):\n    return left + right\n\nprint(add(20, 22))\n",
    "Prices rose by 3.5 percent in 2024, then fell by 12 percent during 2025.",
    "Who would have thought that the smallest of the three lanterns shone the longest?",
    "Schöne Grüße aus Köln; à bientôt, señor. It's what they've always said, isn't it?",
)

_CONFIGS = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "gemma3": transformers.Gemma3TextConfig,
}

_GGUF_ARCH = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3"}


def tiny_config(family: str, **overrides: Any) -> transformers.PretrainedConfig:
    """A config of two to six layers; keyword arguments replace any field by its Hugging Face name."""
    fields: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": family == "gemma3",
        "bos_token_id": 0,
        "eos_token_id": EOS_TOKEN_ID,
        "pad_token_id": 0,
    }
    if family == "mistral":
        fields |= {"sliding_window": None}
    if family == "qwen3":
        fields |= {"head_dim": 32}
    if family == "gemma3":
        fields |= {
            "num_hidden_layers": 6,
            "head_dim": 32,
            "sliding_window": 16,
            "query_pre_attn_scalar": overrides.get("head_dim", 32),
        }
    return _CONFIGS[family](**(fields | overrides))


def tiny_model(family: str, *, seed: int = 0, **overrides: Any) -> transformers.PreTrainedModel:
    """A float32 model in eval mode whose logits have a standard deviation of at least 1."""
    model = transformers.AutoModelForCausalLM.from_config(tiny_config(family, **overrides), dtype=torch.float32)
    draw_weights(model, seed)
    return model.eval()


def draw_weights(model: transformers.PreTrainedModel, seed: int) -> None:
    """Draws every parameter so that no part of the network can be left out unnoticed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):  # layer norms and q/k norms
                # Multiples of 1/256 survive Gemma's stored offset of one exactly.
                centre = 0.0 if model.config.model_type.startswith("gemma") else 1.0
                parameter.copy_(torch.round((centre + 0.2 * noise) * 256) / 256)
            elif name.endswith(".bias"):
                parameter.copy_(0.5 * noise)
            elif name.endswith(("embed_tokens.weight", "lm_head.weight")):
                parameter.copy_(noise * 2.5 / model.config.hidden_size**0.5)
            else:
                gain = 1.5 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1.0
                parameter.copy_(noise * gain / parameter.shape[1] ** 0.5)


def save_hf(
    path: Path,
    family: str,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    **overrides: Any,
) -> transformers.PreTrainedModel:
    """Writes a Hugging Face directory with a tokenizer; returns the model with the values that were written."""
    model = tiny_model(family, seed=seed, **overrides).to(dtype)
    model.generation_config.pad_token_id = 0
    model.save_pretrained(path, max_shard_size=max_shard_size)
    save_tokenizer(path)
    return model


def tiny_tokenizer() -> RawTokenizer:
    """A byte-level BPE tokenizer of `VOCAB_SIZE` tokens with GPT-2's splitting rules."""
    tokenizer = RawTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def save_tokenizer(path: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json (chat template, end token) into a directory."""
    path.mkdir(parents=True, exist_ok=True)
    tiny_tokenizer().save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[EOS_TOKEN_ID],
        "pad_token": SPECIAL_TOKENS[0],
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def add_tokenizer_metadata(writer: gguf.GGUFWriter) -> None:
    """The same tokenizer as GGUF metadata."""
    content = json.loads(tiny_tokenizer().to_str())["model"]
    tokens = sorted(content["vocab"], key=content["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if token in SPECIAL_TOKENS else normal for token in tokens])
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in content["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(EOS_TOKEN_ID)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def permute_rows(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """GGUF's row order for llama q/k: within a head of 2h rows, old row h·j + i becomes new row 2i + j."""
    head_dim = weight.shape[0] // num_heads
    half = head_dim // 2
    order = [head * head_dim + half * j + i for head in range(num_heads) for i in range(half) for j in (0, 1)]
    return weight[order]


def gguf_tensors(model: transformers.PreTrainedModel, family: str) -> dict[str, torch.Tensor]:
    """The model's tensors under GGUF names with the values that GGUF files store (float32)."""
    config = model.config
    state = {name: value.detach().float() for name, value in model.state_dict().items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    tensors = {_gguf_name(name, family): value for name, value in state.items()}
    if _GGUF_ARCH[family] == "llama":
        for name in tensors:
            if ".attn_q." in name:
                tensors[name] = permute_rows(tensors[name], config.num_attention_heads)
            elif ".attn_k." in name:
                tensors[name] = permute_rows(tensors[name], config.num_key_value_heads)
    if family == "gemma3":
        tensors = {name: value + 1 if "norm" in name else value for name, value in tensors.items()}
    if config.rope_parameters.get("rope_type") == "llama3":
        dim = config.head_dim
        plain = 1.0 / (config.rope_parameters["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim))
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
        tensors["rope_freqs.weight"] = plain / scaled
    return tensors


def save_gguf(
    path: Path,
    model: transformers.PreTrainedModel,
    family: str,
    quant: str = "F32",
    *,
    raw: Mapping[str, tuple[np.ndarray, Quant]] | None = None,
    extra: Mapping[str, torch.Tensor] | None = None,
    metadata: Mapping[str, Any] | None = None,
    tokenizer: bool = True,
    split_max_tensors: int = 0,
) -> Path:
    """Writes a GGUF file (or a split set) with the matrices in `quant`; returns the path to open.

    `raw` replaces a tensor by stored bytes `[rows, row_bytes]`; `extra` adds float32 tensors; `metadata` adds keys.
    """
    writer = gguf.GGUFWriter(path, _GGUF_ARCH[family], split_max_tensors=split_max_tensors)
    _add_parameters(writer, model.config, family)
    for key, value in (metadata or {}).items():
        writer.add_key_value(key, *_typed(value))
    if tokenizer:
        add_tokenizer_metadata(writer)
    encoding = Quant[quant]
    for name, value in (gguf_tensors(model, family) | dict(extra or {})).items():
        if raw and name in raw:
            data, kind = raw[name]
            writer.add_tensor(name, data, raw_dtype=kind)
        elif value.ndim == 1 or encoding == Quant.F32:
            writer.add_tensor(name, value.contiguous().numpy())
        else:
            writer.add_tensor(name, gguf.quants.quantize(value.contiguous().numpy(), encoding), raw_dtype=encoding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if path.exists():
        return path
    return min(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))


def _gguf_name(name: str, family: str) -> str:
    top = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in top:
        return top[name]
    parts = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "post_attention_layernorm": "post_attention_norm" if family == "gemma3" else "ffn_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{parts[stem]}.{kind}"


def _add_parameters(writer: gguf.GGUFWriter, config: transformers.PretrainedConfig, family: str) -> None:
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    if head_dim * config.num_attention_heads != config.hidden_size or family in ("qwen3", "gemma3"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if _GGUF_ARCH[family] == "llama":
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(head_dim)
    if family == "gemma3":
        writer.add_sliding_window(config.sliding_window)
        if config.final_logit_softcapping:
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _typed(value: Any) -> tuple[Any, gguf.GGUFValueType]:
    return value, gguf.GGUFValueType.get_type(value)
