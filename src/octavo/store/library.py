"""From a MODEL name to its files on this machine: found, or fetched and then found. Also lists what is here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import InvalidRequest, LoadError
from octavo.store.aliases import ALIASES, DEFAULT_ALIAS
from octavo.store.lock import file_lock
from octavo.store.manifest import Manifest, read_manifest, read_manifests, state_path, write_manifest
from octavo.store.models_dir import bytes_below, make_directory, models_dir, refuse_other_than_directory
from octavo.store.names import hub_reference, local_path, lock_name, unknown_model
from octavo.store.progress import Progress
from octavo.store.wheels import fetch_alias


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model on this machine. `path` is what a loader opens; `size` in bytes; `licence` None if never recorded."""

    name: str
    path: Path
    size: int
    licence: str | None = None


def resolve_model(name: str | None, *, progress: Progress) -> Path:
    """Path of the GGUF file or model directory that `name` means; fetched first if it is not here. None: the default.

    Touches no network for a model that is here. Raises `LoadError` for an unknown name and for a failed fetch.
    """
    name = DEFAULT_ALIAS if name is None else name
    if name not in ALIASES and (path := local_path(name)):
        return path  # not measured: it may be the root of a whole disk
    model, fetched = _find_or_fetch(name, progress)
    if fetched:
        progress.note(f"licence of {model.name}: {model.licence}")
    return model.path


def pull_model(name: str, *, progress: Progress) -> StoredModel:
    """Fetch the alias or hub repository `name` unless it is here already.

    Raises `InvalidRequest` for a local path and `LoadError` as `resolve_model` does, also if the file of an alias is
    here with the wrong size.
    """
    if name not in ALIASES and local_path(name):
        raise InvalidRequest(f"{name} is a local path, so there is nothing to pull; give it to -m as it is")
    model, _ = _find_or_fetch(name, progress)
    if name in ALIASES and model.size != ALIASES[name].size:
        raise LoadError(
            f"{model.path} has {model.size} bytes where {name} has {ALIASES[name].size}; "
            f"remove it with `octavo rm {name}` and pull again"
        )
    return model


def list_models() -> list[StoredModel]:
    """What is in the models directory, by name: fetched models, then files and directories put there by hand."""
    root = models_dir()
    with readable_errors(root):
        refuse_other_than_directory(root)
        models = {manifest.name: stored_model(root, manifest) for manifest in _complete_manifests(root)}
        for alias in ALIASES:
            if alias not in models and (model := _find_alias(root, alias)):
                models[alias] = model
        known = {model.path for model in models.values()}
        for path in root.iterdir() if root.is_dir() else ():
            if path not in known and _is_loose_model(path):
                models[path.name] = StoredModel(path.name, path, bytes_below(path))
    return sorted(models.values(), key=lambda model: model.name)


def stored_model(root: Path, manifest: Manifest) -> StoredModel:
    """The model that `manifest` describes."""
    size = sum(bytes_below(root / file) for file in manifest.files)
    return StoredModel(manifest.name, root / manifest.entry, size, manifest.licence)


def model_lock(root: Path, name: str, *, on_wait: Callable[[], None]) -> AbstractContextManager[None]:
    """The lock that whoever writes or deletes the files of `name` must hold."""
    path = state_path(root, "locks", lock_name(name))
    make_directory(path.parent)
    return file_lock(path, on_wait=on_wait)


@contextmanager
def readable_errors(root: Path) -> Iterator[None]:
    """Turn what the file system refuses into a `LoadError`."""
    try:
        yield
    except OSError as error:
        raise LoadError(
            f"cannot use {error.filename or root} ({error.strerror or error}); "
            "OCTAVO_MODELS chooses another models directory"
        ) from error


def _find_or_fetch(name: str, progress: Progress) -> tuple[StoredModel, bool]:
    """The model, and whether it was fetched just now."""
    root = models_dir()
    with readable_errors(root):
        if found := _find(root, name):
            return found, False
        fetch = _fetcher(root, name, progress)
        make_directory(root)
        waiting = f"another process is fetching {lock_name(name)}; waiting for it"
        with model_lock(root, name, on_wait=lambda: progress.note(waiting)):
            if found := _find(root, name):  # brought by the process that was waited for
                return found, False
            manifest = fetch()
            write_manifest(root, manifest)
    return stored_model(root, manifest), True


def _find(root: Path, name: str) -> StoredModel | None:
    """The model if it is on this machine, without looking anywhere else."""
    if name in ALIASES:
        return _find_alias(root, name)
    if Path(name).name == name and (loose := local_path(str(root / name))) and _is_loose_model(loose):
        return StoredModel(name, loose, bytes_below(loose))
    manifest = read_manifest(root, name) if hub_reference(name) else None
    return stored_model(root, manifest) if manifest and manifest.complete(root) else None


def _find_alias(root: Path, alias: str) -> StoredModel | None:
    path = root / ALIASES[alias].file_name
    if not path.is_file():
        return None
    manifest = read_manifest(root, alias)
    return StoredModel(alias, path, path.stat().st_size, manifest.licence if manifest else None)


def _fetcher(root: Path, name: str, progress: Progress) -> Callable[[], Manifest]:
    """What fetches `name`. Raises `LoadError` if nothing could."""
    if name in ALIASES:
        return lambda: fetch_alias(ALIASES[name], root, progress)
    reference = hub_reference(name)
    if reference is None:
        raise unknown_model(name)

    def fetch() -> Manifest:
        from octavo.store.hub import fetch_from_hub  # its imports cost more than all others here together

        return fetch_from_hub(reference, root, progress)

    return fetch


def _complete_manifests(root: Path) -> Iterator[Manifest]:
    return (manifest for manifest in read_manifests(root) if manifest.complete(root))


def _is_loose_model(path: Path) -> bool:
    """Whether `path` looks like a model that a person put into the models directory."""
    if path.name.startswith("."):
        return False
    return (path.is_file() and path.suffix.lower() == ".gguf") or (path / "config.json").is_file()
