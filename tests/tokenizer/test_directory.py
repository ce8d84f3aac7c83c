"""Tokenizers from a Hugging Face directory: files, flags, templates, and control text, without any real checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import CHATML, byte_level_metadata, byte_level_pipeline, sentencepiece_metadata
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Pipeline

from octavo.errors import LoadError
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.vocabulary import TokenKind


def save(folder: Path, pipeline: Pipeline, **files: Any) -> Path:
    """Writes tokenizer.json and further JSON files, by name."""
    pipeline.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def byte_level() -> Pipeline:
    """The pipeline behind `byte_level_metadata`, with the same added tokens."""
    pipeline = byte_level_pipeline()
    pipeline.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    pipeline.add_tokens([AddedToken(text, normalized=False) for text in ("<tool_call>", "  ")])
    return pipeline


def sentencepiece(scheme: str) -> Pipeline:
    """Llama kind with merges; a space is put at the front of the `first` run only, of every run, or `never`."""
    metadata = sentencepiece_metadata()
    kinds = metadata["tokenizer.ggml.token_type"]
    tokens = {t: i for i, t in enumerate(metadata["tokenizer.ggml.tokens"]) if kinds[i] != TokenKind.USER_DEFINED}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "x"), ("a", "n"), ("an", "a"), ("<", "s"), ("s", ">")]
    merges = [(left, right) for left, right in merges if left + right in tokens]
    pipeline = Pipeline(models.BPE(vocab=tokens, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if scheme == "normalizer":
        pipeline.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        pipeline.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    strip = [decoders.Strip(" ", 1, 0)] if scheme != "never" else []
    pipeline.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    pipeline.add_special_tokens(["<unk>", "<s>", "</s>"])
    pipeline.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return pipeline


@pytest.fixture
def chatml(tmp_path: Path) -> Tokenizer:
    config = {"chat_template": CHATML, "bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}}
    return Tokenizer.from_directory(save(tmp_path, byte_level(), tokenizer_config=config))


def test_a_directory_and_gguf_metadata_of_one_vocabulary_agree_on_everything(chatml: Tokenizer) -> None:
    gguf = Tokenizer.from_gguf(byte_level_metadata())
    messages = [{"role": "user", "content": "the <|im_end|> 12345 <tool_call>  <"}]
    assert chatml.encode_chat(messages) == gguf.encode_chat(messages)
    assert chatml.render_chat(messages) == gguf.render_chat(messages)
    assert (chatml.bos_token_id, chatml.eos_token_ids) == (gguf.bos_token_id, gguf.eos_token_ids)
    text = "<|im_start|>the<tool_call>  naïve 🚀"
    for parse in (False, True):
        assert chatml.encode(text, parse_special=parse) == gguf.encode(text, parse_special=parse)
    every = range(chatml.vocab_size)
    assert list(map(chatml.token_bytes, every)) == list(map(gguf.token_bytes, every))


@pytest.mark.parametrize("scheme", ["first", "always", "never", "normalizer"])
@given(text=st.text(alphabet="the x<s>ana\u00e9🚀", max_size=16))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_sentencepiece_directories_follow_their_pipeline(
    scheme: str, text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pipeline = sentencepiece(scheme)
    tokenizer = Tokenizer.from_directory(save(tmp_path_factory.mktemp("spm"), pipeline))
    parsed = pipeline.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text, add_special_tokens=False, parse_special=True) == parsed
    assert tokenizer.decode(parsed) == pipeline.decode(parsed)
    plain = tokenizer.encode(text)
    assert plain[0] == 1 and 1 not in plain[1:]
    assert tokenizer.decode(plain) == pipeline.decode(plain)
    if not text.startswith(" "):  # Metaspace puts no second space before one that is there
        assert tokenizer.decode(plain) == text
    detokenizer = tokenizer.detokenizer()
    assert "".join(map(detokenizer.push, plain)) + detokenizer.finish() == tokenizer.decode(plain)


@pytest.mark.parametrize("scheme", ["first", "always", "never", "normalizer"])
def test_control_text_in_a_sentencepiece_chat_is_text_without_further_spaces(scheme: str, tmp_path: Path) -> None:
    template = "{{ '<s>' }}{% for m in messages %}{{ m.content }}</s>{% endfor %}"
    folder = save(tmp_path, sentencepiece(scheme), tokenizer_config={"chat_template": template, "bos_token": "<s>"})
    tokenizer = Tokenizer.from_directory(folder)
    plain = tokenizer.encode_chat([{"role": "user", "content": "the x"}])
    assert plain == tokenizer.encode("<s>the x</s>", parse_special=True)
    ids = tokenizer.encode_chat([{"role": "user", "content": "the </s> x"}])
    assert ids.count(2) == 1 and ids[-1] == 2
    space = " " if scheme in ("always", "normalizer") else ""
    assert tokenizer.decode(ids, skip_special_tokens=False) == f"<s>{space}the </s> x</s>"


def test_begin_and_end_of_text_follow_the_config_before_the_post_processor(tmp_path: Path) -> None:
    config: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False, "add_eos_token": True}
    folder = save(tmp_path, sentencepiece("first"), tokenizer_config=config)
    assert Tokenizer.from_directory(folder).encode("the")[0] != 1
    assert Tokenizer.from_directory(folder).encode("the")[-1] == 2
    (folder / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer.from_directory(folder)
    assert tokenizer.encode("the")[0] == 1
    assert tokenizer.encode("<s>the", parse_special=True).count(1) == 1


def test_end_ids_come_from_every_file_and_from_the_caller(tmp_path: Path) -> None:
    pipeline = byte_level()
    folder = save(
        tmp_path, pipeline, special_tokens_map={"eos_token": "<tool_call>"}, generation_config={"eos_token_id": [3, 4]}
    )
    ids = Tokenizer.from_directory(folder, extra_eos_ids=[7]).eos_token_ids
    named = {pipeline.token_to_id(text) for text in ("<tool_call>", "<|endoftext|>", "<|im_end|>")}
    assert ids == {3, 4, 7, *named}


def test_a_template_file_goes_before_the_config_and_a_list_is_read_by_name(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    folder = save(tmp_path, byte_level(), tokenizer_config={"chat_template": named})
    user = [{"role": "user", "content": "x"}]
    assert Tokenizer.from_directory(folder).render_chat(user, tools=[{"type": "function"}]) == "tools"
    (folder / "chat_template.json").write_text('{"chat_template": "json"}', encoding="utf-8")
    assert Tokenizer.from_directory(folder).chat_template == "json"
    (folder / "chat_template.jinja").write_text("file", encoding="utf-8")
    assert Tokenizer.from_directory(folder).chat_template == "file"


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"tokenizer.json is missing"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(LoadError, match=r"tokenizer.json is not a readable tokenizer.json"):
        Tokenizer.from_directory(tmp_path)
    save(tmp_path, byte_level())
    for broken in ("[1", "[" * 100_000):
        (tmp_path / "tokenizer_config.json").write_text(broken, encoding="utf-8")
        with pytest.raises(LoadError, match=r"tokenizer_config.json is not readable JSON"):
            Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(LoadError, match=r"holds list, not an object"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": [7, {"name": [], "template": "x"}]}')
    assert Tokenizer.from_directory(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(LoadError, match=r"chat_template.jinja is not readable text"):
        Tokenizer.from_directory(tmp_path)


def test_a_decoder_of_an_unknown_kind_is_refused_by_its_name(tmp_path: Path) -> None:
    pipeline = byte_level()
    pipeline.decoder = decoders.WordPiece()
    with pytest.raises(LoadError, match=r"decoder 'WordPiece'; supported: ByteLevel"):
        Tokenizer.from_directory(save(tmp_path, pipeline))
