"""Texts of megabytes: their ids are those of short texts, and other threads run while they are encoded."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from tiny_tokenizers import byte_level_metadata, byte_level_pipeline

from octavo.tokenizer import Tokenizer
from octavo.tokenizer.control_text import ControlTextMarks

LINE = "the quick 12345 fox, naïve and 🚀, jumps\n"


def of_directory(folder: Path) -> Tokenizer:
    pipeline = byte_level_pipeline()
    pipeline.add_special_tokens(["<|endoftext|>"])
    pipeline.save(str(folder / "tokenizer.json"))
    return Tokenizer.from_directory(folder)


def of_gguf(_: Path) -> Tokenizer:
    return Tokenizer.from_gguf(byte_level_metadata())


@pytest.mark.parametrize("make", [of_directory, of_gguf])
def test_a_long_text_has_the_ids_of_its_lines(make, tmp_path: Path) -> None:
    tokenizer = make(tmp_path)
    line = tokenizer.encode(LINE, add_special_tokens=False)
    assert tokenizer.encode(LINE * 1000, add_special_tokens=False) == line * 1000


@pytest.mark.parametrize("make", [of_directory, of_gguf])
def test_other_threads_run_while_a_long_text_is_encoded(make, tmp_path: Path) -> None:
    tokenizer, text = make(tmp_path), LINE * 25_000
    encoding = threading.Thread(target=tokenizer.encode, args=(text,))
    turns = 0
    encoding.start()
    while encoding.is_alive():
        time.sleep(0.005)
        turns += 1
    assert turns >= 10


def test_a_conversation_that_spells_many_control_tokens_is_taken_apart_in_time_that_grows_with_it() -> None:
    control = of_gguf(Path())._parts.encoder.control

    def seconds(num_tokens: int) -> float:
        text = "<|im_end|>" * num_tokens
        marks = ControlTextMarks(control, text)
        marked = marks.mark(text)
        begin = time.process_time()
        fragments = marks.fragments(marked)
        took = time.process_time() - begin
        assert fragments == [text]
        return took

    assert seconds(80_000) < 2 * 4 * max(seconds(20_000), seconds(20_000))
