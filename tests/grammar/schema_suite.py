"""Fetches the JSON Schema test suite, whose schemas structured output is proved on.

It lies in the source distribution of jsonschema. `python -m tests.grammar.schema_suite` fetches it into
$OCTAVO_TEST_DATA (default: ~/.cache/octavo/test-data); a second run finds it there.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

NAME, VERSION = "jsonschema", "4.26.0"
SHA256 = "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
# Draft 3 is refused by its name, and the next draft is not finished.
DIALECTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
# ECMA 262's classes are ASCII; the validator that answers are checked with has Python's, which are not.
_LEFT_OUT = "ecmascript-regex.json"

# pip asks a source distribution for its metadata before it saves it. This answers in place of the real build
# backend, which would have to be installed.
_STAND_IN_BACKEND = f"""
from pathlib import Path

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(directory, config_settings=None):
    info = Path(directory) / "{NAME}-{VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: {NAME}\\nVersion: {VERSION}\\n")
    return info.name
"""


@dataclass(frozen=True, slots=True)
class SuiteSchema:
    """A schema of the suite, which names its dialect."""

    place: str
    dialect: str
    schema: dict[str, Any] | bool


def data_root() -> Path:
    """Where the suite lies, whether or not it is there yet."""
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
    backend = scratch / "backend" / "hatchling"
    backend.mkdir(parents=True)
    (backend / "__init__.py").touch()
    (backend / "build.py").write_text(_STAND_IN_BACKEND)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--no-binary", NAME, "--dest", str(scratch), f"{NAME}=={VERSION}"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(backend.parent)})
    return next(scratch.glob("*.tar.gz"))


def _extract(archive: Path, target: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            source = tar.extractfile(member) if parts[1:3] == ("json", "tests") and ".." not in parts else None
            if source is not None and member.name.endswith(".json"):
                path = target.joinpath(*parts[3:])
                path.parent.mkdir(parents=True, exist_ok=True)
                with source:
                    path.write_bytes(source.read())


def suite() -> list[SuiteSchema]:
    """All schemas, in a fixed order; skips the test if they are absent, fails it under OCTAVO_REQUIRE_WEIGHTS=1."""
    root = data_root()
    if not root.is_dir():
        reason = f"{root} is absent; `python -m tests.grammar.schema_suite` fetches it"
        if os.environ.get("OCTAVO_REQUIRE_WEIGHTS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    found = []
    for draft, dialect in DIALECTS.items():
        for path in sorted((root / draft).rglob("*.json")):
            if path.name == _LEFT_OUT:
                continue
            for case in json.loads(path.read_text(encoding="utf-8")):
                schema = case["schema"]
                if isinstance(schema, dict):
                    schema = {"$schema": dialect, **schema}
                found.append(SuiteSchema(f"{draft}/{path.stem}: {case['description']}", dialect, schema))
    return found


if __name__ == "__main__":
    print(fetch())
