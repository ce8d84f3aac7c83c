"""Builds a tokenizer from a Hugging Face directory: tokenizer.json and the small files beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as TokenizersPipeline
from tokenizers import models

from octavo.errors import LoadError
from octavo.tokenizer.splitter import SpecialSplitter
from octavo.tokenizer.text_bound import TextBound, shrinking_of, text_bound
from octavo.tokenizer.text_encoder import Fragment, TokenizerParts, pipeline_ids
from octavo.tokenizer.vocabulary import SPACE_MARK, PieceCoding, TokenKind, Vocabulary, end_of_turn_ids

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class PipelineEncoder:
    """Encodes with the pipeline of a tokenizer.json, which finds its added tokens itself."""

    def __init__(self, pipeline: TokenizersPipeline) -> None:
        self._pipeline = pipeline
        special = {i: token for i, token in pipeline.get_added_tokens_decoder().items() if token.special}
        self.control = SpecialSplitter(
            {token.content: i for i, token in special.items()},
            lstrip=frozenset(i for i, token in special.items() if token.lstrip),
            rstrip=frozenset(i for i, token in special.items() if token.rstrip),
        )
        self._control_ids = frozenset(special)

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """See TextEncoder."""
        ids = pipeline_ids(self._pipeline, text)
        if parse_special or self._control_ids.isdisjoint(ids):
            return ids
        return pipeline_ids(self._plain, text)

    def encode_fragments(self, fragments: Iterable[Fragment]) -> list[int]:
        """See TextEncoder."""
        ids: list[int] = []
        for index, fragment in enumerate(fragments):
            if isinstance(fragment, int):
                ids.append(fragment)
            else:
                ids += pipeline_ids(self._plain if index == 0 else self._plain_continued, fragment)
        return ids

    @cached_property
    def _plain(self) -> TokenizersPipeline:
        """The pipeline with control tokens as text; built when a text first needs it."""
        pipeline = TokenizersPipeline.from_str(self._pipeline.to_str())
        pipeline.encode_special_tokens = True
        return pipeline

    @cached_property
    def _plain_continued(self) -> TokenizersPipeline:
        """`_plain` for text that does not begin the sequence, so gets no space at its front."""
        description = json.loads(self._pipeline.to_str())
        first = [node for node in _nodes(description["pre_tokenizer"]) if node.get("prepend_scheme") == "first"]
        if not first:
            return self._plain
        for node in first:
            node["prepend_scheme"] = "never"
        pipeline = TokenizersPipeline.from_str(json.dumps(description))
        pipeline.encode_special_tokens = True
        return pipeline


def parts_from_directory(path: Path, extra_eos_ids: Iterable[int]) -> TokenizerParts:
    """Parts of the tokenizer in `path`. Raises LoadError if tokenizer.json is absent, broken or of an unknown kind."""
    pipeline = _load_pipeline(path / "tokenizer.json")
    config = _read_json(path / "tokenizer_config.json")
    named = {**_read_json(path / "special_tokens_map.json"), **config}
    special_texts = {name: text for name in _SPECIAL_NAMES if (text := _token_content(named.get(name))) is not None}
    decoder = list(_nodes(_state(pipeline.decoder)))
    vocabulary = _vocabulary(pipeline, _coding(decoder, path))
    bos, eos = (_id_of(pipeline, special_texts.get(name)) for name in ("bos_token", "eos_token"))
    prefix, suffix = _added_ends(pipeline, config, bos, eos)
    generation = _read_json(path / "generation_config.json").get("eos_token_id")
    declared = [eos, *(generation if isinstance(generation, list) else [generation]), *extra_eos_ids]
    return TokenizerParts(
        vocabulary=vocabulary,
        encoder=PipelineEncoder(pipeline),
        bos_token_id=bos,
        eos_token_ids=end_of_turn_ids(vocabulary.of_kind(TokenKind.CONTROL), declared),
        prefix_ids=prefix,
        suffix_ids=suffix,
        strip_leading_space=any(_strips_leading_space(node) for node in decoder),
        chat_templates=_chat_templates(path, config),
        special_texts=special_texts,
        bound=_bound(pipeline, vocabulary),
    )


def _load_pipeline(file: Path) -> TokenizersPipeline:
    if not file.is_file():
        raise LoadError(f"{file} is missing; a model directory needs tokenizer.json (save the tokenizer as a fast one)")
    try:
        pipeline = TokenizersPipeline.from_file(str(file))
    except Exception as error:  # `tokenizers` raises no narrower type
        raise LoadError(f"{file} is not a readable tokenizer.json: {error}; fetch it again") from error
    pipeline.no_truncation()
    pipeline.no_padding()
    return pipeline


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"{file} is not readable JSON: {error}; fetch it again") from error
    if not isinstance(content, dict):
        raise LoadError(f"{file} holds {type(content).__name__}, not an object; fetch it again")
    return content


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise LoadError(f"{file} is not readable text: {error}; fetch it again") from error


def _token_content(entry: Any) -> str | None:
    content = entry.get("content") if isinstance(entry, dict) else entry
    return content if isinstance(content, str) else None


def _id_of(pipeline: TokenizersPipeline, text: str | None) -> int | None:
    found: int | None = None if text is None else pipeline.token_to_id(text)
    return found


def _state(component: Any) -> Any:
    """A pipeline component as its JSON description, or None."""
    return None if component is None else json.loads(component.__getstate__())


def _nodes(description: Any) -> Iterable[dict[str, Any]]:
    """Every object of a component's description, depth first."""
    if isinstance(description, dict):
        yield description
        for value in description.values():
            yield from _nodes(value)
    elif isinstance(description, list):
        for value in description:
            yield from _nodes(value)


