"""Fetches what tokenizers are checked against: vocabularies with texts and their ids, and real chat templates.

They lie in the source distribution of llama-cpp-python. `python -m tests.tokenizer.vocab_oracle` fetches them into
$OCTAVO_TEST_DATA (default: ~/.cache/octavo/test-data); a second run finds them there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from octavo.models.loaders.gguf_file import GGUFFile

NAME, VERSION = "llama-cpp-python", "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
SEPARATOR = "\n__ggml_vocab_test__\n"

# pip asks a source distribution for its metadata before it saves it. This answers in place of the real build
# backend, which would have to be installed, and knows only how to build.
STAND_IN_BACKEND = f"""
from pathlib import Path

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(directory, config_settings=None):
    info = Path(directory) / "{NAME.replace("-", "_")}-{VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: {NAME}\\nVersion: {VERSION}\\n")
    return info.name
"""


def data_root() -> Path:
    """Where the extracted files lie, whether or not they are there yet."""
    base = os.environ.get("OCTAVO_TEST_DATA") or Path.home() / ".cache" / "octavo" / "test-data"
    return Path(base) / f"{NAME}-{VERSION}"


def fetch() -> Path:
    """Downloads, checks and extracts; does nothing if the files are there."""
    root = data_root()
    if root.is_dir():
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
        archive = _download(Path(scratch))
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != SHA256:
            raise SystemExit(f"{archive.name} has sha256 {found}, not {SHA256}; it is not used")
        extracted = Path(scratch) / "extracted"
        _extract(archive, extracted)
        extracted.rename(root)
    return root


def _download(scratch: Path) -> Path:
    backend = scratch / "backend" / "scikit_build_core"
    backend.mkdir(parents=True)
    (backend / "__init__.py").touch()
    (backend / "build.py").write_text(STAND_IN_BACKEND)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--no-binary", NAME, "--dest", str(scratch), f"{NAME}=={VERSION}"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(backend.parent)})
    return next(scratch.glob("*.tar.gz"))


def _extract(archive: Path, target: Path) -> None:
    (target / "templates").mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            is_vocabulary = path.parent.name == "models" and path.name.startswith("ggml-vocab-")
            is_template = path.parent.name == "templates" and path.suffix == ".jinja"
            source = tar.extractfile(member) if is_vocabulary or is_template else None
            if source is not None:
                folder = target / "templates" if is_template else target
                with source, open(folder / path.name, "wb") as sink:
                    shutil.copyfileobj(source, sink)


def require_data() -> Path:
    """The folder of extracted files; skips the test if it is absent, fails it under OCTAVO_REQUIRE_WEIGHTS=1."""
    root = data_root()
    if not root.is_dir():
        reason = f"{root} is absent; `python -m tests.tokenizer.vocab_oracle` fetches it"
        if os.environ.get("OCTAVO_REQUIRE_WEIGHTS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return root


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
    print(fetch())
