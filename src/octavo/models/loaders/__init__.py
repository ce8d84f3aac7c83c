"""Opening a model's files, whatever their format: `open_checkpoint`. Decides the format; each loader does the rest."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import LoadError
from octavo.models.checkpoint import Checkpoint
from octavo.models.loaders.gguf import GGUFCheckpoint, first_of_sets
from octavo.models.loaders.safetensors import DirectoryCheckpoint

__all__ = ["open_checkpoint"]

FORMATS = "a .gguf file, or a directory with config.json and .safetensors files (Hugging Face or MLX)"


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens and checks a .gguf file (or any file of a split set), or a Hugging Face, MLX or GGUF directory.

    Reads headers and configuration only. Raises `LoadError` naming the file, what is wrong and what is supported.
    """
    try:
        if path.is_dir():
            return _open_directory(path)
        exists = path.exists()
    except OSError as error:
        raise LoadError(f"{path}: cannot be read ({error.strerror or error}); check permissions") from error
    if not exists:
        raise LoadError(f"{path}: no such file or directory; give {FORMATS}")
    if path.suffix in (".safetensors", ".json"):
        raise LoadError(f"{path}: is one file of a directory; give the directory, {path.parent}")
    return GGUFCheckpoint.open(path)


def _open_directory(path: Path) -> Checkpoint:
    if (path / "config.json").exists() and any(path.glob("*.safetensors*")):
        return DirectoryCheckpoint.open(path)
    models = first_of_sets(path)
    if len(models) == 1:
        return GGUFCheckpoint.open(models[0])
    if models:
        names = ", ".join(model.name for model in models)
        raise LoadError(f"{path}: has {len(models)} GGUF models ({names}); give the path of one of them")
    if (path / "config.json").exists():
        return DirectoryCheckpoint.open(path)
    raise LoadError(f"{path}: is no model directory; give {FORMATS}")
