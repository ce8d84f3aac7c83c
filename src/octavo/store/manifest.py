"""What the store remembers of a model that it fetched: its files, where they came from, under which licence."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from octavo.errors import LoadError
from octavo.store.models_dir import STATE_DIR, make_directory


@dataclass(frozen=True, slots=True)
class Manifest:
    """`entry` is what a loader opens; it and `files` are POSIX paths relative to the models directory.

    A manifest is written only after all its files are in place, so one whose files all exist is complete.
    """

    name: str
    entry: str
    files: tuple[str, ...]
    source: str
    licence: str

    def complete(self, root: Path) -> bool:
        return all((root / file).is_file() for file in self.files)


def state_path(root: Path, kind: str, name: str) -> Path:
    """Path of the store's own record of `kind` (`manifests`, `locks`, `partial`) for the model called `name`.

    Names are folded to lower case, as quantisations are matched without regard to it.
    """
    return root / STATE_DIR / kind / re.sub(r"[^a-z0-9._-]", lambda match: f"%{ord(match[0]):02x}", name.lower())


def read_manifest(root: Path, name: str) -> Manifest | None:
    """The manifest of `name`, or None if there is none. Raises `LoadError` if it is damaged."""
    path = _manifest_path(root, name)
    return _parse(path) if path.is_file() else None


def read_manifests(root: Path) -> Iterator[Manifest]:
    """Every manifest, by name. Raises `LoadError` at a damaged one."""
    for path in sorted((root / STATE_DIR / "manifests").glob("*.json")):
        yield _parse(path)


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Replace the manifest of `manifest.name` in one step."""
    path = _manifest_path(root, manifest.name)
    make_directory(path.parent)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(asdict(manifest), indent=1), encoding="utf-8")
    temporary.replace(path)


def delete_manifest(root: Path, name: str) -> None:
    _manifest_path(root, name).unlink(missing_ok=True)


def _manifest_path(root: Path, name: str) -> Path:
    path = state_path(root, "manifests", name)
    return path.with_name(f"{path.name}.json")


def _parse(path: Path) -> Manifest:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        manifest = Manifest(**{**fields, "files": tuple(fields["files"])})
        paths = [PurePosixPath(file) for file in (manifest.entry, *manifest.files)]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise LoadError(f"{path} is damaged ({error}); remove that file and pull the model again") from error
    # A record is followed by `octavo rm`, so it must not be able to lead out of the models directory.
    if any(file.is_absolute() or ".." in file.parts for file in paths):
        raise LoadError(f"{path} names a file outside the models directory; remove that file and pull the model again")
    return manifest