def _coding(decoder: list[dict[str, Any]], path: Path) -> PieceCoding:
    for node in decoder:
        if node.get("type") == "ByteLevel":
            return PieceCoding.BYTE_LEVEL
        if node.get("type") == "Metaspace" or node.get("pattern") == {"String": SPACE_MARK}:
            return PieceCoding.SPACE_MARK
    kind = decoder[0].get("type") if decoder else None
    raise LoadError(f"{path / 'tokenizer.json'} has decoder {kind!r}; supported: ByteLevel, Metaspace, Replace U+2581")


def _strips_leading_space(node: Mapping[str, Any]) -> bool:
    if node.get("type") == "Strip":
        return node.get("content") == " " and int(node.get("start", 0)) == 1
    return node.get("type") == "Metaspace" and node.get("prepend_scheme", "always") != "never"


def _vocabulary(pipeline: TokenizersPipeline, coding: PieceCoding) -> Vocabulary:
    by_text: dict[str, int] = pipeline.get_vocab(with_added_tokens=True)
    size = max(by_text.values(), default=-1) + 1
    texts, kinds = [""] * size, [int(TokenKind.UNUSED)] * size
    byte_texts = frozenset(f"<0x{byte:02X}>" for byte in range(256)) if coding is PieceCoding.SPACE_MARK else ()
    for text, index in by_text.items():
        texts[index] = text
        kinds[index] = TokenKind.BYTE if text in byte_texts else TokenKind.NORMAL
    for index, token in pipeline.get_added_tokens_decoder().items():
        kinds[index] = TokenKind.CONTROL if token.special else TokenKind.USER_DEFINED
    return Vocabulary(texts, kinds, coding)


def _bound(pipeline: TokenizersPipeline, vocabulary: Vocabulary) -> TextBound | None:
    """See `TokenizerParts`."""
    model = pipeline.model
    added = pipeline.get_added_tokens_decoder().values()
    steps = [*_nodes(_state(pipeline.normalizer)), *_nodes(_state(pipeline.pre_tokenizer))]
    shrinking = shrinking_of(steps)
    if shrinking is None or not isinstance(model, models.BPE) or any(token.lstrip or token.rstrip for token in added):
        return None
    return text_bound(vocabulary, falls_back=model.byte_fallback, shrinking=shrinking)


def _added_ends(
    pipeline: TokenizersPipeline, config: Mapping[str, Any], bos: int | None, eos: int | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that go before and after a text: by the config's flags if it has any, else by the post-processor."""
    if "add_bos_token" in config or "add_eos_token" in config:
        before = (bos,) if config.get("add_bos_token") and bos is not None else ()
        after = (eos,) if config.get("add_eos_token") and eos is not None else ()
        return before, after
    marked = pipeline.encode("a", add_special_tokens=True)
    added = list(marked.special_tokens_mask)
    core = added.index(0) if 0 in added else len(added)
    end = len(added) - added[::-1].index(0) if 0 in added else len(added)
    return tuple(marked.ids[:core]), tuple(marked.ids[end:])


def _chat_templates(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name; a file of its own goes before the one in the config."""
    templates: dict[str, str] = {}
    configured = _read_json(path / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(configured, str):
        templates["default"] = configured
    elif isinstance(configured, list):
        named = [entry for entry in configured if isinstance(entry, dict)]
        templates |= {
            entry["name"]: entry["template"]
            for entry in named
            if isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
        }
    for file in sorted(path.glob("additional_chat_templates/*.jinja")):
        templates[file.stem] = _read_text(file)
    own = path / "chat_template.jinja"
    if own.is_file():
        templates["default"] = _read_text(own)
    return templates
