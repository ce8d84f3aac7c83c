"""Fetches what tokenizers are checked against: vocabularies with texts and their ids, and real chat templates.

They lie in the source distribution of llama-cpp-python. `python -m tests.tokenizer.vocab_oracle` fetches them into
$OCTAVO_TEST_DATA (default: ~/.cache/octavo/test-data); a second run finds them there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from octavo.models.loaders.gguf_file import GGUFFile
from tests.source_distribution import SourceDistribution

SEPARATOR = "\n__ggml_vocab_test__\n"


def _place(path: PurePosixPath) -> PurePosixPath | None:
    if path.parent.name == "templates" and path.suffix == ".jinja":
        return PurePosixPath("templates") / path.name
    is_vocabulary = path.parent.name == "models" and path.name.startswith("ggml-vocab-")
    return PurePosixPath(path.name) if is_vocabulary else None


DATA = SourceDistribution(
    "llama-cpp-python",
    "0.3.36",
    "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    backend="scikit_build_core.build",
    module="tests.tokenizer.vocab_oracle",
    place=_place,
)


def data_root() -> Path:
    """Where the extracted files lie, whether or not they are there yet."""
    return DATA.root


def require_data() -> Path:
    """The folder of extracted files, or the test is skipped."""
    return DATA.require()


def vocabulary_pairs(name: str) -> list[tuple[str, list[int]]]:
    """Texts and their ids (no begin-of-text, control tokens as text) for vocabulary `name`."""
    path = require_data() / f"ggml-vocab-{name}.gguf.inp"
    texts = path.read_bytes().decode("utf-8").split(SEPARATOR)
    lines = path.with_suffix(".out").read_text(encoding="utf-8").split("\n")
    if len(lines) == len(texts) + 1 and not lines[-1]:
        lines.pop()  # a final line end, not the (empty) ids of an empty text
    assert len(texts) == len(lines) > 40
    return [(text, [int(number) for number in line.split()]) for text, line in zip(texts, lines, strict=True)]


def vocabulary_metadata(name: str) -> Mapping[str, Any]:
    """GGUF metadata of vocabulary `name`, by our own reader: the gguf package takes a minute for all of them."""
    return GGUFFile.open(require_data() / f"ggml-vocab-{name}.gguf").metadata


if __name__ == "__main__":
    print(DATA.fetch())
