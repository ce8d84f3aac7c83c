"""Builds a tokenizer from the `tokenizer.ggml.*` metadata of a GGUF file. It reads no files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as TokenizersPipeline

from octavo.errors import LoadError
from octavo.tokenizer.pretokenizers import pre_tokenizer_spec
from octavo.tokenizer.sentencepiece import SentencePieceModel
from octavo.tokenizer.text_bound import text_bound
from octavo.tokenizer.text_encoder import SplittingEncoder, TokenizerParts, pipeline_ids
from octavo.tokenizer.vocabulary import (
    SPACE_MARK,
    PieceCoding,
    TokenKind,
    Vocabulary,
    end_of_turn_ids,
    promote_end_of_turn,
)

_PREFIX = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
_SUPPORTED_MODELS = ("gpt2", "llama", "gemma4")
_PIECE_KINDS = (TokenKind.NORMAL, TokenKind.USER_DEFINED, TokenKind.UNUSED)

EncodeRun = Callable[[str, bool], list[int]]


class _Metadata:
    """Typed access to the tokenizer keys; every complaint names the key."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def text(self, key: str) -> str | None:
        value = self._values.get(key)
        if value is not None and not isinstance(value, str):
            raise LoadError(f"{key} is {type(value).__name__} {value!r:.40}, not a string; convert the file again")
        return value

    def flag(self, name: str, default: bool) -> bool:
        return bool(self._values.get(_PREFIX + name, default))

    def sequence(self, name: str, length: int | None = None) -> Sequence[Any]:
        value = self._values.get(_PREFIX + name)
        if not isinstance(value, (list, tuple, np.ndarray)) or not len(value):
            raise LoadError(f"the file has no {_PREFIX}{name}; it cannot be used without it, convert it again")
        if length is not None and len(value) != length:
            raise LoadError(f"{_PREFIX}{name} has {len(value)} entries for {length} tokens; the file is damaged")
        return value.tolist() if isinstance(value, np.ndarray) else value

    def has(self, name: str) -> bool:
        return _PREFIX + name in self._values

    def token_id(self, name: str, vocab_size: int, default: int | None = None) -> int | None:
        value = self._values.get(f"{_PREFIX}{name}_token_id", default)
        if value is not None and not 0 <= int(value) < vocab_size:
            raise LoadError(f"{_PREFIX}{name}_token_id is {value}, outside the vocabulary of {vocab_size} tokens")
        return None if value is None else int(value)

    def chat_templates(self) -> dict[str, str]:
        named = {
            key.removeprefix(_TEMPLATE + "."): value
            for key, value in self._values.items()
            if key.startswith(_TEMPLATE + ".") and isinstance(value, str)
        }
        default = self.text(_TEMPLATE)
        return named if default is None else {**named, "default": default}


@dataclass(frozen=True)
class _Defaults:
    """What holds where the metadata does not say."""

    add_bos: bool
    add_space_prefix: bool = False
    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None


def parts_from_gguf(values: Mapping[str, Any], *, force: bool) -> TokenizerParts:
    """Parts of the tokenizer described by GGUF metadata (keys such as `tokenizer.ggml.model`, plain Python values).

    Raises LoadError for an unsupported model or pre-tokeniser (`force` accepts the latter) and inconsistent metadata.
    """
    metadata = _Metadata(values)
    model = metadata.text(_PREFIX + "model")
    if model not in _SUPPORTED_MODELS:
        supported = ", ".join(_SUPPORTED_MODELS)
        raise LoadError(f"tokenizer model {model!r} (tokenizer.ggml.model) is not supported; supported: {supported}")
    coding = PieceCoding.BYTE_LEVEL if model == "gpt2" else PieceCoding.SPACE_MARK
    vocabulary = _vocabulary(metadata, coding)
    if model == "gpt2":
        encode_run, defaults = _byte_level(metadata, vocabulary, force=force)
    elif model == "llama":
        encode_run, defaults = _sentencepiece(metadata, vocabulary)
    else:
        encode_run, defaults = _raw_bpe(metadata, vocabulary)
    return _assemble(metadata, vocabulary, encode_run, defaults)


def _vocabulary(metadata: _Metadata, coding: PieceCoding) -> Vocabulary:
    texts = metadata.sequence("tokens")
    if not all(isinstance(text, str) for text in texts):
        raise LoadError(f"{_PREFIX}tokens holds something that is not text; the file is damaged")
    if metadata.has("token_type"):
        kinds = [int(kind) for kind in metadata.sequence("token_type", len(texts))]
    else:
        kinds = [int(TokenKind.NORMAL)] * len(texts)
    return Vocabulary(texts, promote_end_of_turn(texts, kinds), coding)


