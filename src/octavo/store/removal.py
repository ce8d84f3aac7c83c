"""Removing a model from the models directory, and never anything outside it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from octavo.errors import InvalidRequest, LoadError
from octavo.store.library import StoredModel, list_models, model_lock, readable_errors, stored_model
from octavo.store.manifest import Manifest, delete_manifest, read_manifest, read_manifests, state_path
from octavo.store.models_dir import bytes_below, models_dir
from octavo.store.names import lock_name, looks_like_path


def remove_model(name: str) -> StoredModel:
    """Delete the model that `list_models` calls `name` (or whose path it is), and what is left of unfinished fetches.

    Raises `InvalidRequest` if `name` is a path outside the models directory or names nothing that is in it, and
    `LoadError` while another process fetches it.
    """
    root = models_dir()
    with readable_errors(root):
        model = _listed(name) or _incomplete(root, name)
        if model is None:
            raise _nothing_to_remove(root, name)
        with model_lock(root, model.name, on_wait=lambda: _refuse(model.name)):
            _delete(root, model)
    return model


def _listed(name: str) -> StoredModel | None:
    path = _canonical(Path(name))
    return next((model for model in list_models() if model.name == name or _canonical(model.path) == path), None)


def _incomplete(root: Path, name: str) -> StoredModel | None:
    """A model that is not listed because files of it are missing: fetched in part, or deleted in part by hand."""
    manifest = read_manifest(root, name)
    if manifest is not None:
        return stored_model(root, manifest)
    partial = _partial(root, name)
    return StoredModel(name, partial, bytes_below(partial)) if partial.is_dir() else None


def _nothing_to_remove(root: Path, name: str) -> InvalidRequest:
    inside = _canonical(root / name)  # `name` itself if it is absolute
    if not name or inside.parent != root.resolve() or not os.path.lexists(inside):
        inside = _canonical(Path(name))
    if inside.is_relative_to(root.resolve()) and inside != root.resolve() and os.path.lexists(inside):
        return InvalidRequest(f"{inside} is {_what(inside)}, no model that `octavo list` shows; delete it by hand")
    if looks_like_path(name) and Path(name).name != name and not inside.is_relative_to(root.resolve()):
        return InvalidRequest(
            f"{name} lies outside the models directory {root}; `octavo rm` removes only what `octavo list` shows"
        )
    names = ", ".join(model.name for model in list_models()) or "none"
    return InvalidRequest(f"no model {name!r} in {root}; there are: {names}")


def _what(path: Path) -> str:
    if path.is_symlink() and not path.exists():
        return f"a link to {os.readlink(path)}, which does not exist"
    return "a directory without config.json" if path.is_dir() else "a file other than .gguf"


def _delete(root: Path, model: StoredModel) -> None:
    manifest = read_manifest(root, model.name)
    kept = {file for other in read_manifests(root) if other.name != model.name for file in other.files}
    paths = _paths(root, manifest, kept) if manifest else [model.path]
    delete_manifest(root, model.name)
    for path in paths:
        _delete_path(path)
        _prune(path.parent, root)
    partial = _partial(root, model.name)
    if partial.is_dir():
        shutil.rmtree(partial)


def _paths(root: Path, manifest: Manifest, kept: set[str]) -> list[Path]:
    """The files of `manifest` that no other manifest names: quantisations of one repository may share some."""
    return [root / file for file in manifest.files if file not in kept]


def _delete_path(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():  # of a link, only the link is ours
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _prune(directory: Path, root: Path) -> None:
    """Remove directories that became empty, below the models directory."""
    while directory != root and root in directory.parents and directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()
        directory = directory.parent


def _partial(root: Path, name: str) -> Path:
    return state_path(root, "partial", lock_name(name))


def _canonical(path: Path) -> Path:
    """Absolute, with links resolved except in the last component."""
    return path.parent.resolve() / path.name


def _refuse(name: str) -> None:
    raise LoadError(f"another process is fetching {name}; end it, or wait until it has finished")