def _assemble(
    metadata: _Metadata, vocabulary: Vocabulary, encode_run: EncodeRun, defaults: _Defaults
) -> TokenizerParts:
    size = len(vocabulary)
    bos = metadata.token_id("bos", size, defaults.bos)
    eos = metadata.token_id("eos", size, defaults.eos)
    extra = [metadata.token_id(name, size) for name in ("eot", "eom")]
    unknown = metadata.token_id("unknown", size, defaults.unknown)
    control = vocabulary.of_kind(TokenKind.CONTROL, TokenKind.UNKNOWN)
    user_defined = vocabulary.of_kind(TokenKind.USER_DEFINED)
    stripping = _right_stripping(metadata, control | user_defined)
    falls_back = vocabulary.coding is PieceCoding.SPACE_MARK and unknown is not None
    named = {"bos_token": bos, "eos_token": eos, "unk_token": unknown, "pad_token": metadata.token_id("padding", size)}
    add_bos = metadata.flag("add_bos_token", defaults.add_bos) and bos is not None
    add_eos = metadata.flag("add_eos_token", False) and eos is not None
    return TokenizerParts(
        vocabulary=vocabulary,
        encoder=SplittingEncoder(encode_run, control, user_defined, stripping),
        bos_token_id=bos,
        eos_token_ids=end_of_turn_ids(vocabulary.of_kind(TokenKind.CONTROL), [eos, *extra]),
        prefix_ids=(bos,) if add_bos and bos is not None else (),
        suffix_ids=(eos,) if add_eos and eos is not None else (),
        strip_leading_space=metadata.flag("add_space_prefix", defaults.add_space_prefix)
        and vocabulary.coding is PieceCoding.SPACE_MARK,
        chat_templates=metadata.chat_templates(),
        special_texts={name: vocabulary.texts[index] for name, index in named.items() if index is not None},
        bound=None if stripping else text_bound(vocabulary, falls_back=falls_back),
    )


def _right_stripping(metadata: _Metadata, special: Mapping[str, int]) -> frozenset[int]:
    """Phi-3's tokens swallow the white space after them; GGUF has no field that says so."""
    name = (metadata.text("general.name") or "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    return frozenset(i for text, i in special.items() if text not in ("<unk>", "<s>", "<|endoftext|>"))


def _byte_level(metadata: _Metadata, vocabulary: Vocabulary, *, force: bool) -> tuple[EncodeRun, _Defaults]:
    spec = pre_tokenizer_spec(metadata.text(_PREFIX + "pre"), force=force)
    pieces = vocabulary.of_kind(*_PIECE_KINDS)
    merges = _merges(metadata, pieces)
    pipeline = TokenizersPipeline(models.BPE(vocab=pieces, merges=merges, ignore_merges=spec.ignore_merges))
    pipeline.pre_tokenizer = spec.build()

    def encode_run(text: str, _after_special: bool) -> list[int]:
        return pipeline_ids(pipeline, text)

    return encode_run, _Defaults(add_bos=spec.add_bos)


def _sentencepiece(metadata: _Metadata, vocabulary: Vocabulary) -> tuple[EncodeRun, _Defaults]:
    scores = metadata.sequence("scores", len(vocabulary))
    defaults = _Defaults(add_bos=True, add_space_prefix=True, bos=1, eos=2, unknown=0)
    byte_ids = {int(text[3:5], 16): i for text, i in vocabulary.of_kind(TokenKind.BYTE).items()}
    unknown = metadata.token_id("unknown", len(vocabulary), defaults.unknown)
    model = SentencePieceModel(vocabulary.of_kind(*_PIECE_KINDS), scores, byte_ids, unknown)
    prefix = " " if metadata.flag("add_space_prefix", defaults.add_space_prefix) else ""

    def encode_run(text: str, after_special: bool) -> list[int]:
        return model.encode(((prefix if after_special else "") + text).replace(" ", SPACE_MARK))

    return encode_run, defaults


def _raw_bpe(metadata: _Metadata, vocabulary: Vocabulary) -> tuple[EncodeRun, _Defaults]:
    """Gemma 4: ranked merges over plain characters, spaces as U+2581, bytes as a last resort."""
    pieces = vocabulary.of_kind(*_PIECE_KINDS, TokenKind.BYTE)
    pipeline = TokenizersPipeline(models.BPE(vocab=pieces, merges=_merges(metadata, pieces), byte_fallback=True))
    pipeline.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|\n+"), behavior="isolated")

    def encode_run(text: str, _after_special: bool) -> list[int]:
        return pipeline_ids(pipeline, text.replace(" ", SPACE_MARK))

    return encode_run, _Defaults(add_bos=True)


def _merges(metadata: _Metadata, pieces: Mapping[str, int]) -> list[tuple[str, str]]:
    """Merges in order of rank; those that could only build a token which text must not become are left out."""
    pairs = [line.partition(" ") for line in metadata.sequence("merges")]
    return [(a, b) for a, _, b in pairs if a in pieces and b in pieces and a + b in pieces]
